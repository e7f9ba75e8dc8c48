// NCCL's environment variables. Used by the functions with which programs begin.
#pragma once

namespace ouro::nccl {

/// Reads them, once in the life of the process: NCCL_DEBUG and its relatives become settings of ouro's log,
/// unless ouro's own variables are set. Names at INFO level those that mean nothing here.
void read_environment();

}  // namespace ouro::nccl

// The version of NCCL's interface that this library reports. Used by ncclGetVersion.
#pragma once

namespace ouro::nccl {

/// NCCL_VERSION_CODE of nccl.h, or the number in OURO_NCCL_VERSION.
int reported_version();

}  // namespace ouro::nccl

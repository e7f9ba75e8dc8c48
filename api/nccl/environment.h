// What NCCL's environment variables decide. Used by the functions with which programs begin, and by those
// that a variable changes.
#pragma once
#include "runtime/core/status.h"

namespace ouro::nccl {

/// Reads them, once in the life of the process: those that have a counterpart become settings of ouro's,
/// unless ouro's own variables are set. Names at level INFO those that mean nothing here. Errors, each time:
/// invalid (a value that cannot be).
Status read_environment();

/// Reads again what the log is to do: NCCL's variables and ouro's own, as they are now.
void reset_log();

/// NCCL_CHECK_POINTERS=1, after read_environment().
bool checks_pointers();
/// Not NCCL_WIN_ENABLE=0.
bool offers_windows();

}  // namespace ouro::nccl

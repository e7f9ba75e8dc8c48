// The effects of NCCL's environment variables. Used by the functions with which programs begin, and by those
// that a variable changes.
#pragma once
#include "runtime/core/status.h"

namespace ouro::nccl {

/// Reads the variables, once in the life of the process. Those that have a counterpart become ouro's
/// settings, unless ouro's own variables are set; those without effect are logged at level INFO. Errors, on
/// each call: invalid (an impossible value).
Status read_environment();

/// Reads the log settings again: NCCL's variables and ouro's own, as they are now.
void reset_log();

/// Whether NCCL_CHECK_POINTERS=1; valid after read_environment().
bool checks_pointers();
/// Whether windows are offered: false if NCCL_WIN_ENABLE=0.
bool offers_windows();

}  // namespace ouro::nccl

// Finds the libnccl.so.2 that was built, or installed, with this program. Used by ouro-run --nccl.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace ouro::run {

/// LD_PRELOAD for ranks: ouro's libnccl.so.2, then `before`. Errors: resource (the library is in none of the
/// expected places), invalid (its path contains a blank or a colon, at which the dynamic linker
/// would split it).
Result<std::string> preload_nccl(const std::string& before);

}  // namespace ouro::run

// Where the libnccl.so.2 is that was built, or installed, with this program. Used by ouro-run --nccl.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace ouro::run {

/// LD_PRELOAD for ranks: ouro's libnccl.so.2, then `before`. Errors: resource (the library is in none of its
/// places), invalid (a blank or a colon in its path, at which the dynamic linker would divide it).
Result<std::string> preload_nccl(const std::string& before);

}  // namespace ouro::run

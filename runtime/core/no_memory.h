// The failure of whatever finds no memory and no thread. Used where an exception becomes a Status.
#pragma once
#include "runtime/core/status.h"

namespace ouro {

/// `resource`. It was made beforehand: where there is no memory, there is none for a text either.
Status no_memory() noexcept;

}  // namespace ouro

// The failure of a call that gets no memory or no thread. Used where an exception becomes a Status.
#pragma once
#include "runtime/core/status.h"

namespace ouro {

/// A failure with reason `resource`. It is made in advance, because there would be no memory for its
/// text either.
Status no_memory() noexcept;

}  // namespace ouro

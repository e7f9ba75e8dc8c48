// NextPart: an operation whose data comes and goes part by part. Used by the staged path, which moves the
// parts, and by group, which carries them out.
#pragma once
#include <functional>

#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Says that the part before has ended well, waits for the data of the next one, and gives it, in memory of
/// the host; or nullptr after the last. Empty: the operation is in one part. Errors: device, deadline,
/// resource.
using NextPart = std::function<Status(const Operation**)>;

}  // namespace ouro::rt

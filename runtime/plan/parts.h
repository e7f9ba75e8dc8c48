// NextPart: an operation whose data is processed part by part. Used by the staged path, which moves the
// parts, and by group, which executes them.
#pragma once
#include <functional>

#include "runtime/plan/operation.h"

namespace ouro::rt {

/// Reports that the previous part has succeeded, waits for the data of the next one, and sets the pointer to
/// it, in memory of the host, or to nullptr after the last. An empty function: the operation has a single
/// part. Errors: device, deadline, resource.
using NextPart = std::function<Status(const Operation**)>;

}  // namespace ouro::rt

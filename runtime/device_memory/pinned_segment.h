// Pinning of host memory that devices access. Used by the words of a group and by the staged path.
#pragma once
#include <cstddef>
#include <memory>

#include "runtime/core/segment.h"
#include "runtime/core/status.h"

namespace ouro::rt {

/// Pins [at, at + bytes) of a segment until the last copy of the result is destroyed and the process is idle
/// (free_when_idle). Callers that pin the same `at` share the pin. `on_device`, unless null, receives the
/// address on the devices. Errors: the driver's.
Result<std::shared_ptr<void>> pin_segment(std::shared_ptr<SharedSegment>, std::byte* at, std::size_t bytes,
                                          void** on_device = nullptr);

}  // namespace ouro::rt

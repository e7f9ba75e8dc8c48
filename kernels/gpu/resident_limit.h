// The limit on what one launch of a resident kernel can process. Used by resident_host.cc and by the
// choice of a path.
#pragma once
#include <cstdint>

#include "kernels/gpu/resident.h"

namespace ouro::gpu {

/// Whether the chunks of an operation on this many elements of a region, or of a block, can be numbered: a
/// launch numbers them in 31 bits. Operations by pointer are not cut; for those, `algorithm` is the flow over
/// slots that may run in its place.
bool resident_can_number(const ResidentLayout&, Collective, flow::Algorithm, DType, std::uint64_t count,
                         int channels);

}  // namespace ouro::gpu

// How much one launch of a resident kernel can carry. Used by resident_host.cc and by the choice of a path.
#pragma once
#include <cstdint>

#include "kernels/gpu/resident.h"

namespace ouro::gpu {

/// Whether so many elements of a region, or of a block, are cut into chunks that can be numbered: a launch
/// numbers them in 31 bits. What goes by pointer is not cut; it is asked of the flow over slots in its place.
bool resident_can_number(const ResidentLayout&, Collective, flow::Algorithm, DType, std::uint64_t count,
                         int channels);

}  // namespace ouro::gpu

// The list of all kernels of devices, for preloading and for reports.
#include <vector>

#include "kernels/gpu/collect.h"
#include "kernels/gpu/optim.h"
#include "kernels/gpu/resident.h"

namespace ouro::gpu {

std::span<const Kernel* const> all_kernels() {
  static const auto& all = *[] {  // never destroyed: groups may outlive static objects
    const std::span<const Kernel* const> collect = collect_kernels();
    auto& list = *new std::vector<const Kernel*>(collect.begin(), collect.end());
    for (const Kernel& kernel : optim_kernels()) list.push_back(&kernel);
    const std::span<const Kernel* const> resident = resident_kernels();
    list.insert(list.end(), resident.begin(), resident.end());
    return &list;
  }();
  return all;
}

}  // namespace ouro::gpu

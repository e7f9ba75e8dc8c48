// The device half of the optimiser kernels: blocks of threads run the bodies of optim_body.h. Used by
// optim_host.cc through optim_entries.
#include "kernels/gpu/optim_list.h"

namespace ouro::gpu::optim {
namespace {

template <class V>
__global__ void __launch_bounds__(kOptimThreads, V::kResident)
    optim_update(const __grid_constant__ UpdateArgs args) {
  using Place = BlockScratch<typename V::L::Computed>;
  __shared__ alignas(Place) unsigned char scratch[sizeof(Place)];
  update_body<V>(DeviceBlock{}, args, *reinterpret_cast<Place*>(scratch));
}

template <class T>
__global__ void __launch_bounds__(kSurveyThreads, 4) optim_survey(const __grid_constant__ SurveyArgs args) {
  __shared__ SurveyScratch scratch;
  survey_body<T>(DeviceBlock{}, args, scratch);
}

}  // namespace

std::array<const void*, kOptimKernels> optim_entries() {
  std::array<const void*, kOptimKernels> entries = {};
  std::size_t k = 0;
  each_variant([&](auto v) { entries[k++] = reinterpret_cast<const void*>(&optim_update<decltype(v)>); });
  each_survey([&](auto t) { entries[k++] = reinterpret_cast<const void*>(&optim_survey<decltype(t)>); });
  return entries;
}

}  // namespace ouro::gpu::optim

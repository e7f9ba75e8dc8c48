// Sums and texts of numbers of calls. See gpu_calls.h.
#include "kernels/device/gpu_calls.h"

#include <fmt/format.h>

namespace ouro::gpu {

std::uint64_t CallCounts::of(CallClass cost) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kGpuCalls; ++i) sum += kCallTerms[i].cost == cost ? calls[i] : 0;
  return sum;
}

CallCounts& CallCounts::operator+=(const CallCounts& other) {
  for (std::size_t i = 0; i < kGpuCalls; ++i) calls[i] += other.calls[i];
  words += other.words, driver += other.driver, contexts += other.contexts;
  return *this;
}

CallCounts& CallCounts::operator-=(const CallCounts& other) {
  for (std::size_t i = 0; i < kGpuCalls; ++i) calls[i] -= other.calls[i];
  words -= other.words, driver -= other.driver, contexts -= other.contexts;
  return *this;
}

std::string CallCounts::text(CallClass cost) const {
  std::string all;
  for (std::size_t i = 0; i < kGpuCalls; ++i)
    if (calls[i] != 0 && kCallTerms[i].cost == cost)
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ", kCallTerms[i].name, calls[i]);
  return all;
}

}  // namespace ouro::gpu

// Facts that ranks publish about themselves when they join. See remarks.h.
#include "runtime/job/remarks.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace ouro::rt {

wire::Bytes remarks(const ControlPage& page) {
  std::size_t words = std::size(page.cpus);
  while (words > 0 && page.cpus[words - 1] == 0) --words;
  const auto count = static_cast<std::uint16_t>(words);
  wire::Bytes all;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    all.insert(all.end(), from, from + bytes);
  };
  add(&count, sizeof count);
  add(page.cpus, words * sizeof page.cpus[0]);
  add(&page.gpu, sizeof page.gpu);
  add(&page.process, sizeof page.process);
  return all;
}

std::optional<std::size_t> read_remarks(const wire::Bytes& all, ControlPage* page) {
  std::uint16_t count = 0;
  if (all.size() < sizeof count) return std::nullopt;
  std::memcpy(&count, all.data(), sizeof count);
  const std::size_t cpus = count * sizeof page->cpus[0], gpu_at = sizeof count + cpus,
                    process_at = gpu_at + sizeof page->gpu, end = process_at + sizeof page->process;
  if (count > std::size(page->cpus) || all.size() < end) return std::nullopt;
  std::memcpy(page->cpus, all.data() + sizeof count, cpus);
  std::memcpy(&page->gpu, all.data() + gpu_at, sizeof page->gpu);
  page->gpu.reach_count = std::min<std::uint32_t>(page->gpu.reach_count, GpuRecord::kReach);
  std::memcpy(&page->process, all.data() + process_at, sizeof page->process);
  return end;
}

}  // namespace ouro::rt

// Cases for the kernel that collects the parts of a message, for any Runner.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/gpu_collect_cases.h"

namespace ouro::gpu {

/// `lengths`: of the runs, one after the other in the output, which begins at `skew` bytes beyond an
/// alignment; run k begins at k * skew beyond one. They lie in the image in reverse order.
inline void gather_case(Runner& runner, const std::vector<std::size_t>& lengths, std::size_t skew) {
  Image image(runner);
  std::size_t total = 0;
  for (const std::size_t n : lengths) total += n;
  const std::size_t to = image.room(total, skew), count = image.room(sizeof(std::uint64_t), 0),
                    runs = image.room(lengths.size() * sizeof(Run), 0);
  std::vector<std::size_t> from(lengths.size());
  for (std::size_t k = lengths.size(); k-- > 0;) from[k] = image.room(lengths[k], k * skew % 64);
  const auto put = [&](std::size_t at, const auto& value) {
    std::memcpy(&image.bytes()[at], &value, sizeof value);
  };
  put(count, std::uint64_t{lengths.size()});
  Bytes gathered(total);
  std::size_t at = 0;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    const Bytes data = reference::random_elements(DType::u8, lengths[k], k + 1);
    image.put(from[k], data);
    std::copy(data.begin(), data.end(), gathered.begin() + static_cast<std::ptrdiff_t>(at));
    put(runs + k * sizeof(Run), Run{image.device(from[k]), at, lengths[k]});
    at += lengths[k];
  }
  Bytes want = image.bytes();
  if (total > 0) std::memcpy(&want[to], gathered.data(), total);
  const GatherArgs args{reinterpret_cast<const std::uint64_t*>(image.device(count)),
                        reinterpret_cast<const Run*>(image.device(runs)), image.device(to)};
  image.expect(gather_runs(std::max<std::size_t>(total, 1), runner.multiprocessors()), &args, want,
               std::to_string(lengths.size()) + " runs at " + std::to_string(skew));
}

inline void every_gather(Runner& runner) {
  for (const std::size_t skew : {0, 1, 4, 8, 16, 23})
    for (const std::vector<std::size_t>& lengths : std::vector<std::vector<std::size_t>>{
             {}, {0}, {1}, {4099}, {16, 16, 16}, {1, 2, 3, 5, 7, 11}, {20011, 3, 0, 4096}, {8192, 1, 8192}}) {
      if (testing::Test::HasFatalFailure()) return;
      gather_case(runner, lengths, skew);
    }
}

}  // namespace ouro::gpu

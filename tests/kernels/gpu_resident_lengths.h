// How many elements ranks have for each other in a case of the resident kernels, even and uneven. Used by
// gpu_resident_cases.h; Case is declared there.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/gpu/resident.h"

namespace ouro::gpu::resident_test {

inline std::size_t input_blocks(Collective c, int rank, int root, std::size_t n) {
  if (c == Collective::barrier) return 0;
  if (c == Collective::broadcast) return rank == root ? 1 : 0;
  if (c == Collective::scatter) return rank == root ? n : 0;
  return c == Collective::reduce_scatter || c == Collective::all_to_all ? n : 1;
}
inline std::size_t output_blocks(Collective c, int rank, int root, std::size_t n) {
  if (c == Collective::barrier) return 0;
  if (c == Collective::reduce) return rank == root ? 1 : 0;
  if (c == Collective::gather) return rank == root ? n : 0;
  return c == Collective::all_gather || c == Collective::all_to_all ? n : 1;
}

/// Elements that rank `from` has for rank `to`: from none to three times the count, odd and even.
template <class Case>
std::size_t block_length(const Case& c, int from, int to) {
  if (c.uneven == 0) return c.count;
  if (c.collective == Collective::all_gather) to = from;
  if (c.collective == Collective::reduce_scatter) from = to;
  const std::size_t kind =
      (c.uneven * 2654435761u + 40503u * static_cast<unsigned>(from) + 95911u * static_cast<unsigned>(to)) /
      256 % 7;
  if (kind == 2) return 0;
  if (kind == 5) return 3 * c.count + 1;
  return c.count / (1 + kind) + (kind == 3 ? 4 : kind);
}
/// The blocks of one side of a rank.
struct Lengths {
  std::vector<std::size_t> of;
  std::size_t before(int block) const {
    std::size_t sum = 0;
    for (std::size_t b = 0; b < static_cast<std::size_t>(block); ++b) sum += of[b];
    return sum;
  }
  std::size_t total() const { return before(static_cast<int>(of.size())); }
};
template <class Case>
Lengths input_lengths(const Case& c, int rank, std::size_t n) {
  Lengths all;
  const auto blocks = static_cast<int>(input_blocks(c.collective, rank, c.root, n));
  for (int b = 0; b < blocks; ++b) all.of.push_back(block_length(c, rank, blocks > 1 ? b : rank));
  return all;
}
template <class Case>
Lengths output_lengths(const Case& c, int rank, std::size_t n) {
  Lengths all;
  const auto blocks = static_cast<int>(output_blocks(c.collective, rank, c.root, n));
  for (int b = 0; b < blocks; ++b) all.of.push_back(block_length(c, blocks > 1 ? b : rank, rank));
  return all;
}

/// The same for a launch.
template <class Case>
void lay_out_blocks(const Case& c, int n, ResidentArgs* a) {
  a->uneven = true;
  a->count = 0;
  for (int p = 0; p < n; ++p) {
    const bool pairs = c.collective == Collective::all_to_all;
    a->in_counts[p] = block_length(c, pairs ? a->rank : p, p);
    a->out_counts[p] = block_length(c, p, pairs ? a->rank : p);
    a->count = std::max({a->count, a->in_counts[p], a->out_counts[p]});
  }
}

}  // namespace ouro::gpu::resident_test

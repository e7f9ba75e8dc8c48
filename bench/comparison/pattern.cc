// Small integers as data: their sums are exact in float and, up to 17 ranks, in bfloat16.
// Used by harness.cc and methods.cc. Compiled with vector instructions of the baseline.
#include "bench/comparison/pattern.h"

#include <bit>
#include <cstring>

namespace ouro::compare {
namespace {

/// 0..15. Folds high bits down, so that exchanged pages or slices are detected.
std::uint32_t value(int rank, std::size_t i, std::uint32_t salt) {
  const auto x = static_cast<std::uint32_t>(i);
  return (x + (x >> 5) + (x >> 11) + (x >> 17) + (x >> 23) + 3U * static_cast<std::uint32_t>(rank) + salt) &
         15U;
}

struct Float32 {
  using Bits = std::uint32_t;
  static constexpr Bits kNan = 0x7fc00000;
  static Bits of(std::uint32_t v) { return std::bit_cast<std::uint32_t>(static_cast<float>(v)); }
};
struct Bfloat16 {
  using Bits = std::uint16_t;
  static constexpr Bits kNan = 0x7fc0;
  // Exact: integers below 256 have no bits below the upper half.
  static Bits of(std::uint32_t v) {
    return static_cast<Bits>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >> 16);
  }
};

template <class F>
void fill_as(const Call& c, int rank, std::uint32_t salt) {
  using Bits = typename F::Bits;
  auto* out = static_cast<Bits*>(c.out);
  for (std::size_t i = 0; i < c.out_count; ++i) out[i] = F::kNan;
  if (c.collective == Collective::broadcast && rank != 0) return;
  auto* in = static_cast<Bits*>(c.in);
  for (std::size_t i = 0; i < c.in_count; ++i) in[i] = F::of(value(rank, i, salt));
}

/// Differences between `out` and the sum, over the ranks first..last, of what they hold from `offset` on.
template <class F>
std::int64_t differences(const void* data, std::size_t count, int first, int last, std::size_t offset,
                         std::uint32_t salt) {
  const auto* out = static_cast<const typename F::Bits*>(data);
  std::int64_t n = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t sum = 0;
    for (int r = first; r <= last; ++r) sum += value(r, offset + i, salt);
    n += out[i] != F::of(sum);
  }
  return n;
}

template <class F>
std::int64_t wrong_as(const Call& c, int rank, int ranks, std::uint32_t salt) {
  const auto* out = static_cast<const typename F::Bits*>(c.out);
  const std::size_t mine = static_cast<std::size_t>(rank) * c.block;
  switch (c.collective) {
    case Collective::all_reduce:
      return differences<F>(out, c.block, 0, ranks - 1, 0, salt);
    case Collective::broadcast:
      return differences<F>(out, c.block, 0, 0, 0, salt);
    case Collective::reduce_scatter:
      return differences<F>(out, c.block, 0, ranks - 1, mine, salt);
    case Collective::all_gather:
    case Collective::all_to_all:
      break;
  }
  std::int64_t n = 0;
  const std::size_t offset = c.collective == Collective::all_to_all ? mine : 0;
  for (int r = 0; r < ranks; ++r)
    n += differences<F>(out + static_cast<std::size_t>(r) * c.block, c.block, r, r, offset, salt);
  return n;
}

}  // namespace

void fill(const Call& c, int rank, std::uint32_t salt) {
  c.element == Element::float32 ? fill_as<Float32>(c, rank, salt) : fill_as<Bfloat16>(c, rank, salt);
}

std::int64_t wrong(const Call& c, int rank, int ranks, std::uint32_t salt) {
  return c.element == Element::float32 ? wrong_as<Float32>(c, rank, ranks, salt)
                                       : wrong_as<Bfloat16>(c, rank, ranks, salt);
}

void clear(const Call& c) {
  std::memset(c.in, 0, c.in_bytes());
  std::memset(c.out, 0, c.out_bytes());
}

void rewrite(void* data, std::size_t bytes, unsigned turn) {
  // 1 and 2 as bfloat16, just above them as float; not one repeated byte, since that would become a memset,
  // which bypasses the cache for large buffers.
  const std::uint32_t word = turn & 1 ? 0x40003f80U : 0x3f804000U;
  auto* p = static_cast<std::uint32_t*>(data);
  for (std::size_t i = 0; i < bytes / sizeof word; ++i) p[i] = word;
  if (const std::size_t tail = bytes % sizeof word)
    std::memcpy(static_cast<char*>(data) + bytes - tail, &word, tail);
}

std::uint64_t read(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const std::uint32_t*>(data);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes / sizeof sum; ++i) sum += p[i];
  std::uint32_t rest = 0;
  const std::size_t tail = bytes % sizeof rest;
  if (tail) std::memcpy(&rest, static_cast<const char*>(data) + bytes - tail, tail);
  return sum + rest;
}

}  // namespace ouro::compare

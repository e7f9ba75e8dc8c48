// Fill, call, compare. See check.h.
#include "tools/perf/check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tools/perf/data.h"

namespace ouro::perf {
namespace {

constexpr int kGarbage = 0xff;  // NaN in every floating-point type

std::size_t count_not(const std::byte* p, std::size_t bytes, int value) {
  return static_cast<std::size_t>(
      std::count_if(p, p + bytes, [value](std::byte b) { return b != static_cast<std::byte>(value); }));
}

}  // namespace

Result<std::size_t> check_call(Group& group, const Call& c, OpKind op, bool in_place, std::byte* region,
                               std::uint64_t seed, const Stream& stream) {
  const int rank = group.rank(), n = group.size();
  const OpKind* reduction = info(c.kind).reduces ? &op : nullptr;
  const std::size_t width = size_of(c.dtype);
  const Tile mine = Tile::input(c.dtype, reduction, rank, n, seed);

  std::memset(region, kGarbage, c.shape.bytes + kGuard);
  mine.fill(const_cast<void*>(c.in), c.shape.in, 0);

  OURO_TRY(issue(group, c, 1, stream));
  if (stream.valid()) OURO_TRY(stream.synchronize());

  std::size_t wrong = 0;
  const auto* out = static_cast<const std::byte*>(c.out);
  const std::vector<Segment> segments = expected(c.kind, c.shape, rank, n, c.root);
  for (const Segment& s : segments) {
    const Tile tile =
        s.source < 0 ? Tile::reduced(c.dtype, op, n, seed) : Tile::input(c.dtype, nullptr, s.source, n, seed);
    wrong += tile.wrong(out, s.count, s.start);
    out += s.count * width;
  }
  const bool written = !segments.empty();
  const bool input_apart = c.in < region || c.in >= region + c.shape.bytes;
  if (!in_place || input_apart || !written)
    wrong += mine.wrong(c.in, c.shape.in, 0);  // inputs stay as they were
  if (!written && input_apart) wrong += count_not(region, c.shape.out * width, kGarbage) / width;
  wrong += count_not(region + c.shape.bytes, kGuard, kGarbage);
  return wrong;
}

}  // namespace ouro::perf

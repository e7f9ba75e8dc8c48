// Fill, call, compare. See check.h.
#include "tools/perf/check.h"

#include <algorithm>
#include <vector>

#include "tools/perf/data.h"

namespace ouro::perf {
namespace {

std::size_t count_not(const std::byte* p, std::size_t bytes, int value) {
  return static_cast<std::size_t>(
      std::count_if(p, p + bytes, [value](std::byte b) { return b != static_cast<std::byte>(value); }));
}

}  // namespace

Result<std::size_t> check_call(Group& group, const Call& c, OpKind op, bool in_place, std::byte* region,
                               std::uint64_t seed, const std::function<Status()>& perform,
                               const Mover& mover) {
  const int rank = group.rank(), n = group.size();
  const OpKind* reduction = info(c.kind).reduces() ? &op : nullptr;
  const std::size_t width = size_of(c.dtype), in_bytes = c.shape.in * width;
  const Tile mine = Tile::input(c.dtype, reduction, rank, n, seed);
  const auto* there = static_cast<const std::byte*>(c.in);
  const bool input_apart = there < region || there >= region + c.shape.bytes;

  // For a device, the input is prepared and the result examined in the host's memory.
  std::vector<std::byte> copy_of_in(mover.on_device() ? in_bytes : 0),
      copy_of_region(mover.on_device() ? c.shape.bytes + kGuard : 0);
  OURO_TRY(mover.set(region, kGarbage, c.shape.bytes + kGuard));
  mine.fill(mover.on_device() ? copy_of_in.data() : const_cast<void*>(c.in), c.shape.in, 0);
  if (mover.on_device()) OURO_TRY(mover.write(const_cast<void*>(c.in), copy_of_in.data(), in_bytes));

  OURO_TRY(perform ? perform() : issue(group, c, 1, {}));

  if (mover.on_device()) {
    OURO_TRY(mover.read(copy_of_in.data(), c.in, in_bytes));
    OURO_TRY(mover.read(copy_of_region.data(), region, copy_of_region.size()));
  }
  const std::byte* const seen = mover.on_device() ? copy_of_region.data() : region;
  const void* const in = mover.on_device() ? static_cast<const void*>(copy_of_in.data()) : c.in;
  const std::byte* out = seen + (static_cast<const std::byte*>(c.out) - region);
  std::size_t wrong = 0;
  const std::vector<Segment> segments = expected(c.kind, c.shape, rank, n, c.root);
  for (const Segment& s : segments) {
    const Tile tile =
        s.source < 0 ? Tile::reduced(c.dtype, op, n, seed) : Tile::input(c.dtype, nullptr, s.source, n, seed);
    wrong += tile.wrong(out, s.count, s.start);
    out += s.count * width;
  }
  const bool written = !segments.empty();
  if (!in_place || input_apart || !written) wrong += mine.wrong(in, c.shape.in, 0);  // inputs must not change
  if (!written && input_apart) wrong += count_not(seen, c.shape.out * width, kGarbage) / width;
  wrong += count_not(seen + c.shape.bytes, kGuard, kGarbage);
  return wrong;
}

}  // namespace ouro::perf

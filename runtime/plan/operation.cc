// Argument checks of collectives. See operation.h.
#include "runtime/plan/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::rt {
namespace {

std::uint64_t hash(std::span<const std::size_t> counts) {
  return XXH3_64bits(counts.data(), counts.size_bytes());
}

/// `who` is the collective, `what` its argument.
Status check_buffer(const char* who, const char* what, const void* data, std::size_t count, DType t) {
  if (static_cast<int>(t) >= kDTypes)
    return invalid(fmt::format("{}: {}: element type {} does not exist", who, what, static_cast<int>(t)));
  if (count > kMaxBytes / size_of(t))
    return invalid(fmt::format("{}: {}: {} elements of {} overflow an address", who, what, count, name(t)));
  if (count > 0 && data == nullptr)
    return invalid(fmt::format("{}: {}: null buffer with count {}", who, what, count));
  return {};
}

std::string text(Device d) {
  return d.kind == Device::Kind::host ? "the host" : fmt::format("GPU {}", d.index);
}

Status check_count(const char* who, const char* what, std::size_t found, std::size_t expected,
                   const char* rule) {
  if (found == expected) return {};
  return invalid(fmt::format("{}: {} has {} elements; expected {} ({})", who, what, found, expected, rule));
}

/// Checks the row of a neighbour collective: neighbours in ascending order, finite weights.
Status check_row(const Operation& o, int rank, int size) {
  const char* who = name(o.collective);
  const auto check_rank = [&](const char* what, int peer, int before) {
    if (peer < 0 || peer >= size)
      return invalid(
          fmt::format("{}: {} rank {}, which is not in the group (0..{})", who, what, peer, size - 1));
    if (peer == rank) return invalid(fmt::format("{}: {} this rank itself ({})", who, what, peer));
    if (peer <= before)
      return invalid(fmt::format("{}: {} rank {} after rank {}; expected them sorted, once each", who, what,
                                 peer, before));
    return Status{};
  };
  if (!std::isfinite(o.op.scalar.real))
    return invalid(fmt::format("{}: weight {} of this rank's own", who, o.op.scalar.real));
  int before = -1;
  for (const auto& [from, weight] : o.in_neighbours) {
    OURO_TRY(check_rank("takes from", from, before));
    if (!std::isfinite(weight)) return invalid(fmt::format("{}: weight {} of rank {}", who, weight, from));
    before = from;
  }
  before = -1;
  for (const int to : o.out_neighbours) {
    OURO_TRY(check_rank("gives to", to, before));
    before = to;
  }
  return {};
}

/// Checks that all used buffers are valid, on one device and of one type.
Status check_buffers(const Operation& o, int rank) {
  const char* who = name(o.collective);
  const bool reads = o.reads(rank), writes = o.writes(rank);
  if (reads) OURO_TRY(check_buffer(who, "input", o.in.data, o.in.count, o.in.dtype));
  if (writes) OURO_TRY(check_buffer(who, "output", o.out.data, o.out.count, o.out.dtype));
  if (!reads || !writes) return {};
  if (!(o.in.device == o.out.device))
    return invalid(fmt::format("{}: the input is on {}, the output on {}; expected both on one device", who,
                               text(o.in.device), text(o.out.device)));
  if (o.in.dtype != o.out.dtype)
    return invalid(fmt::format("{}: input is {}, output is {}", who, name(o.in.dtype), name(o.out.dtype)));
  return {};
}

Status check_reduction(const Operation& o) {
  const char* who = name(o.collective);
  if (static_cast<int>(o.op.kind) >= kOps)
    return invalid(fmt::format("{}: reduction {} does not exist", who, static_cast<int>(o.op.kind)));
  if (!applies(o.op.kind, o.in.dtype))
    return invalid(fmt::format("{}: {} is not defined on {}", who, name(o.op.kind), name(o.in.dtype)));
  if (o.op.kind == OpKind::premulsum && !is_float(o.in.dtype) && !o.op.scalar.whole())
    return invalid(fmt::format("{}: the factor {} of {} elements; expected an integer of 64 bits", who,
                               o.op.scalar.real, name(o.in.dtype)));
  return {};
}

/// Checks the lengths of the buffers if all blocks have one length.
Status check_lengths(const Operation& o, int rank, int size) {
  const CollectiveTraits traits = o.traits();
  const char* who = name(o.collective);
  const auto n = static_cast<std::size_t>(size);
  const bool both = o.reads(rank) && o.writes(rank);
  if (traits.in.shape == traits.out.shape) {
    if (both) OURO_TRY(check_count(who, "output", o.out.count, o.in.count, "as many as the input"));
    if (!traits.pairs() || o.in.count % n == 0) return {};
    return invalid(fmt::format("{}: {} elements cannot be cut into {} equal blocks", who, o.in.count, size));
  }
  const bool cuts = traits.in.many();  // else it joins
  const std::size_t block = cuts ? o.out.count : o.in.count;
  std::size_t blocks = 0;
  if (__builtin_mul_overflow(block, n, &blocks) || blocks > kMaxBytes)
    return invalid(fmt::format("{}: {} elements for each of {} ranks overflow an address", who, block, size));
  if (!both) return {};
  return cuts ? check_count(who, "input", o.in.count, blocks, "ranks times the output")
              : check_count(who, "output", o.out.count, blocks, "ranks times the input");
}

/// Checks the length of a buffer with one block per rank against the counts of its blocks.
Status check_blocks(const char* who, const char* buffer, std::size_t count, const char* list,
                    std::span<const std::size_t> counts, int size) {
  if (counts.size() != static_cast<std::size_t>(size))
    return invalid(fmt::format("{}: {} {} for {} ranks", who, counts.size(), list, size));
  std::size_t sum = 0;
  for (const std::size_t c : counts)
    if (__builtin_add_overflow(sum, c, &sum)) return invalid(fmt::format("{}: the {} overflow", who, list));
  if (count == sum) return {};
  return invalid(
      fmt::format("{}: {} has {} elements; expected {} (sum of the {})", who, buffer, count, sum, list));
}

/// Checks the lengths of the buffers against the lists of counts.
Status check_uneven_lengths(const Operation& o, int rank, int size) {
  const CollectiveTraits traits = o.traits();
  const char* who = name(o.collective);
  const bool pairs = traits.pairs();
  if (traits.in.many())
    OURO_TRY(check_blocks(who, "input", o.in.count, pairs ? "send counts" : "counts", o.in_counts, size));
  if (traits.out.many())
    OURO_TRY(
        check_blocks(who, "output", o.out.count, pairs ? "receive counts" : "counts", o.out_counts, size));
  const auto own = [&](std::span<const std::size_t> counts) {
    return counts[static_cast<std::size_t>(rank)];
  };
  if (pairs && own(o.in_counts) != own(o.out_counts))
    return invalid(fmt::format("{}: this rank sends {} elements to itself and expects {}", who,
                               own(o.in_counts), own(o.out_counts)));
  if (pairs) return {};
  return traits.in.many() ? check_count(who, "output", o.out.count, own(o.in_counts), "this rank's count")
                          : check_count(who, "input", o.in.count, own(o.out_counts), "this rank's count");
}

/// Checks that input and output share no memory, except in place.
Status check_overlap(const Operation& o, int rank) {
  if (!o.reads(rank) || !o.writes(rank)) return {};
  const auto in = reinterpret_cast<std::uintptr_t>(o.in.data),
             out = reinterpret_cast<std::uintptr_t>(o.out.data);
  const std::size_t read = o.in.bytes(), written = o.out.bytes();
  if (read == 0 || written == 0 || in + read <= out || out + written <= in) return {};
  // Bytes before this rank's block in the buffer that has one block per rank.
  const auto before = [&](std::size_t block) {
    if (!o.uneven) return static_cast<std::size_t>(rank) * block;
    const auto counts = o.shared_counts().first(static_cast<std::size_t>(rank));
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * size_of(o.in.dtype);
  };
  using InPlace = CollectiveTraits::InPlace;
  switch (o.traits().in_place(o.uneven)) {
    case InPlace::same:
      if (in == out) return {};
      break;
    case InPlace::block_of_in:
      if (in + before(written) == out) return {};
      break;
    case InPlace::block_of_out:
      if (out + before(read) == in) return {};
      break;
    case InPlace::none:
      break;
  }
  return invalid(
      fmt::format("{}: input and output overlap; in place is legal only where they are the same memory",
                  name(o.collective)));
}

}  // namespace

KeptOperation::KeptOperation(const Operation& o)
    : operation_(o),
      algorithm_(o.algorithm),
      in_counts_(o.in_counts.begin(), o.in_counts.end()),
      out_counts_(o.out_counts.begin(), o.out_counts.end()),
      in_neighbours_(o.in_neighbours.begin(), o.in_neighbours.end()),
      out_neighbours_(o.out_neighbours.begin(), o.out_neighbours.end()) {
  operation_.algorithm = algorithm_;
  operation_.in_counts = in_counts_;
  operation_.out_counts = out_counts_;
  operation_.in_neighbours = in_neighbours_;
  operation_.out_neighbours = out_neighbours_;
}

FusedOperation::FusedOperation(std::span<const Operation* const> operations, int rank, int size)
    : operation_(*operations.front()) {
  std::size_t total = 0;
  for (const Operation* o : operations) {
    const std::size_t count = unit_count(*o, rank, size);
    segments_.push_back(
        {static_cast<const std::byte*>(o->in.data), static_cast<std::byte*>(o->out.data), total, count});
    parts_.push_back(*o);
    total += count;
  }
  operation_.in.count = operation_.out.count = total;
  operation_.segments = segments_;
}

bool fusible(const Operation& a, const Operation& b, int rank, int size) {
  constexpr std::size_t kMost = 128 << 10;  // bytes; a larger operation deserves an algorithm of its own
  const auto alone = [&](const Operation& o) {
    return o.traits().in.shape != CollectiveTraits::Shape::region || o.traits().neighbours() ||
           !o.algorithm.empty() || on_device(o) || o.op.kind == OpKind::premulsum ||
           moves_nothing(o, rank, size) || unit_count(o, rank, size) * size_of(o.dtype(rank)) > kMost;
  };
  return !alone(a) && !alone(b) && a.collective == b.collective && a.dtype(rank) == b.dtype(rank) &&
         (!a.reduces() || a.op.kind == b.op.kind) && a.root == b.root && a.numerics == b.numerics;
}

bool depend(std::span<const Operation* const> operations, int rank) {
  struct Range {
    std::uintptr_t begin, end;
    bool written;
  };
  std::vector<Range> ranges;
  ranges.reserve(2 * operations.size());
  const auto add = [&](const void* data, std::size_t bytes, bool written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (data && bytes > 0) ranges.push_back({begin, begin + bytes, written});
  };
  for (const Operation* o : operations) {
    const std::size_t written = o->written_bytes(rank);
    if (written == 0 || o->in.data != o->out.data) add(o->in.data, o->read_bytes(rank), false);
    add(o->out.data, written, true);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::uintptr_t any = 0, written = 0;  // the greatest end of any range so far, and of a written one
  for (const Range& r : ranges) {
    if (r.begin < written || (r.written && r.begin < any)) return true;
    any = std::max(any, r.end);
    if (r.written) written = std::max(written, r.end);
  }
  return false;
}

const Device& device_of(const Operation& o) {
  return o.traits().out.owner == CollectiveTraits::Owner::root ? o.in.device : o.out.device;
}
bool on_device(const Operation& o) {
  if (o.in.device.kind == Device::Kind::host && o.out.device.kind == Device::Kind::host) return false;
  return o.collective != Collective::barrier && device_of(o).kind == Device::Kind::cuda;
}

std::size_t unit_count(const Operation& o, int rank, int size) {
  using Shape = CollectiveTraits::Shape;
  const CollectiveTraits traits = o.traits();
  const auto is_unit = [](CollectiveTraits::Side side) {
    return side.shape == Shape::region || side.shape == Shape::block;
  };
  if (is_unit(traits.in) && o.reads(rank)) return o.in.count;
  if (is_unit(traits.out)) return o.out.count;
  return traits.moves() ? o.in.count / static_cast<std::size_t>(size) : 0;
}

bool moves_nothing(const Operation& o, int rank, int size) {
  if (o.collective == Collective::barrier) return false;
  if (!o.uneven) return unit_count(o, rank, size) == 0;
  if (o.uneven_pairs()) return false;  // the counts of other ranks are not known here
  const auto counts = o.shared_counts();
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == 0;
}

arith::Wire wire_of(const Operation& o, int rank) {
  if (o.collective == Collective::barrier) return arith::Wire::moving(1);
  const DType t = o.dtype(rank);
  return o.reduces() ? arith::Wire::reducing(t, o.op.kind) : arith::Wire::moving(size_of(t));
}

Signature signature(const Operation& o, int rank, int size, bool canonical, int algorithm) {
  const auto flags = static_cast<std::uint8_t>(
      (canonical && o.reduces() ? Signature::kCanonical : 0) | (o.uneven ? Signature::kUneven : 0) |
      (o.segments.empty() ? 0 : Signature::kFused) | algorithm << Signature::kAlgorithmShift);
  std::uint64_t count = unit_count(o, rank, size);
  if (o.uneven) count = o.uneven_pairs() ? 0 : hash(o.shared_counts());
  if (!o.segments.empty()) {
    std::vector<std::size_t> counts;
    for (const Segment& s : o.segments) counts.push_back(s.count);
    count = hash(counts);
  }
  return Signature::of(o.collective, o.dtype(rank), o.reduces() ? o.op.kind : OpKind::sum,
                       wire_of(o, rank).code(), flags, o.root, count);
}

Status check(const Operation& o, int rank, int size) {
  const CollectiveTraits traits = o.traits();
  const char* who = name(o.collective);
  if (o.numerics > Numerics::canonical)
    return invalid(
        fmt::format("{}: numerics {}; expected one of Numerics", who, static_cast<int>(o.numerics)));
  if (!traits.moves()) return o.collective == Collective::barrier ? Status() : invalid("no collective");
  if (o.root < 0 || o.root >= size)
    return invalid(fmt::format("{}: root {} is not a rank of the group (0..{})", who, o.root, size - 1));
  OURO_TRY(check_buffers(o, rank));
  if (traits.reduces()) OURO_TRY(check_reduction(o));
  if (traits.neighbours()) OURO_TRY(check_row(o, rank, size));
  if (o.reads(rank) && !traits.takes(o.in.dtype))
    return invalid(fmt::format("{}: it is not defined on {}; expected half, bfloat16, float or double", who,
                               name(o.in.dtype)));
  if (o.uneven && traits.counts != CollectiveTraits::Counts::lists)
    return invalid(fmt::format("{}: its blocks cannot be uneven", who));
  OURO_TRY(o.uneven ? check_uneven_lengths(o, rank, size) : check_lengths(o, rank, size));
  return check_overlap(o, rank);
}

}  // namespace ouro::rt

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

Result<std::size_t> total(const char* who, const char* what, std::span<const std::size_t> counts, int size) {
  if (counts.size() != static_cast<std::size_t>(size))
    return invalid(fmt::format("{}: {} {} for {} ranks", who, counts.size(), what, size));
  std::size_t sum = 0;
  for (std::size_t c : counts)
    if (__builtin_add_overflow(sum, c, &sum)) return invalid(fmt::format("{}: the {} overflow", who, what));
  return sum;
}

/// Input and output may overlap only if `legal_in` and `legal_out` are the same address.
Status check_overlap(const Operation& o, const void* legal_in, const void* legal_out) {
  const auto i = reinterpret_cast<std::uintptr_t>(o.in.data),
             j = reinterpret_cast<std::uintptr_t>(o.out.data);
  if (o.in.bytes() == 0 || o.out.bytes() == 0 || i + o.in.bytes() <= j || j + o.out.bytes() <= i) return {};
  if (legal_in == legal_out) return {};
  return invalid(
      fmt::format("{}: input and output overlap; in place is legal only where they are the same memory",
                  name(o.collective)));
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
    return (o.collective != Collective::all_reduce && o.collective != Collective::broadcast &&
            o.collective != Collective::reduce) ||
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
  if (o.collective == Collective::all_to_all) return false;  // the counts of other ranks are not known here
  const auto& counts = o.collective == Collective::all_gather ? o.out_counts : o.in_counts;
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
  if (o.uneven)
    count = o.collective == Collective::all_to_all
                ? 0
                : hash(o.collective == Collective::all_gather ? o.out_counts : o.in_counts);
  if (!o.segments.empty()) {
    std::vector<std::size_t> counts;
    for (const Segment& s : o.segments) counts.push_back(s.count);
    count = hash(counts);
  }
  return Signature::of(o.collective, o.dtype(rank), o.reduces() ? o.op.kind : OpKind::sum,
                       wire_of(o, rank).code(), flags, o.root, count);
}

Status check(const Operation& o, int rank, int size) {
  const auto n = static_cast<std::size_t>(size);
  const char* who = name(o.collective);
  if (o.numerics > Numerics::canonical)
    return invalid(
        fmt::format("{}: numerics {}; expected one of Numerics", who, static_cast<int>(o.numerics)));
  if (o.collective == Collective::barrier) return {};
  if (o.root < 0 || o.root >= size)
    return invalid(fmt::format("{}: root {} is not a rank of the group (0..{})", who, o.root, size - 1));
  const bool reads = o.reads(rank), writes = o.writes(rank);
  if (reads) OURO_TRY(check_buffer(who, "input", o.in.data, o.in.count, o.in.dtype));
  if (writes) OURO_TRY(check_buffer(who, "output", o.out.data, o.out.count, o.out.dtype));
  if (reads && writes && !(o.in.device == o.out.device))
    return invalid(fmt::format("{}: the input is on {}, the output on {}; expected both on one device", who,
                               text(o.in.device), text(o.out.device)));
  if (reads && writes && o.in.dtype != o.out.dtype)
    return invalid(fmt::format("{}: input is {}, output is {}", who, name(o.in.dtype), name(o.out.dtype)));
  if (o.reduces()) {
    if (static_cast<int>(o.op.kind) >= kOps)
      return invalid(fmt::format("{}: reduction {} does not exist", who, static_cast<int>(o.op.kind)));
    if (!applies(o.op.kind, o.in.dtype))
      return invalid(fmt::format("{}: {} is not defined on {}", who, name(o.op.kind), name(o.in.dtype)));
    if (o.op.kind == OpKind::premulsum && !is_float(o.in.dtype) && !o.op.scalar.whole())
      return invalid(fmt::format("{}: the factor {} of {} elements; expected an integer of 64 bits", who,
                                 o.op.scalar.real, name(o.in.dtype)));
  }
  const auto* in = static_cast<const std::byte*>(o.in.data);
  const auto* out = static_cast<const std::byte*>(o.out.data);
  const auto times = [&](std::size_t count, std::size_t* product) {
    if (__builtin_mul_overflow(count, n, product) || *product > kMaxBytes)
      return invalid(
          fmt::format("{}: {} elements for each of {} ranks overflow an address", who, count, size));
    return Status{};
  };
  std::size_t expected = 0;
  if (o.traits().neighbours()) OURO_TRY(check_row(o, rank, size));
  if (reads && !o.traits().takes(o.in.dtype))
    return invalid(fmt::format("{}: it is not defined on {}; expected half, bfloat16, float or double", who,
                               name(o.in.dtype)));
  if (o.traits().in.shape == CollectiveTraits::Shape::region) {
    if (!reads || !writes) return {};
    OURO_TRY(check_count(who, "output", o.out.count, o.in.count, "as many as the input"));
    return check_overlap(o, in, out);
  }
  switch (o.collective) {
    case Collective::reduce_scatter: {
      std::size_t before = 0;
      if (o.uneven) {
        auto sum = total(who, "counts", o.in_counts, size);
        if (!sum.ok()) return sum.status();
        OURO_TRY(check_count(who, "input", o.in.count, *sum, "sum of the counts"));
        OURO_TRY(check_count(who, "output", o.out.count, o.in_counts[static_cast<std::size_t>(rank)],
                             "this rank's count"));
        before = std::accumulate(o.in_counts.begin(), o.in_counts.begin() + rank, std::size_t{0});
      } else {
        OURO_TRY(times(o.out.count, &expected));
        OURO_TRY(check_count(who, "input", o.in.count, expected, "ranks times the output"));
        before = static_cast<std::size_t>(rank) * o.out.count;
      }
      return check_overlap(o, in + before * size_of(o.in.dtype), out);
    }
    case Collective::all_gather: {
      std::size_t before = 0;
      if (o.uneven) {
        auto sum = total(who, "counts", o.out_counts, size);
        if (!sum.ok()) return sum.status();
        OURO_TRY(check_count(who, "output", o.out.count, *sum, "sum of the counts"));
        OURO_TRY(check_count(who, "input", o.in.count, o.out_counts[static_cast<std::size_t>(rank)],
                             "this rank's count"));
        before = std::accumulate(o.out_counts.begin(), o.out_counts.begin() + rank, std::size_t{0});
      } else {
        OURO_TRY(times(o.in.count, &expected));
        OURO_TRY(check_count(who, "output", o.out.count, expected, "ranks times the input"));
        before = static_cast<std::size_t>(rank) * o.in.count;
      }
      return check_overlap(o, in, out + before * size_of(o.in.dtype));
    }
    case Collective::gather:
      OURO_TRY(times(o.in.count, &expected));
      if (!writes) return {};
      OURO_TRY(check_count(who, "output", o.out.count, expected, "ranks times the input"));
      return check_overlap(o, in, out + static_cast<std::size_t>(rank) * o.in.bytes());
    case Collective::scatter:
      OURO_TRY(times(o.out.count, &expected));
      if (!reads) return {};
      OURO_TRY(check_count(who, "input", o.in.count, expected, "ranks times the output"));
      return check_overlap(o, in + static_cast<std::size_t>(rank) * o.out.bytes(), out);
    case Collective::all_to_all:
      if (o.uneven) {
        auto sent = total(who, "send counts", o.in_counts, size),
             received = total(who, "receive counts", o.out_counts, size);
        if (!sent.ok()) return sent.status();
        if (!received.ok()) return received.status();
        OURO_TRY(check_count(who, "input", o.in.count, *sent, "sum of the send counts"));
        OURO_TRY(check_count(who, "output", o.out.count, *received, "sum of the receive counts"));
        if (o.in_counts[static_cast<std::size_t>(rank)] != o.out_counts[static_cast<std::size_t>(rank)])
          return invalid(fmt::format("all_to_all: this rank sends {} elements to itself and expects {}",
                                     o.in_counts[static_cast<std::size_t>(rank)],
                                     o.out_counts[static_cast<std::size_t>(rank)]));
        // Blocks move in order of arrival, so an aliased block could be overwritten before it has been sent.
        return check_overlap(o, in, nullptr);
      }
      OURO_TRY(check_count(who, "output", o.out.count, o.in.count, "as many as the input"));
      if (o.in.count % n != 0)
        return invalid(
            fmt::format("all_to_all: {} elements cannot be cut into {} equal blocks", o.in.count, size));
      return check_overlap(o, in, out);
    default:
      return invalid("no collective");
  }
}

}  // namespace ouro::rt

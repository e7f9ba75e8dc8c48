// Element loops of the resident kernels: the work of the threads of one block on one chunk. Values and orders
// are those of kernels/host/host_loops.h. Used by resident_body.h.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/arith/reduce.h"
#include "kernels/arith/wire.h"
#include "kernels/gpu/access.h"
#include "runtime/core/hd.h"
#include "runtime/core/types.h"

namespace ouro::gpu {

/// A place in memory that a job reads or writes, if `there`. The flag is separate from the address so that a
/// compiler that knows the step knows the flag.
template <class Byte>
struct Place {
  Byte* at = nullptr;
  bool there = false;
};
using Source = Place<const std::byte>;
using Sink = Place<std::byte>;

/// value = weight * wide (+) also_wide (+) narrow (+) many[0] (+) many[1] ..., left to right, of those
/// sources that are set; the value is written to all sinks that are set. Wide: accumulators, not yet rounded;
/// narrow: elements, finished. A source may be exactly a sink.
struct ResidentJob {
  Source wide, also_wide, narrow;
  const std::byte* const* many = nullptr;
  int many_count = 0;
  const Scalar* factor = nullptr;  // of narrow, or of many[i]; premulsum only
  double weight = 1;
  int ranks = 1;  // number of contributions; avg divides by it
  Sink store;     // narrow
  Sink keep;      // wide
  Sink send;      // wide or narrow
  bool send_wide = false;
  std::byte* const* multicast = nullptr;  // narrow: into the buffers of all ranks, at offset multicast_at
  bool multicasts = false;
  std::uint64_t multicast_at = 0;
  int multicast_first =
      0;  // rank with which reduce_many begins, so that the ranks do not all write to the same one at once
  std::uint64_t count = 0;
};

struct alignas(16) Bytes16 {
  std::uint64_t half[2];
};

OURO_HD bool aligned_to(const void* p, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) & (bytes - 1)) == 0;
}

/// Addresses must be multiples of the size of T. Others fault on a device; on the host, loads give zeros and
/// stores do nothing, so that tests detect them.
template <class T>
OURO_HD T load_at(const std::byte* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(p);
#else
  T x = {};
  if (!aligned_to(p, sizeof(T))) return x;
  __builtin_memcpy(&x, p, sizeof(T));
  return x;
#endif
}
template <class T>
OURO_HD void store_at(std::byte* p, const T& x) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(p) = x;
#else
  if (aligned_to(p, sizeof(T))) __builtin_memcpy(p, &x, sizeof(T));
#endif
}
/// The same at any address: unaligned values are moved byte by byte.
template <class T>
OURO_HD T load_anywhere(const std::byte* p) {
  if (aligned_to(p, sizeof(T))) return load_at<T>(p);
  T x;
  auto* const bytes = reinterpret_cast<std::byte*>(&x);
  OURO_UNROLL for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = p[i];
  return x;
}
template <class T>
OURO_HD void store_anywhere(std::byte* p, const T& x) {
  if (aligned_to(p, sizeof(T))) return store_at(p, x);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&x);
  OURO_UNROLL for (std::size_t i = 0; i < sizeof(T); ++i) p[i] = bytes[i];
}

/// kWidth consecutive values, moved in the 16-byte units of their memory; or one value, at any address.
template <class T, int kWidth>
struct Group {
  static constexpr int kUnits = kWidth * static_cast<int>(sizeof(T)) / 16;
  union {
    T value[kWidth];
    Bytes16 unit[kUnits > 0 ? kUnits : 1];
  };
  OURO_HD Group() : value{} {}  // threads past the end compute with zeros and store nothing
  OURO_HD void load(const std::byte* array, std::uint64_t group) {
    const std::byte* const p = array + group * sizeof(T) * kWidth;
    if constexpr (kWidth == 1) {
      value[0] = load_anywhere<T>(p);
    } else {
      OURO_UNROLL for (int u = 0; u < kUnits; ++u) unit[u] = load_at<Bytes16>(p + 16 * u);
    }
  }
  OURO_HD void store(std::byte* array, std::uint64_t group) const {
    std::byte* const p = array + group * sizeof(T) * kWidth;
    if constexpr (kWidth == 1) {
      store_anywhere(p, value[0]);
    } else {
      OURO_UNROLL for (int u = 0; u < kUnits; ++u) store_at(p + 16 * u, unit[u]);
    }
  }
};

/// Calls f(0), ..., f(kCount - 1), unrolled, so that arrays indexed by the argument are kept in registers.
template <int kCount, class F>
OURO_HD void unrolled(F&& f) {
  OURO_UNROLL
  for (int i = 0; i < kCount; ++i) f(i);
}

/// Processes groups [begin, end) of the job. A thread has kAtOnce groups in flight, so that their
/// loads overlap.
template <class R, int kWidth, int kAtOnce, class Block>
OURO_HD void reduce_groups(const Block& b, const ResidentJob& job, std::uint64_t begin, std::uint64_t end) {
  using A = typename R::Acc;
  const auto stride = static_cast<std::uint64_t>(b.threads());
  const int inputs = job.narrow.there ? 1 : job.many_count;
  const bool send_narrow = job.send.there && !job.send_wide, send_wide = job.send.there && job.send_wide;
  for (std::uint64_t first = begin + static_cast<std::uint64_t>(b.thread()); first < end;
       first += stride * kAtOnce) {
    Group<A, kWidth> sum[kAtOnce];
    Group<typename R::Element, kWidth> x[kAtOnce];
    const auto groups = [&](auto&& f) {  // f(index of the group in registers, its position in memory)
      unrolled<kAtOnce>([&](int u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride;
        if (at < end) f(u, at);
      });
    };
    const auto values = [&](auto&& f) {
      unrolled<kAtOnce>([&](int u) { unrolled<kWidth>([&](int i) { f(u, i); }); });
    };
    const auto load_input = [&](int k) {
      const std::byte* const from = job.narrow.there ? job.narrow.at : job.many[k];
      groups([&](int u, std::uint64_t at) { x[u].load(from, at); });
    };
    const auto factor = [&](int k) {
      if constexpr (R::kScaled)
        return R::factor(job.factor[k]);
      else
        return static_cast<void>(k), A{};
    };
    // Each load is issued before the result of the one before it is used.
    int k = 0;
    if (job.wide.there) {
      groups([&](int u, std::uint64_t at) { sum[u].load(job.wide.at, at); });
      if (inputs > 0) load_input(0);
      if (job.weight != 1)
        values([&](int u, int i) { sum[u].value[i] = arith::weigh(sum[u].value[i], job.weight); });
      if (job.also_wide.there) {
        Group<A, kWidth> other[kAtOnce];
        groups([&](int u, std::uint64_t at) { other[u].load(job.also_wide.at, at); });
        values([&](int u, int i) { sum[u].value[i] = R::combine(sum[u].value[i], other[u].value[i]); });
      }
    } else {
      load_input(0);
      const A by = factor(0);
      values([&](int u, int i) { sum[u].value[i] = collect::lift<R>(x[u].value[i], by); });
      k = 1;
      if (k < inputs) load_input(k);
    }
    while (k < inputs) {
      const A by = factor(k);
      values([&](int u, int i) {
        sum[u].value[i] = R::combine(sum[u].value[i], collect::lift<R>(x[u].value[i], by));
      });
      if (++k < inputs) load_input(k);
    }
    if (job.store.there || job.multicasts || send_narrow) {
      values([&](int u, int i) { x[u].value[i] = collect::finish<R>(sum[u].value[i], job.ranks); });
      groups([&](int u, std::uint64_t at) {
        if (job.store.there) x[u].store(job.store.at, at);
        if (send_narrow) x[u].store(job.send.at, at);
        if (job.multicasts)
          for (int r = 0; r < job.ranks; ++r) x[u].store(job.multicast[r] + job.multicast_at, at);
      });
    }
    if (job.keep.there || send_wide) {
      values([&](int u, int i) { sum[u].value[i] = arith::settle(sum[u].value[i]); });
      groups([&](int u, std::uint64_t at) {
        if (job.keep.there) sum[u].store(job.keep.at, at);
        if (send_wide) sum[u].store(job.send.at, at);
      });
    }
  }
}

/// Whether all addresses are multiples of 16 bytes.
OURO_HD bool lies_in_units(const ResidentJob& job) {
  std::uintptr_t bits = 0;
  const auto check = [&](const void* p, bool there) {
    if (there) bits |= reinterpret_cast<std::uintptr_t>(p);
  };
  check(job.wide.at, job.wide.there), check(job.also_wide.at, job.also_wide.there);
  check(job.narrow.at, job.narrow.there);
  for (int k = 0; k < job.many_count; ++k) check(job.many[k], true);
  check(job.store.at, job.store.there), check(job.keep.at, job.keep.there),
      check(job.send.at, job.send.there);
  for (int r = 0; job.multicasts && r < job.ranks; ++r) check(job.multicast[r] + job.multicast_at, true);
  return bits % 16 == 0;
}

/// Groups of 16 bytes of elements if all addresses are multiples of 16 bytes, single elements otherwise and
/// for the rest.
template <class R, int kAtOnce, class Block>
OURO_HD void reduce_elements(const Block& b, const ResidentJob& job) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(typename R::Element));
  const std::uint64_t groups = lies_in_units(job) ? job.count / kWidth : 0;
  reduce_groups<R, kWidth, kAtOnce>(b, job, 0, groups);
  reduce_groups<R, 1, 1>(b, job, groups * kWidth, job.count);
}

// ---- which reduction ------------------------------------------------------------------------------

/// A reduction that is known at compile time.
template <class R>
struct Hot {
  static constexpr bool kReduces = true;
  static constexpr int kAtOnce = sizeof(typename R::Element) < 4 ? 2 : 4;  // 64 bytes of each wide source
  OURO_HD static constexpr std::uint64_t element() { return sizeof(typename R::Element); }
  OURO_HD static constexpr std::uint64_t accumulator() { return sizeof(typename R::Acc); }
  template <class Block>
  OURO_HD void reduce(const Block& b, const ResidentJob& job) const {
    reduce_elements<R, kAtOnce>(b, job);
  }
};

/// Nothing is reduced; an element has `bytes` bytes.
struct Moved {
  static constexpr bool kReduces = false;
  std::uint64_t bytes;
  OURO_HD std::uint64_t element() const { return bytes; }
  OURO_HD std::uint64_t accumulator() const { return bytes; }
};

template <class R>
inline constexpr bool kPacked = false;
template <>
inline constexpr bool kPacked<arith::Sum<float>> = true;
template <>
inline constexpr bool kPacked<arith::Avg<float>> = true;
template <>
inline constexpr bool kPacked<arith::Sum<arith::BFloat16>> = true;
template <>
inline constexpr bool kPacked<arith::Avg<arith::BFloat16>> = true;
template <>
inline constexpr bool kPacked<arith::Sum<arith::Half>> = true;
template <>
inline constexpr bool kPacked<arith::Avg<arith::Half>> = true;

/// The element types that a kernel is compiled for; all of them together take more than a minute to build.
/// Those of `all` only fold: their jobs have the sources `many` and the sink `store`.
enum class ColdTypes : std::uint8_t { all, floats, integers };

template <class R, class Block>
OURO_HD void reduce_inlined(const Block& b, const ResidentJob& job) {
  if constexpr (kPacked<R>)
    reduce_elements<R, 2>(b, job);
  else
    reduce_groups<R, 1, 1>(b, job, 0, job.count);
}
/// It is not inlined, so there is one copy for all flows. Packed: the reductions that training is
/// likely to use.
template <class R, ColdTypes kTypes, class Block>
OURO_HD_OUTLINE void reduce_cold(const Block& b, const ResidentJob& job) {
  if constexpr (kTypes == ColdTypes::all) {
    ResidentJob fold;  // so that the compiler knows which sources and sinks there are
    fold.many = job.many, fold.many_count = job.many_count, fold.factor = job.factor, fold.ranks = job.ranks;
    fold.store = {job.store.at, true};
    fold.count = job.count;
    reduce_inlined<R>(b, fold);
  } else {
    reduce_inlined<R>(b, job);
  }
}

/// The representative of all types that compute the same bits: wrapping arithmetic ignores the sign.
constexpr DType same_bits(DType t, OpKind op) {
  if (op == OpKind::max || op == OpKind::min || op == OpKind::avg) return t;
  switch (t) {
    case DType::i8:
      return DType::u8;
    case DType::i16:
      return DType::u16;
    case DType::i32:
      return DType::u32;
    case DType::i64:
      return DType::u64;
    default:
      return t;
  }
}

template <DType kType, OpKind kOp, ColdTypes kTypes, class Block>
OURO_HD void reduce_case(const Block& b, const ResidentJob& job) {
  if constexpr (applies(kOp, kType))
    reduce_cold<arith::ReductionFor<same_bits(kType, kOp), kOp>, kTypes>(b, job);
}
template <DType kType, ColdTypes kTypes, class Block>
OURO_HD_OUTLINE void reduce_type(const Block& b, OpKind op, const ResidentJob& job) {
  switch (op) {
#define OURO_X(e, n) \
  case OpKind::e:    \
    return reduce_case<kType, OpKind::e, kTypes>(b, job);
    OURO_OPS(OURO_X)
#undef OURO_X
  }
}

template <DType kType, OpKind kOp>
constexpr bool accumulator_agrees() {
  if constexpr (applies(kOp, kType))
    return arith::accumulator_bytes(kType, kOp) == sizeof(typename arith::ReductionFor<kType, kOp>::Acc);
  else
    return true;
}
template <std::size_t... I>
constexpr bool accumulators_agree(std::index_sequence<I...>) {
  return (accumulator_agrees<static_cast<DType>(I / kOps), static_cast<OpKind>(I % kOps)>() && ...);
}
static_assert(accumulators_agree(std::make_index_sequence<kDTypes * kOps>()));

/// Any reduction of these types, chosen at run time; `resident` has checked that the op applies to the type.
template <ColdTypes kTypes>
struct Cold {
  static constexpr bool kReduces = true;
  OURO_HD Cold(DType type, OpKind kind)
      : dtype(type),
        op(kind),
        element_bytes(size_of(type)),
        accumulator_bytes(arith::accumulator_bytes(type, kind)) {}
  DType dtype;
  OpKind op;
  // They are kept, since each is a switch over all types.
  std::uint64_t element_bytes, accumulator_bytes;
  OURO_HD std::uint64_t element() const { return element_bytes; }
  OURO_HD std::uint64_t accumulator() const { return accumulator_bytes; }
  template <class Block>
  OURO_HD_OUTLINE void reduce(const Block& b, const ResidentJob& job) const {
    switch (dtype) {
#define OURO_X(e, bytes, n)                                                                        \
  case DType::e:                                                                                   \
    if constexpr (kTypes == ColdTypes::all || is_float(DType::e) == (kTypes == ColdTypes::floats)) \
      return reduce_type<DType::e, kTypes>(b, op, job);                                            \
    return;
      OURO_DTYPES(OURO_X)
#undef OURO_X
    }
  }
};

// ---- movement -------------------------------------------------------------------------------------

template <class Unit, class Block, class Each>
OURO_HD std::uint64_t copy_units(const Block& b, std::uint64_t begin, std::uint64_t bytes,
                                 const std::byte* from, Each&& each) {
  constexpr int kAtOnce = 4;
  const std::uint64_t end = bytes / sizeof(Unit) * sizeof(Unit);
  const std::uint64_t stride = static_cast<std::uint64_t>(b.threads()) * sizeof(Unit);
  std::uint64_t first = begin + static_cast<std::uint64_t>(b.thread()) * sizeof(Unit);
  for (; first < end; first += stride * kAtOnce) {
    Unit x[kAtOnce] = {};
    const auto units = [&](auto&& f) {  // f(index of the unit in registers, its position in memory)
      unrolled<kAtOnce>([&](int u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride;
        if (at < end) f(u, at);
      });
    };
    units([&](int u, std::uint64_t at) { x[u] = load_at<Unit>(from + at); });
    units([&](int u, std::uint64_t at) { each(at, x[u]); });
  }
  return end > begin ? end : begin;
}

/// Calls each(offset, unit) for all units of `from`, in the widest units that `alignment` (the addresses,
/// ORed together) allows.
template <class Block, class Each>
OURO_HD void copy_to(const Block& b, std::uintptr_t alignment, std::uint64_t bytes, const std::byte* from,
                     Each&& each) {
  std::uint64_t done = 0;
  if ((alignment & 15) == 0) done = copy_units<Bytes16>(b, done, bytes, from, each);
  if ((alignment & 3) == 0) done = copy_units<std::uint32_t>(b, done, bytes, from, each);
  if ((alignment & 1) == 0) done = copy_units<std::uint16_t>(b, done, bytes, from, each);
  copy_units<std::uint8_t>(b, done, bytes, from, each);
}

/// Copies to one or two places. Either may be `from`; the second may be null.
template <class Block>
OURO_HD void copy_bytes(const Block& b, std::byte* to, std::byte* also, const std::byte* from,
                        std::uint64_t bytes) {
  if (also == nullptr && to == from) return;
  const auto bits = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); };
  copy_to(b, bits(to) | bits(also) | bits(from), bytes, from, [&](std::uint64_t i, const auto& unit) {
    store_at(to + i, unit);
    if (also != nullptr) store_at(also + i, unit);
  });
}

}  // namespace ouro::gpu

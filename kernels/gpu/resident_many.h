// How the kernels by pointer fold the inputs of all ranks: eight loads of a thread are in flight at once,
// since each takes a round trip to another device. Used by resident_list.h.
#pragma once
#include "kernels/gpu/resident_loops.h"

namespace ouro::gpu {

/// Folds groups [begin, end) of a job of many inputs, in rank order: kInputs of them at a time, of kAtOnce
/// groups. kAll: there are no more inputs than that, so no sum waits in registers for the next ones.
template <class R, int kWidth, int kInputs, int kAtOnce, bool kAll, class Block>
OURO_HD void reduce_many(const Block& b, const ResidentJob& job, std::uint64_t begin, std::uint64_t end) {
  using A = typename R::Acc;
  static_assert(!R::kScaled);
  const int many = job.many_count;
  const auto stride = static_cast<std::uint64_t>(b.threads());
  for (std::uint64_t at = begin + static_cast<std::uint64_t>(b.thread()); at < end; at += stride * kAtOnce) {
    Group<A, kWidth> sum[kAll ? 1 : kAtOnce];
    Group<typename R::Element, kWidth> out[kAtOnce];
    const auto place = [&](int u) { return at + static_cast<std::uint64_t>(u) * stride; };
    const auto finish = [&](int u) {
      unrolled<kWidth>(
          [&](int i) { out[u].value[i] = collect::finish<R>(sum[kAll ? 0 : u].value[i], job.ranks); });
    };
    const auto fold = [&](int first, auto all) {
      const auto has = [&](int k, int u) { return all || (first + k < many && place(u) < end); };
      Group<typename R::Element, kWidth> x[kInputs][kAtOnce];
      unrolled<kInputs>([&](int k) {
        unrolled<kAtOnce>([&](int u) {
          if (has(k, u)) x[k][u].load(job.many[first + k], place(u));
        });
      });
      unrolled<kAtOnce>([&](int u) {
        unrolled<kInputs>([&](int k) {
          if (!has(k, u)) return;
          unrolled<kWidth>([&](int i) {
            A& to = sum[kAll ? 0 : u].value[i];
            const A mine = collect::lift<R>(x[k][u].value[i], A{});
            to = first + k == 0 ? mine : R::combine(to, mine);
          });
        });
        if (kAll) finish(u);
      });
    };
    // Without conditions the compiler issues all loads before it uses the first.
    const bool whole = place(kAtOnce - 1) < end;
    for (int first = 0; first < (kAll ? 1 : many); first += kInputs)
      if (whole && first + kInputs <= many)
        fold(first, std::true_type{});
      else
        fold(first, std::false_type{});
    unrolled<kAtOnce>([&](int u) {
      if (place(u) >= end) return;
      if (!kAll) finish(u);
      if (job.store.there) out[u].store(job.store.at, place(u));
      for (int d = 0; job.multicasts && d < job.ranks; ++d) {
        const int r = job.multicast_first + d;
        out[u].store(job.multicast[r < job.ranks ? r : r - job.ranks] + job.multicast_at, place(u));
      }
    });
  }
}

/// A reduction, known at compile time, of the inputs of all ranks.
template <class R>
struct HotMany : Hot<R> {
  template <class Block>
  OURO_HD void reduce(const Block& b, const ResidentJob& job) const {
    constexpr int kWidth = 16 / static_cast<int>(sizeof(typename R::Element));
    if (job.many == nullptr) return reduce_groups<R, 1, 1>(b, job, 0, job.count);  // one rank
    const std::uint64_t groups = lies_in_units(job) ? job.count / kWidth : 0;
    // With these numbers, eight loads of a thread are in flight with 2, 4 and 8 inputs.
    if (job.many_count <= 2)
      reduce_many<R, kWidth, 2, 4, true>(b, job, 0, groups);
    else if (job.many_count <= 4)
      reduce_many<R, kWidth, 4, 2, true>(b, job, 0, groups);
    else
      reduce_many<R, kWidth, 8, 1, false>(b, job, 0, groups);
    reduce_many<R, 1, 8, 1, false>(b, job, groups * kWidth, job.count);
  }
};

}  // namespace ouro::gpu

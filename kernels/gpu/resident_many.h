// How the kernels by pointer fold the inputs of all ranks: eight loads of a thread are in flight at once,
// since each takes a round trip to another device. Used by resident_list.h.
#pragma once
#include "kernels/gpu/resident_loops.h"

namespace ouro::gpu {

/// Folds groups [begin, end) of a job of many inputs, in rank order: kInputs of them at a time, of kAtOnce
/// groups.
template <class R, int kWidth, int kInputs, int kAtOnce, class Block>
OURO_HD void reduce_many(const Block& b, const ResidentJob& job, std::uint64_t begin, std::uint64_t end) {
  using A = typename R::Acc;
  static_assert(!R::kScaled);
  const int many = job.many_count;
  const auto stride = static_cast<std::uint64_t>(b.threads());
  for (std::uint64_t at = begin + static_cast<std::uint64_t>(b.thread()); at < end; at += stride * kAtOnce) {
    Group<A, kWidth> sum[kAtOnce];
    const auto fold = [&](int first, auto all, int inputs) {
      Group<typename R::Element, kWidth> x[kInputs][kAtOnce];
      const auto each = [&](auto&& f) {
        unrolled<kInputs>([&](int k) {
          unrolled<kAtOnce>([&](int u) {
            if (all || (k < inputs && at + static_cast<std::uint64_t>(u) * stride < end)) f(k, u);
          });
        });
      };
      each([&](int k, int u) {
        x[k][u].load(job.many[first + k], at + static_cast<std::uint64_t>(u) * stride);
      });
      each([&](int k, int u) {
        unrolled<kWidth>([&](int i) {
          const A mine = collect::lift<R>(x[k][u].value[i], A{});
          sum[u].value[i] = first + k == 0 ? mine : R::combine(sum[u].value[i], mine);
        });
      });
    };
    // Without conditions the compiler issues all loads before it uses the first.
    const bool whole = at + stride * (kAtOnce - 1) < end;
    for (int first = 0; first < many; first += kInputs)
      if (whole && first + kInputs <= many)
        fold(first, std::true_type{}, kInputs);
      else
        fold(first, std::false_type{}, many - first);
    unrolled<kAtOnce>([&](int u) {
      const std::uint64_t here = at + static_cast<std::uint64_t>(u) * stride;
      if (here >= end) return;
      Group<typename R::Element, kWidth> out;
      unrolled<kWidth>([&](int i) { out.value[i] = collect::finish<R>(sum[u].value[i], job.ranks); });
      if (job.store.there) out.store(job.store.at, here);
      for (int d = 0; job.multicasts && d < job.ranks; ++d) {
        const int r = job.multicast_first + d;
        out.store(job.multicast[r < job.ranks ? r : r - job.ranks] + job.multicast_at, here);
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
    // Eight loads of a thread are in flight, however few the inputs.
    if (job.many_count <= 2)
      reduce_many<R, kWidth, 2, 4>(b, job, 0, groups);
    else if (job.many_count < 8)
      reduce_many<R, kWidth, 4, 2>(b, job, 0, groups);
    else
      reduce_many<R, kWidth, 8, 1>(b, job, 0, groups);
    reduce_many<R, 1, 8, 1>(b, job, groups * kWidth, job.count);
  }
};

}  // namespace ouro::gpu

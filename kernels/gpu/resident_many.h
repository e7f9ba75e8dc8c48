// How the kernels by pointer fold the inputs of all ranks: the loads of eight of them are in flight at once,
// since each takes a round trip to another device. Used by resident_list.h.
#pragma once
#include "kernels/gpu/resident_loops.h"

namespace ouro::gpu {

/// Folds groups [begin, end) of a job of many inputs, in rank order.
template <class R, int kWidth, class Block>
OURO_HD void reduce_many(const Block& b, const ResidentJob& job, std::uint64_t begin, std::uint64_t end) {
  using A = typename R::Acc;
  static_assert(!R::kScaled);
  constexpr int kInputs = 8;
  const int many = job.many_count;
  for (std::uint64_t at = begin + static_cast<std::uint64_t>(b.thread()); at < end;
       at += static_cast<std::uint64_t>(b.threads())) {
    Group<A, kWidth> sum;
    for (int first = 0; first < many; first += kInputs) {
      Group<typename R::Element, kWidth> x[kInputs];
      unrolled<kInputs>([&](int k) {
        if (first + k < many) x[k].load(job.many[first + k], at);
      });
      unrolled<kInputs>([&](int k) {
        if (first + k >= many) return;
        unrolled<kWidth>([&](int i) {
          const A mine = collect::lift<R>(x[k].value[i], A{});
          sum.value[i] = first + k == 0 ? mine : R::combine(sum.value[i], mine);
        });
      });
    }
    Group<typename R::Element, kWidth> out;
    unrolled<kWidth>([&](int i) { out.value[i] = collect::finish<R>(sum.value[i], job.ranks); });
    if (job.store.there) out.store(job.store.at, at);
    for (int d = 0; job.multicasts && d < job.ranks; ++d) {
      const int r = job.multicast_first + d;
      out.store(job.multicast[r < job.ranks ? r : r - job.ranks] + job.multicast_at, at);
    }
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
    reduce_many<R, kWidth>(b, job, 0, groups);
    reduce_many<R, 1>(b, job, groups * kWidth, job.count);
  }
};

}  // namespace ouro::gpu

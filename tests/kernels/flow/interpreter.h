// Runs a staged flow for all ranks in one thread, on plain arrays: the reference result, bit for bit, for any
// other execution of the flow. The oracle of the differential tests of specialisations.
#pragma once
#include <cassert>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/flow/geometry.h"
#include "kernels/host/host_loops.h"
#include "runtime/core/collectives.h"

namespace ouro::flow {

using Bytes = std::vector<std::byte>;

/// An operation of all ranks with even counts. `in` is indexed by rank, empty if a rank's input is not used.
struct Interpreted {
  Collective collective = Collective::none;
  DType dtype = DType::f32;
  OpKind op = OpKind::sum;
  int ranks = 1, root = 0;
  std::uint64_t unit = 0;      ///< elements of the region, or of one block
  std::uint64_t capacity = 1;  ///< elements of a chunk in one round: determines the number of rounds
  std::vector<Bytes> in;
  std::vector<Scalar> premul;
};

template <class Flow>
class Interpreter {
  static_assert(Flow::kStaging && Flow::kPipelined && !Flow::kByReference, "staged flows only");

 public:
  Interpreter(const Flow& flow, const Interpreted& o)
      : o_(o), traits_(traits_of(o.collective)), elem_(size_of(o.dtype)) {
    cut_ = {.blocks = traits_.blocks(),
            .pipelined = true,
            .per_round = flow.chunks({0, o.ranks, o.root, 1}),
            .total = o.unit,
            .capacity = o.capacity};
    cut_.cut(1);
    for (int r = 0; r < o.ranks; ++r) {
      ranks_.emplace_back();
      ranks_.back().posts.resize(static_cast<std::size_t>(cut_.rounds));
      if (traits_.out.counts(r, o.root))
        ranks_.back().out.resize(traits_.out.elements(o.unit, o.ranks) * elem_, std::byte{0xcd});
      flow({r, o.ranks, o.root, cut_.rounds}, [&](const Step& s) { ranks_.back().steps.push_back(s); });
    }
  }

  int rounds() const { return cut_.rounds; }
  /// Returns the outputs by rank, empty if they are not used. Ranks take turns; a step that has to wait for a
  /// post is retried later.
  std::vector<Bytes> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < o_.ranks; ++r)
        for (Rank& me = ranks_[index(r)]; me.next < me.steps.size() && hop(r, me.steps[me.next]); ++me.next)
          progress = true;
    }
    std::vector<Bytes> out;
    for (Rank& rank : ranks_) {
      assert(rank.next == rank.steps.size());
      out.push_back(std::move(rank.out));
    }
    return out;
  }

 private:
  struct Post {
    std::vector<Bytes> inputs;
    int first = -1;  // chunk
    Bytes result;
    bool has_result = false;
  };
  struct Rank {
    std::vector<Step> steps;
    std::size_t next = 0;
    std::vector<Post> posts;  // by round
    Bytes out;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  Extent extent(CollectiveTraits::Side side, int chunk) const {
    if (!cut_.blocks) return cut_.region(chunk, 0);
    const auto block = static_cast<std::uint64_t>(cut_.within_round(chunk));
    return cut_.block_part(side.many() ? block * o_.unit : 0, o_.unit, chunk, 0);
  }
  Bytes input(int r, int chunk) const {
    const Extent e = extent(traits_.in, chunk);
    const std::byte* const from = o_.in[index(r)].data() + e.offset * elem_;
    return {from, from + e.count * elem_};
  }
  void store(int r, int chunk, const Bytes& value) {
    const Extent e = extent(traits_.out, chunk);
    assert(value.size() == e.count * elem_);
    if (!value.empty())
      std::memcpy(ranks_[index(r)].out.data() + e.offset * elem_, value.data(), value.size());
  }
  Bytes fold(std::span<const Bytes> values, std::span<const Scalar> factors) const {
    Bytes out(values.front().size());
    std::vector<const void*> sources;
    for (const Bytes& v : values) sources.push_back(v.data());
    if (!out.empty())
      kernels::fold({o_.dtype, o_.op, o_.ranks}, out.data(), sources, factors, out.size() / elem_);
    return out;
  }

  /// False: what it reads has not been posted yet.
  bool hop(int r, const Step& s) {
    Rank& me = ranks_[index(r)];
    if (s.verb & kRelease) return true;
    Post& mine = me.posts[index(cut_.round_of(s.chunk, 0))];
    if (s.verb & kPost) {
      if (s.verb & kResult) {
        const Extent e = extent(traits_.out, s.chunk);
        const std::byte* const at = me.out.data() + e.offset * elem_;
        mine.result.assign(at, at + e.count * elem_), mine.has_result = true;
        return true;
      }
      mine.first = s.chunk;
      for (int j = 0; j < s.span; ++j) mine.inputs.push_back(input(r, nth(s.chunk, j, cut_.per_round)));
      return true;
    }
    if (!(s.verb & kPosted)) {  // a copy, or a reduction with one rank
      const Bytes x = input(r, s.chunk);
      store(r, s.chunk, s.verb & kPartialIn ? fold({&x, 1}, {&o_.premul[index(r)], 1}) : x);
      return true;
    }
    std::vector<Bytes> values;
    for (int q = 0; q < o_.ranks; ++q) {
      if (s.from != kEveryone && s.from != q) continue;
      if (s.from == kEveryone && q == r) {
        values.push_back(input(r, s.at));
        continue;
      }
      const Post& theirs = ranks_[index(q)].posts[index(cut_.round_of(s.at, 0))];
      if (s.verb & kResult ? !theirs.has_result : theirs.first < 0) return false;
      for (std::size_t j = 0; j < theirs.inputs.size() && !(s.verb & kResult); ++j)
        if (nth(theirs.first, static_cast<int>(j), cut_.per_round) == s.at)
          values.push_back(theirs.inputs[j]);
      if (s.verb & kResult) values.push_back(theirs.result);
    }
    store(r, s.chunk, s.from == kEveryone ? fold(values, o_.premul) : values.front());
    return true;
  }

  const Interpreted& o_;
  const CollectiveTraits traits_;
  const std::size_t elem_;
  Cut cut_;
  std::vector<Rank> ranks_;
};

}  // namespace ouro::flow

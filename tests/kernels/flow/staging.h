// Staging buffers of all ranks as the verifier models them: pages, what is posted on them, and who may read
// it. Used by verifier.cc.
#pragma once
#include <string>
#include <vector>

#include "tests/kernels/flow/memory.h"

namespace ouro::flow {

class StagingBuffers : protected Memory {
 protected:
  StagingBuffers(const Program& p, Setting s) : Memory(p, s), released_(index(p.rounds)) {}

  /// The round of the staging buffers. Flows that are not pipelined are in one round at a time.
  int staging_round(int r, int chunk) const { return cut_.round_of(chunk, ranks_[index(r)].round); }

  bool post(int r, const Step& s) {
    Rank& me = ranks_[index(r)];
    const int k = staging_round(r, s.chunk);
    if (p_.pipelined && k < me.released) return broken(r, "posts to a round that it has released");
    if (k >= kSlots && released_[index(k - kSlots)] < n_) return false;
    Staging& slot = me.slots[k % kSlots];
    if ((s.verb & kResult) != 0) {
      if (!p_.posts_result) return broken(r, "undeclared result");
      if (slot.round == k && slot.result_chunk != kNobody) return broken(r, "posts a result twice");
      if (slot.round != k) slot = Staging{k};
      slot.result_chunk = s.chunk;
      const Cell& cell = output(r, key_of(r, s.chunk));
      if (!cell.stored) return broken(r, "posts a result that is not there");
      slot.result = cell.value;
    } else {
      if (k <= me.posted) return broken(r, "posts after it has posted");
      if (p_.by_reference && (s.chunk != 0 || s.span != 1))
        return broken(r, "refers to a part of its buffers");
      if (s.span != input_pieces(p_.posts_others, n_))
        return broken(r, "posts another number of chunks than declared");
      if (p_.posts_others && piece_for(cut_.within_round(s.chunk), r, n_) != 0)
        return broken(r, "posts its own chunk");
      me.posted = k;
      slot = Staging{k, s.chunk, std::vector<Value>(index(s.span))};
      for (int j = 0; j < s.span && !p_.by_reference; ++j) {
        if (!read_input(r, r, nth(s.chunk, j, cut_.per_round), slot.inputs[index(j)])) return false;
      }
    }
    return true;
  }

  bool read_staging(int r, int from, const Step& s, Value& v) {
    const Staging& slot = ranks_[index(from)].slots[staging_round(r, s.at) % kSlots];
    if ((s.verb & kResult) != 0 && p_.by_reference) {  // from the rank's output, which must exist
      Cell& cell = output(from, key_of(r, s.at));
      if (!touch(cell, r, false)) return false;
      if (!cell.stored) return broken(r, "reads a result that is not there");
      v = cell.value;
      return true;
    }
    if ((s.verb & kResult) != 0) {
      if (slot.result_chunk != s.at) return broken(r, "fetches another result than was posted");
      v = slot.result;
      return true;
    }
    if (p_.by_reference || (from == r && s.from == kEveryone)) return read_input(r, from, s.at, v);
    for (std::size_t j = 0; j < slot.inputs.size(); ++j) {
      if (nth(slot.first, static_cast<int>(j), cut_.per_round) != s.at) continue;
      v = slot.inputs[j];
      return true;
    }
    return broken(r, "takes a chunk that was not posted");
  }

  /// False without an error: some rank has not posted yet.
  bool take_posted(int r, const Step& s, Value& v) {
    if (s.at < 0 || s.at >= p_.chunks) return broken(r, "no such chunk in a staging buffer");
    const int round = staging_round(r, s.at);
    if (p_.pipelined && round < ranks_[index(r)].released)
      return broken(r, "reads a round that it has released");
    const auto posted = [&](int q) {
      const Staging& slot = ranks_[index(q)].slots[round % kSlots];
      // A rank does not wait for its own data.
      if (q == r && s.from == kEveryone && !p_.by_reference) return true;
      return slot.round == round &&
             (p_.by_reference || (s.verb & kResult) == 0 || slot.result_chunk != kNobody);
    };
    const int first = s.from == kEveryone ? 0 : s.from, last = s.from == kEveryone ? n_ - 1 : s.from;
    if (first < 0 || last >= n_) return broken(r, "no such peer");
    for (int q = first; q <= last; ++q) {
      if (!posted(q)) return false;
    }
    for (int q = first; q <= last; ++q) {
      Value next;
      if (!read_staging(r, q, s, next)) return false;
      if (s.from == kEveryone) next.kind = next.kind == Kind::raw ? Kind::wide : next.kind;
      v = q == first ? next : Value{expr_.add(v.expr, next.expr), Kind::wide};
    }
    return true;
  }

  std::vector<int> released_;  // by round: ranks that no longer need anything of it
};

}  // namespace ouro::flow

// The state of the verifier's machine: memory cells, links, staging buffers and ranks. Used by memory.h
// and verifier.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/core/collectives.h"
#include "tests/kernels/flow/expressions.h"
#include "tests/kernels/flow/verifier.h"

namespace ouro::flow {

struct Cell {
  Value value;
  bool stored = false;
  std::int16_t reader = kNobody, writer = kNobody;  // the last ones; kEveryone: several readers
  int read_epoch = -1, write_epoch = -1;            // number of barriers that they had passed
};

struct Link {
  Value slots[kMaxWindow];
  int head = 0, count = 0;
};

struct Staging {
  Staging() = default;
  explicit Staging(int r, int f = 0, std::vector<Value> v = {}) : round(r), first(f), inputs(std::move(v)) {}
  int round = -1, first = 0;
  std::vector<Value> inputs;
  int result_chunk = kNobody;
  Value result;
};

struct Rank {
  std::size_t step = 0;
  int round = 0, barriers = 0;
  int posted = -1, released = 0;  // the newest round with a post, and the number of released rounds
  bool at_barrier = false;
  std::uint64_t heard = 0;
  Staging slots[kSlots];
};

/// Whether block c of a round is an input (output) of rank r.
inline bool has(CollectiveTraits::Side side, const Program& p, int r, int c) {
  using Shape = CollectiveTraits::Shape;
  return side.shape != Shape::nothing && side.counts(r, p.root) && (side.shape != Shape::block || c == r);
}
inline bool has_input(const Program& p, int r, int c) { return has(traits_of(p.collective).in, p, r, c); }
inline bool has_output(const Program& p, int r, int c) { return has(traits_of(p.collective).out, p, r, c); }
inline bool reduces(const Program& p) { return traits_of(p.collective).reduces_all(); }

}  // namespace ouro::flow

// The step vocabulary: a step is what one rank does with one chunk in one hop. Algorithms name steps to a
// listener; executors, the verifier and the simulator are listeners.
#pragma once
#include <cstdint>

#include "runtime/core/hd.h"

namespace ouro::flow {

/// The place of a flow: its rank, the number of ranks, and `rounds`, which is how often the whole set of
/// chunks recurs. Only flows that declare `kPipelined` read it: they are called once and number their chunks
/// over all rounds themselves. All others are called once per round.
struct Place {
  int rank = 0, size = 1, root = 0;
  int rounds = 1;
};

/// The actions of a step, as bits. A value enters (receive, posted) and/or is mine (input, accumulator,
/// result); where both exist, they are reduced. Then the value leaves (store, keep, send, post, multicast). A
/// value is a *partial sum*, not rounded yet, or of the element type. How partial sums travel is up to the
/// operation's wire format (kernels/arith/wire.h): *wide*, in the accumulation type; all other values
/// travel *narrow*.
enum Verb : std::uint32_t {
  kRecv = 1u << 0,    // take the next message of the link from `from`
  kPosted = 1u << 1,  // take chunk `at` of the staging buffer of `from`; kEveryone: fold all n in rank order
  kInput = 1u << 2,   // mine: chunk of my input
  kAcc = 1u << 3,     // mine: my accumulator of this chunk, a partial sum
  kResult = 1u << 4,  // mine: chunk of my output
  kKeep = 1u << 5,    // leave the value in the accumulator
  kStore = 1u << 6,   // round, finish (avg divides) and leave the value in the output
  kSend = 1u << 7,    // send the value to `to`
  kPost = 1u << 8,    // put `span` chunks, from `chunk` on, into my staging buffer, and publish them
  kMulticast = 1u << 9,    // store the value into the output of every rank (needs registered outputs)
  kBarrier = 1u << 10,     // wait until all ranks have reached this step
  kPartialIn = 1u << 11,   // the incoming value is a partial sum
  kPartialOut = 1u << 12,  // the sent value is a partial sum
  kRelease = 1u << 13,     // the oldest round still open has been read: its slots may be reused
  kAfter = 1u << 14,       // the incoming value is the second operand of the reduction, after mine
};

inline constexpr int kNobody = -1, kEveryone = -2;

struct Step {
  std::uint32_t verb = 0;
  int chunk = 0;  // of input, accumulator and output
  int from = kNobody;
  int to = kNobody;
  int at = 0;         // kPosted: chunk index in the staging buffer
  int span = 1;       // kPost: number of chunks; they wrap within their round
  double weight = 1;  // factor on the incoming value, applied in the accumulation type before the reduction
};

/// A step whose verb is part of its type. A listener that is a template over it is compiled for this verb
/// only, to code as good as a loop written by hand.
template <std::uint32_t kVerb>
struct StepOf : Step {
  static constexpr std::uint32_t verb = kVerb;
  OURO_HD constexpr explicit StepOf(int chunk, int from = kNobody, int to = kNobody, int at = 0, int span = 1,
                                    double weight = 1)
      : Step{kVerb, chunk, from, to, at, span, weight} {}
};

OURO_HD constexpr auto send(int c, int to) { return StepOf<kInput | kSend>(c, kNobody, to); }
OURO_HD constexpr auto send_result(int c, int to) { return StepOf<kResult | kSend>(c, kNobody, to); }
OURO_HD constexpr auto recv(int c, int from) { return StepOf<kRecv | kStore>(c, from); }
OURO_HD constexpr auto forward(int c, int from, int to) {
  return StepOf<kRecv | kStore | kSend>(c, from, to);
}
OURO_HD constexpr auto copy(int c) { return StepOf<kInput | kStore>(c); }
/// Sends my input as a partial sum: the first contribution to a reduction.
OURO_HD constexpr auto send_widened(int c, int to) {
  return StepOf<kInput | kSend | kPartialOut>(c, kNobody, to);
}
OURO_HD constexpr auto send_partial(int c, int to) {
  return StepOf<kAcc | kSend | kPartialOut>(c, kNobody, to);
}
OURO_HD constexpr auto reduce_forward(int c, int from, int to) {
  return StepOf<kRecv | kPartialIn | kInput | kSend | kPartialOut>(c, from, to);
}
OURO_HD constexpr auto reduce_keep(int c, int from) {
  return StepOf<kRecv | kPartialIn | kInput | kStore>(c, from);
}
OURO_HD constexpr auto reduce_keep_forward(int c, int from, int to) {
  return StepOf<kRecv | kPartialIn | kInput | kStore | kSend>(c, from, to);
}
/// Reduces the incoming value with my input and leaves the partial sum in the accumulator.
OURO_HD constexpr auto accumulate_input(int c, int from, double weight = 1) {
  return StepOf<kRecv | kPartialIn | kInput | kKeep>(c, from, kNobody, 0, 1, weight);
}
/// Reduces the incoming value with the accumulator and leaves the result there.
OURO_HD constexpr auto accumulate(int c, int from, double weight = 1) {
  return StepOf<kRecv | kPartialIn | kAcc | kKeep>(c, from, kNobody, 0, 1, weight);
}
OURO_HD constexpr auto accumulate_store(int c, int from) {
  return StepOf<kRecv | kPartialIn | kAcc | kStore>(c, from);
}
/// Reduces the accumulator with the incoming value, in this order; `leave` is kKeep or kStore. Host only,
/// like the next two.
constexpr Step append(int c, int from, std::uint32_t leave) {
  return {kRecv | kPartialIn | kAcc | kAfter | leave, c, from};
}
/// Reduces the accumulator with my input, in this order.
constexpr Step append_input(int c, std::uint32_t leave) { return {kAcc | kInput | leave, c}; }
/// Leaves the incoming value in the accumulator.
constexpr auto keep_received(int c, int from) { return StepOf<kRecv | kPartialIn | kKeep>(c, from); }
/// Leaves my input, widened, in the accumulator.
OURO_HD constexpr auto keep(int c) { return StepOf<kInput | kKeep>(c); }
/// Rounds and finishes the accumulator into the output.
OURO_HD constexpr auto store(int c) { return StepOf<kAcc | kStore>(c); }
/// Rounds and finishes my own input into the output: a reduction over one rank.
OURO_HD constexpr auto store_input(int c) { return StepOf<kInput | kStore | kPartialIn>(c); }

// Staging buffers: every rank of a host can read what a rank posts (a staged copy, or a registered buffer in
// place). A rank posts at most twice in a round: first inputs (post), then results (post_result). Chunk
// numbers continue from one round to the next. Flows that are not pipelined have one round at a time, which
// ends by itself; all others end a round with release(). Posts are made in the order of rounds. A rank posts
// either one chunk, or the n-1 chunks of the others, beginning with that of rank+1.
OURO_HD constexpr auto post(int c, int span) { return StepOf<kInput | kPost>(c, kNobody, kNobody, 0, span); }
/// Publishes where my buffers are, in place of a copy.
OURO_HD constexpr auto refer() { return post(0, 1); }
OURO_HD constexpr auto post_result(int c) { return StepOf<kResult | kPost>(c); }
/// Folds chunk c of all n inputs, in rank order, in the accumulation type; rounds once; stores. The others'
/// inputs are read from their staging buffers, mine from my input buffer.
OURO_HD constexpr auto reduce_posted(int c, int at) {
  return StepOf<kPosted | kPartialIn | kStore>(c, kEveryone, kNobody, at);
}
/// As reduce_posted, but stores directly into the output of every rank.
OURO_HD constexpr auto reduce_multicast(int c, int at) {
  return StepOf<kPosted | kPartialIn | kMulticast>(c, kEveryone, kNobody, at);
}
/// Copies chunk `at` of the inputs posted by `from` into my output chunk c.
OURO_HD constexpr auto fetch(int c, int from, int at) {
  return StepOf<kPosted | kStore>(c, from, kNobody, at);
}
/// Copies chunk c of the input of `from` directly into the output of every rank.
OURO_HD constexpr auto fetch_multicast(int c, int from) {
  return StepOf<kPosted | kMulticast>(c, from, kNobody, c);
}
/// Copies chunk c of my input directly into the output of every rank.
OURO_HD constexpr auto multicast(int c) { return StepOf<kInput | kMulticast>(c); }
/// Copies the result posted by `from` (its second post of the round) into my output chunk c.
OURO_HD constexpr auto fetch_result(int c, int from) {
  return StepOf<kPosted | kResult | kStore>(c, from, kNobody, c);
}
OURO_HD constexpr auto barrier() { return StepOf<kBarrier>(0); }
OURO_HD constexpr auto release() { return StepOf<kRelease>(0); }

OURO_HD constexpr int wrap(int i, int n) { return i < 0 ? i + n : i >= n ? i - n : i; }

/// The j-th chunk of a post that begins with chunk c; a round has `per_round` chunks.
OURO_HD constexpr int nth(int c, int j, int per_round) {
  const int first = c / per_round * per_round;
  return first + (c - first + j) % per_round;
}

}  // namespace ouro::flow

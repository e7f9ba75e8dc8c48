// LinkView and StagingView: the waist between transports and executors. Plain data over memory that both
// sides reach. Filled in by transports, used by the host executor (and by device executors later).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/core/types.h"
#include "runtime/core/wait.h"

namespace ouro {

/// Where a message that is about to come goes in place of its slots, if it begins with chunk `first` of the
/// link, has `tag`, and at most `capacity` bytes. Its chunks name the first of them as `seq`, and all but the
/// last fill a slot.
struct PostedReceive {
  std::uint64_t first = 0;
  std::byte* to = nullptr;
  std::size_t capacity = 0;
  std::int32_t tag = 0;
};

/// What precedes the payload of each slot. `signature` and `seq` let the receiver see a disagreement at the
/// first chunk; `bytes` is checked against what the receiver expects, never trusted as a bound.
struct alignas(64) SlotHeader {
  std::uint64_t seq;
  std::uint64_t signature;
  std::uint64_t total;  // elements of the whole transfer (all_to_all_v), or of the whole message
  std::uint32_t bytes;  // payload of this slot
  std::int32_t tag;     // messages only
};

/// A bounded ring of slots in one direction, and two counters that only grow: `full` chunks were published by
/// the sender, `freed` given back by the receiver. Chunk i lies in slot i mod slot_count.
/// At least two slots: a forwarding hop holds its input slot until its output has room.
struct LinkView {
  std::byte* slots = nullptr;    // slot_count times (SlotHeader, payload)
  std::uint32_t slot_bytes = 0;  // payload bytes of one slot, a multiple of 64
  std::uint32_t slot_count = 0;
  Counter* full = nullptr;
  Counter* freed = nullptr;
  /// By slot: where its payload lies instead, or nullptr. Set by the producer before it publishes (and the
  /// bytes stay there until the slot is given back), or by what brings the payload. No array: always in the
  /// slot.
  const std::byte** elsewhere = nullptr;

  SlotHeader& header(std::uint64_t i) const {
    return *reinterpret_cast<SlotHeader*>(slots + (i % slot_count) * (sizeof(SlotHeader) + slot_bytes));
  }
  std::byte* payload(std::uint64_t i) const { return reinterpret_cast<std::byte*>(&header(i) + 1); }
  const std::byte* found(std::uint64_t i) const {
    const std::byte* const other = elsewhere ? elsewhere[i % slot_count] : nullptr;
    return other ? other : payload(i);
  }
};

/// Where a registered buffer lies: allocation `id` (0: not registered) of a rank, at `offset`.
struct MemoryRef {
  std::uint64_t id;
  std::uint64_t offset;
};

/// What a rank says when it posts, one a round. A post is published by one release store of `word`, so that
/// its reader learns of the arrival, sees a disagreement and, of small posts, has the payload with one cache
/// miss.
struct alignas(128) Arrival {
  static constexpr std::size_t kInline = 56;
  /// Low half: the serial number 4 * round + Phase. High half: the tag of the operation (its signature and
  /// sequence number, folded).
  std::uint64_t word;
  std::byte payload[kInline];  // of posts that fit; others lie in the slot
  // The second line is written, and read, by operations that need it only.
  double premul_real;
  std::int64_t premul_integer;
  MemoryRef in, out;
};
static_assert(sizeof(Arrival) == 128);

/// A rank's staging buffer: slots that it writes and all ranks of the host read. Round k uses arrival record
/// k mod kArrivals and, for what does not fit into it, slot k mod kSlots. Where a rank posts without waiting
/// for others (rooted operations), small posts lie in eager slot k mod kArrivals instead, so that it can run
/// further ahead. `done` is the number of rounds that this rank has finished reading.
struct StagingView {
  static constexpr int kSlots = 4, kArrivals = 64;
  /// Rounds after which a rank renews the arrival records that it has not used: see renew().
  static constexpr std::uint64_t kRenewal = 1 << 20;
  /// How far a rank has come in a round: it has said where its buffers lie; its input is in the staging
  /// buffer; its result is, or it has come to a barrier; to a second one.
  enum Phase : std::uint32_t { kReferred = 1, kPosted = 2, kResult = 3, kSecondBarrier = 4 };
  std::byte* slots = nullptr;
  std::size_t slot_bytes = 0, eager_bytes = 0;
  std::byte* eager_slots = nullptr;  // kArrivals of them
  Arrival* arrivals = nullptr;       // kArrivals of them
  Counter* done = nullptr;
  std::uint32_t* sleepers = nullptr;  // those who wait for any of the arrival records

  std::byte* slot(std::uint64_t round) const { return slots + (round % kSlots) * slot_bytes; }
  std::byte* eager(std::uint64_t round) const { return eager_slots + (round % kArrivals) * eager_bytes; }
  Arrival& arrival(std::uint64_t round) const { return arrivals[round % kArrivals]; }
  static std::uint32_t serial(std::uint64_t round, Phase p) {
    return static_cast<std::uint32_t>(4 * round + p);
  }
  [[gnu::always_inline]] inline void publish(std::uint64_t round, Phase p, std::uint32_t tag) const {
    std::uint64_t& word = arrival(round).word;
    std::atomic_ref(word).store(static_cast<std::uint64_t>(tag) << 32 | serial(round, p),
                                std::memory_order_release);
    if (std::atomic_ref(*sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers({&word, sleepers});
  }
  /// Serial numbers come round after 2^30 rounds, and an arrival record that is half as old would look as if
  /// its rank had come to a round ahead. A rank that only reads (whoever receives a broadcast, the root of a
  /// reduce) writes no arrival record, so it makes those that were not used for more than a lap look as if
  /// they were of the lap before. At the end of
  /// every kRenewal-th round, the `round`-th; called by the owner. By then everybody has released what stood
  /// on such an arrival record: each round has a rank that posts, which has waited for the one kArrivals
  /// before.
  void renew(std::uint64_t round) const {
    for (std::uint64_t i = 0; i < kArrivals; ++i) {
      const std::atomic_ref word(arrivals[i].word);
      const auto age = static_cast<std::int32_t>(
          serial(round, Phase{}) - static_cast<std::uint32_t>(word.load(std::memory_order_relaxed)));
      if (age > 4 * kArrivals)
        word.store(serial(round - 2 * kArrivals + i, Phase{}), std::memory_order_relaxed);
    }
  }
};

}  // namespace ouro

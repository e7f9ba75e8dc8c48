// LinkView and StagingView: the interface between transports and executors. Plain data over memory that both
// sides can access. Filled in by transports, used by the host executor.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/core/types.h"
#include "runtime/core/wait.h"

namespace ouro {

/// Memory into which an expected message is received directly instead of into slots. Applies to a message
/// that begins with chunk `first` of the link, has tag `tag` and is at most `capacity` bytes long. All chunks
/// of a message carry the number of its first chunk as `seq`, and all but the last are as large as a slot.
struct PostedReceive {
  std::uint64_t first = 0;
  std::byte* to = nullptr;
  std::size_t capacity = 0;
  std::int32_t tag = 0;
  /// If set, memory of a device, as large as `to`. A fabric writes as much as it can to it, and the rest to
  /// `to`. The memory is allocated for as long as anything may be written to it, also after the receive has
  /// been revoked.
  std::shared_ptr<std::byte> device = nullptr;
};

/// Precedes the payload in each slot. `signature` and `seq` let the receiver detect a mismatch at the first
/// chunk; `bytes` is checked against what the receiver expects, never trusted as a bound.
struct alignas(64) SlotHeader {
  std::uint64_t seq;
  std::uint64_t signature;
  std::uint64_t total;  // elements of the whole transfer (all_to_all_v), or of the whole message
  std::uint32_t bytes;  // payload of this slot
  std::int32_t tag;     // messages only
};

/// A bounded one-way ring of slots with two monotonic counters: `full` counts the chunks that the sender has
/// published, `freed` those that the receiver has released. Chunk i is in slot i mod slot_count. A link has
/// at least two slots, because a forwarding hop holds its input slot until its output has room.
struct LinkView {
  std::byte* slots = nullptr;    // slot_count times (SlotHeader, payload)
  std::uint32_t slot_bytes = 0;  // payload bytes of one slot, a multiple of 64
  std::uint32_t slot_count = 0;
  Counter* full = nullptr;
  Counter* freed = nullptr;
  /// The address of a slot's payload if that is not in the slot, else nullptr; indexed by slot. Set by the
  /// producer before it publishes (the bytes then stay valid until the slot is released), or by the transport
  /// that delivers the payload. Without this array payloads are always in their slots.
  const std::byte** elsewhere = nullptr;
  /// For received slots, the address of the payload if that is in memory of a device, else nullptr; indexed
  /// by slot. Set by the transport before it publishes; valid until the slot is released. Never set together
  /// with `elsewhere`.
  const std::byte* const* on_device = nullptr;

  SlotHeader& header(std::uint64_t i) const {
    return *reinterpret_cast<SlotHeader*>(slots + (i % slot_count) * (sizeof(SlotHeader) + slot_bytes));
  }
  std::byte* payload(std::uint64_t i) const { return reinterpret_cast<std::byte*>(&header(i) + 1); }
  /// The payload of chunk i, in its slot or elsewhere.
  const std::byte* found(std::uint64_t i) const {
    const std::byte* const other = elsewhere ? elsewhere[i % slot_count] : nullptr;
    return other ? other : payload(i);
  }
};

/// The location of a registered buffer: allocation `id` (0: not registered) of a rank, `offset`
/// bytes into it.
struct MemoryRef {
  std::uint64_t id;
  std::uint64_t offset;
};

/// The record that a rank posts, one per round. One release store of `word` publishes the post, so that with
/// a single cache miss its reader learns of the arrival, detects a mismatch and, for small posts, has
/// the payload.
struct alignas(128) Arrival {
  static constexpr std::size_t kInline = 56;
  /// Low half: the serial number 4 * round + Phase. High half: the tag of the operation (its signature and
  /// sequence number, folded).
  std::uint64_t word;
  std::byte payload[kInline];  // of posts that fit; others are in the slot
  // The second cache line is written and read only by operations that need it.
  double premul_real;
  std::int64_t premul_integer;
  MemoryRef in, out;
};
static_assert(sizeof(Arrival) == 128);

/// A rank's staging buffer: memory that it writes and all ranks of the host read. Round k uses arrival record
/// k mod kArrivals and, for what does not fit into it, slot k mod kSlots or, if the operation's posts use the
/// ring, the next place in the ring. If a rank posts without waiting for others (rooted operations), small
/// posts use eager slot k mod kArrivals instead, so that the rank can run further ahead. `done` counts the
/// rounds that this rank has finished reading.
struct StagingView {
  static constexpr int kSlots = 4, kArrivals = 64;
  /// Bytes of a ring that keeps the posts of any kSlots rounds in a row apart, whatever their sizes, if none
  /// is longer than `post`: these, and what the end of a lap leaves unused.
  static constexpr std::size_t least_ring(std::size_t post) { return (kSlots + 1) * post; }
  /// Rounds after which a rank renews the arrival records that it has not used: see renew().
  static constexpr std::uint64_t kRenewal = 1 << 20;
  /// The progress of a rank in a round. kReferred: it has published where its buffers are. kPosted: its input
  /// is in the staging buffer. kResult: its result is there, or it has reached a barrier. kSecondBarrier: it
  /// has reached a second barrier.
  enum Phase : std::uint32_t { kReferred = 1, kPosted = 2, kResult = 3, kSecondBarrier = 4 };
  std::byte* slots = nullptr;
  std::size_t slot_bytes = 0, eager_bytes = 0;
  std::byte* eager_slots = nullptr;  // kArrivals of them
  std::byte* ring = nullptr;
  Arrival* arrivals = nullptr;  // kArrivals of them
  Counter* done = nullptr;
  std::uint32_t* sleepers = nullptr;  // threads that sleep on any of the arrival records

  std::byte* slot(std::uint64_t round) const { return slots + (round % kSlots) * slot_bytes; }
  std::byte* eager(std::uint64_t round) const { return eager_slots + (round % kArrivals) * eager_bytes; }
  Arrival& arrival(std::uint64_t round) const { return arrivals[round % kArrivals]; }
  static std::uint32_t serial(std::uint64_t round, Phase p) {
    return static_cast<std::uint32_t>(4 * round + p);
  }
  /// Publishes with one release store that this rank has reached phase `p` of `round`, and wakes sleepers.
  [[gnu::always_inline]] inline void publish(std::uint64_t round, Phase p, std::uint32_t tag) const {
    std::uint64_t& word = arrival(round).word;
    std::atomic_ref(word).store(static_cast<std::uint64_t>(tag) << 32 | serial(round, p),
                                std::memory_order_release);
    if (std::atomic_ref(*sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers({&word, sleepers});
  }
  /// Renews the arrival records that this rank has not used for more than a lap (kArrivals rounds): sets
  /// their serial numbers to those of the lap before. Called by the owner at the end of every kRenewal-th
  /// round, the `round`-th. Serial numbers wrap around after 2^30 rounds, and a record half as old would read
  /// as that of a rank that has reached a later round. A rank that only reads (a receiver of a broadcast, the
  /// root of a reduce) writes no records, so without renewal they would grow that old. When it is called, all
  /// ranks have released what such a record held: each round has a rank that posts, and that rank has waited
  /// for the release of the round kArrivals before.
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

// How the streams of all ranks wait for each other on the leader's path: what each of them does to the words
// of the group. Used by the leader's path; explored by tests/explore.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/device/gpu.h"
#include "kernels/gpu/collect.h"
#include "runtime/exec/gpu/gpu_words.h"

namespace ouro::rt {

/// One operation. A rank's stream writes the operation's number when it has reached it, the leader's waits
/// for all of them, and one number says to all that it is done. Nothing is reset, so the leader's stream has
/// `size` operations on words, the others' two. Streams do them by themselves, or, where kernels of all ranks
/// run at the same time, by kernels (MeetArgs). A captured operation has no number of its own when it is
/// replayed: its words are 1 for a time, and 0 whenever nothing is under way.
class LeaderWords {
 public:
  /// `number`: of the operations that were not captured, counted cyclically from 1.
  LeaderWords(const GpuWords& words, int size, bool captured, std::uint32_t number)
      : words_(words), size_(size), captured_(captured), number_(number) {}

  /// On the stream of a rank that does not lead.
  void follow(int rank, std::vector<gpu::MemOp>* ops) const {
    if (captured_) {
      ops->push_back(write(words_.ready(rank), 1));
      ops->push_back(wait(words_.done(rank)));
      ops->push_back(write(words_.done(rank), 0));
    } else {
      ops->push_back(write(words_.come_to(rank), number_));
      ops->push_back(wait_for_number(words_.finished()));
    }
  }
  /// On the leader's, before its kernel.
  void gather(int leader, std::vector<gpu::MemOp>* ops) const {
    for (int r = 0; r < size_; ++r) {
      if (r == leader) continue;
      if (captured_) {
        ops->push_back(wait(words_.ready(r)));
        ops->push_back(write(words_.ready(r), 0));
      } else {
        ops->push_back(wait_for_number(words_.come_to(r)));
      }
    }
  }
  /// And after it.
  void release(int leader, std::vector<gpu::MemOp>* ops) const {
    for (int r = 0; captured_ && r < size_; ++r)
      if (r != leader) ops->push_back(write(words_.done(r), 1));
    if (captured_) return;
    ops->push_back(write(words_.finished(), number_));
    // Who always leads writes no number of its own, and half the numbers later an old one would seem new.
    if (number_ % kRefresh == 0) ops->push_back(write(words_.come_to(leader), number_));
  }

  // The same by kernels, of an operation that is not captured and whose words are of one device.
  /// The launch of a rank that does not lead.
  void follow(int rank, gpu::MeetArgs* a) const {
    a->arrived = numbered(words_.come_to(rank));
    a->awaited = numbered(words_.finished()).word, a->words = 1, a->number = number_;
  }
  /// The leader's, before its kernel; that, or this one where there is none, writes finished().
  void gather(int leader, gpu::MeetArgs* a) const {
    const std::uint32_t* const first = numbered(words_.come_to(0)).word;
    a->arrived = numbered(words_.come_to(leader));
    a->awaited = first, a->words = size_, a->skip = leader, a->number = number_;
    if (size_ > 1) a->stride = static_cast<std::uint64_t>(numbered(words_.come_to(1)).word - first);
  }
  gpu::NumberedWord finished() const { return numbered(words_.finished()); }

 private:
  static constexpr std::uint32_t kRefresh = 1 << 20;
  using Kind = gpu::MemOp::Kind;
  static gpu::MemOp write(const GpuWord& w, std::uint32_t value) { return {Kind::write, value, w.device}; }
  static gpu::MemOp wait(const GpuWord& w) { return {Kind::wait_equal, 1, w.device}; }
  gpu::NumberedWord numbered(const GpuWord& w) const {
    return {static_cast<std::uint32_t*>(w.device), number_};
  }
  gpu::MemOp wait_for_number(const GpuWord& w) const { return {Kind::wait_at_least, number_, w.device}; }

  const GpuWords& words_;
  const int size_;
  const bool captured_;
  const std::uint32_t number_;
};

}  // namespace ouro::rt

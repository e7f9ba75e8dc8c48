// What all parts of the GPU executor know of their group. Used by the files of runtime/exec/gpu only.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/context/context.h"
#include "runtime/plan/in_flight.h"
#include "runtime/plan/members.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// The ranks of a group, the GPU of this one, and what its parts keep until the group ends.
struct GpuTeam {
  Context& context;
  const Members& members;
  Waiter& waiter;  ///< of operations
  int rank, size;
  std::uint64_t key;  ///< names the group's memory on all ranks
  std::chrono::milliseconds deadline;
  int device = context.spec().gpu;
  bool abroad = false;          ///< a member is another process
  bool shares_process = false;  ///< with another member
  bool device_words = false;    ///< words of streams are in device memory; the same on all ranks
  bool one_gpu = false;         ///< of all members

  int world_rank(int r) const { return members.world_rank(r); }
  const Peer& peer(int r) const { return context.members().peer(world_rank(r)); }
  const GpuRecord& record(int r) const { return context.device_memory().record(world_rank(r)); }
  /// Rank r as its group counts: of the ranks of one host, which a group has several of, not r.
  int named(int r) const { return of_group ? of_group->group_rank(world_rank(r)).value_or(-1) : r; }
  /// Whether rank r is of this process.
  bool here(int r) const { return context.members().are_threads(world_rank(r), world_rank(rank)); }
  /// Lets this rank's device access memory of rank r's, where they are two of this process. What other
  /// processes give says itself who may access it.
  Status reach(int r) const {
    return here(r) && record(r).uuid != record(rank).uuid ? gpu::gpu().enable_peer(device, record(r).device)
                                                          : Status();
  }
  /// An error of an operation for which others wait already: they wait for what is not in this rank's stream,
  /// whatever the driver calls its reason, so the group fails.
  Status in_part(const Status& why) const {
    const Failure* const f = why.failure();
    if (!f || f->rank >= 0 || (f->reason != Reason::invalid && f->reason != Reason::unsupported)) return why;
    return Status(Failure{.reason = Reason::device,
                          .text = fmt::format("its streams have a part of the operation: {}", f->text),
                          .rank = named(rank)});
  }
  void find_neighbours() {
    for (int r = 0; r < size; ++r) (here(r) ? shares_process : abroad) |= r != rank;
  }
  /// Asked for the first time when a kernel is about to be launched.
  int multiprocessors() {
    if (multiprocessors_ == 0) {
      const auto p = gpu::gpu().properties(device);
      multiprocessors_ = p.ok() ? std::max(1, p->multiprocessors) : 1;
    }
    return multiprocessors_;
  }
  /// Keeps until the group has ended what may still be in use.
  void retire(std::shared_ptr<void> p) {
    if (p) retired_.push_back(std::move(p));
  }

  const Members* of_group = nullptr;  ///< where `members` are those of one of its hosts
  int multiprocessors_ = 0;
  std::vector<std::shared_ptr<void>> retired_;
};

/// Whether two buffers have bytes in common.
inline bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a + a_bytes > b && b + b_bytes > a;
}

/// What `later` is given from now on starts after what `earlier` has been given.
inline Status follows(const gpu::Stream& later, const gpu::Stream& earlier, const PooledEvent& by) {
  OURO_TRY(gpu::gpu().record(by.get(), earlier));
  return gpu::gpu().wait(later, by.get());
}

/// Enqueues operations on words, if there are any.
inline Status enqueue(std::span<const gpu::MemOp> ops, const gpu::Stream& s) {
  return ops.empty() ? Status() : gpu::gpu().enqueue(ops, s);
}

}  // namespace ouro::rt

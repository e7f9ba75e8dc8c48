// The members of a job. Used by Context, its parts and groups.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/health/control_page.h"
#include "runtime/join/bootstrap.h"

namespace ouro::rt {

/// The ranks of the job as this one sees them: where they are, the contents of their control pages, and
/// which have died.
class JobMembers {
 public:
  /// `peers`: by rank, including this rank's own entry.
  JobMembers(int rank, std::vector<Peer> peers);
  /// Checks all pages, and completes the replicas with what ranks of other hosts published when they joined
  /// (remarks.h). Errors: ring-corrupt.
  Status read_pages();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const std::vector<Peer>& peers() const { return peers_; }
  const Peer& peer(int r) const { return peers_[static_cast<std::size_t>(r)]; }
  const Peer& self() const { return peer(rank_); }
  /// Whether rank r is on another host.
  bool is_remote(int r) const { return peer(r).remote(); }
  /// Whether ranks a and b are threads of one process.
  bool are_threads(int a, int b) const {
    return peer(a).node == peer(b).node && peer(a).process == peer(b).process;
  }
  /// Whether rank r is this rank or another thread of this process.
  bool is_thread(int r) const { return are_threads(r, rank_); }
  ControlPage& page(int r) const { return *reinterpret_cast<ControlPage*>(peer(r).control->data()); }
  ControlPage& own_page() const { return page(rank_); }
  /// The record of group `key` on the page of rank r; nullptr if that rank has not made the group yet.
  GroupRecord* find_record(int r, std::uint64_t key) const;
  /// Whether rank r has closed its context in an orderly way.
  bool has_closed(int r) const {
    return page(r).state.get() == static_cast<std::uint32_t>(ContextState::closed);
  }
  /// Whether rank r is known to have died, or to be permanently unreachable; false for ranks that left in an
  /// orderly way.
  bool is_dead(int r) const { return dead_[static_cast<std::size_t>(r)].load(std::memory_order_acquire); }
  /// Records the death of rank r. Returns false if it was known already.
  bool note_death(int r) { return !dead_[static_cast<std::size_t>(r)].exchange(true); }

 private:
  const int rank_;
  std::vector<Peer> peers_;
  std::vector<std::atomic<bool>> dead_;
};

}  // namespace ouro::rt

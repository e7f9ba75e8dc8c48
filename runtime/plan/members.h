// Members: the ranks of a group and the hosts that they are on. Made by group; read by executors and
// their wiring.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/flow/hosts.h"

namespace ouro::rt {

/// The members of a group, as one of them sees them; fixed when the group is made.
class Members {
 public:
  /// `rank` is this member. `world`: each member's rank in the job; `host_of`: a number for each
  /// member's host.
  Members(int rank, std::vector<int> world, std::span<const int> host_of)
      : rank_(rank), world_(std::move(world)), map_(host_of) {
    for (const int host : host_of)
      local_.push_back(host == host_of[static_cast<std::size_t>(rank)] ? here_++ : -1);
    hosts_ = static_cast<int>(map_.view().first.size()) - 1;
  }
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_.size()); }
  int world_rank(int r) const { return world_[static_cast<std::size_t>(r)]; }
  const std::vector<int>& world_ranks() const { return world_; }
  /// The member with rank `world_rank` in the job, if there is one.
  std::optional<int> group_rank(int world_rank) const {
    const auto it = std::find(world_.begin(), world_.end(), world_rank);
    return it == world_.end() ? std::nullopt : std::optional<int>(static_cast<int>(it - world_.begin()));
  }

  int hosts() const { return hosts_; }
  bool one_host() const { return hosts_ == 1; }
  /// Placement of the members on hosts, for flows between hosts. Valid as long as this object.
  flow::HostLayout layout() const { return map_.view(); }
  /// Number of members on this host.
  int here() const { return here_; }
  /// For each member, its index among those of this host, or -1.
  const std::vector<int>& local() const { return local_; }
  int local(int r) const { return local_[static_cast<std::size_t>(r)]; }
  /// The first of the members on this host owns the memory that all of them share.
  bool keeps_segments() const { return local(rank_) == 0; }
  int keeper() const { return static_cast<int>(std::find(local_.begin(), local_.end(), 0) - local_.begin()); }

 private:
  int rank_;
  std::vector<int> world_;
  flow::HostMap map_;
  std::vector<int> local_;
  int here_ = 0, hosts_ = 1;
};

}  // namespace ouro::rt

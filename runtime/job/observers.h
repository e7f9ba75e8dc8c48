// Notification of groups about events of the members of a job. Used by Context, its threads and groups.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/job/job_members.h"
#include "runtime/network/lost_rank.h"

namespace ouro::rt {

/// Events of members that a group is notified of, on the watch and network threads.
class MemberObserver {
 public:
  virtual void on_losses(
      const std::vector<LostRank>&) = 0;  ///< lost ranks; those outside the group are ignored
  virtual void on_fenced(int by) = 0;     ///< rank `by` continues without this one
  virtual void adopt_errors() = 0;        ///< a peer has published an error

 protected:
  ~MemberObserver() = default;
};

/// An owner of operations on devices that are in flight and that no host thread waits for.
class DeviceObserver {
 public:
  virtual void poll_device() = 0;  ///< called periodically to check these operations

 protected:
  ~DeviceObserver() = default;
};

/// Notifies the groups of this rank of losses, fences and published errors of members. Thread-safe; after
/// dismiss() a group is not notified any more.
class Observers {
 public:
  explicit Observers(JobMembers& members)
      : members_(members), errors_seen_(static_cast<std::size_t>(members.size())) {}

  /// Reports earlier losses at once.
  void enrol(MemberObserver&);
  /// From now on the watch thread checks these operations.
  void enrol(DeviceObserver&);
  void dismiss(MemberObserver&);
  void dismiss(DeviceObserver&);

  /// Reports processes of this host that have ended.
  void report_deaths(const std::vector<int>& ranks);
  void report_losses(const std::vector<LostRank>&);
  void report_fence(int by);
  /// Checks all pages for errors that are new since the last check.
  void scan_errors();
  void poll_device();

 private:
  JobMembers& members_;
  std::mutex errors_mutex_;  // taken before mutex_
  std::vector<std::uint32_t> errors_seen_;
  std::mutex mutex_;
  std::vector<MemberObserver*> groups_;
  std::mutex gpu_mutex_;  // held while those groups are checked
  std::vector<DeviceObserver*> gpu_groups_;
};

}  // namespace ouro::rt

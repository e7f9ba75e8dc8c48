// Notification of groups about events of members. See observers.h.
#include "runtime/job/observers.h"

#include "runtime/core/log.h"

namespace ouro::rt {

void Observers::enrol(MemberObserver& g) {
  {
    std::lock_guard lock(mutex_);
    groups_.push_back(&g);
  }
  std::vector<LostRank> gone;
  for (int r = 0; r < members_.size(); ++r)
    if (members_.is_dead(r))
      gone.push_back({r, Reason::peer_dead, "it had ended before the group was made", "pidfd"});
  if (!gone.empty()) g.on_losses(gone);
}

void Observers::enrol(DeviceObserver& g) {
  std::lock_guard lock(gpu_mutex_);
  gpu_groups_.push_back(&g);
}

void Observers::dismiss(MemberObserver& g) {
  std::lock_guard lock(mutex_);
  std::erase(groups_, &g);
}

void Observers::dismiss(DeviceObserver& g) {
  std::lock_guard lock(gpu_mutex_);
  std::erase(gpu_groups_, &g);
}

void Observers::report_deaths(const std::vector<int>& ranks) {
  std::vector<LostRank> losses;
  for (const int r : ranks)
    losses.push_back({r, Reason::peer_dead, "its process ended without close (cause unknown)", "pidfd"});
  report_losses(losses);
}

void Observers::report_losses(const std::vector<LostRank>& losses) {
  std::vector<LostRank> fresh;
  for (const LostRank& loss : losses) {
    // A rank that closed its context left in an orderly way; ranks that still wait for it detect
    // that themselves.
    if (members_.has_closed(loss.rank) || !members_.note_death(loss.rank)) continue;
    OURO_INFO(RAS, "rank {} is lost: {} (detector {})", loss.rank, loss.text, loss.detector);
    fresh.push_back(loss);
  }
  if (fresh.empty()) return;
  std::lock_guard lock(mutex_);
  for (MemberObserver* g : groups_) g->on_losses(fresh);
}

void Observers::report_fence(int by) {
  std::lock_guard lock(mutex_);
  for (MemberObserver* g : groups_) g->on_fenced(by);
}

void Observers::scan_errors() {
  std::lock_guard scanning(errors_mutex_);
  for (int r = 0; r < members_.size(); ++r) {
    auto& seen = errors_seen_[static_cast<std::size_t>(r)];
    const std::uint32_t used = members_.page(r).errors_used.get();
    if (r == members_.rank() || used == seen) continue;
    seen = used;
    std::lock_guard lock(mutex_);
    for (MemberObserver* g : groups_) g->adopt_errors();
  }
}

void Observers::poll_device() {
  std::lock_guard lock(gpu_mutex_);
  for (DeviceObserver* g : gpu_groups_) g->poll_device();
}

}  // namespace ouro::rt

// Patterns in the memory of other GPUs. See peer_trial.h.
#include "runtime/device_memory/peer_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "kernels/gpu/collect.h"
#include "runtime/core/deadline.h"
#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

constexpr std::uint64_t kTrialOf = 0x7065657274726961;  // distinguishes it from device memory of groups
constexpr std::uint32_t kWritten = 1, kTried = 2;       // of ControlPage::gpu_trial

constexpr std::size_t kWords = 64;
using Pattern = std::array<std::uint64_t, kWords>;

/// No two ranks have the same, nor has memory that was never written.
Pattern pattern_of(const JobMembers& members, int r) {
  Pattern p;
  for (std::size_t i = 0; i < kWords; ++i)
    p[i] = (members.page(r).process ^ (static_cast<std::uint64_t>(r) << 32 | (i + 1))) * 0x9e3779b97f4a7c15u;
  return p;
}

/// The place of rank `to` among those that `from`, of the same host, can map; -1: the driver reports that it
/// cannot. Both may be on another host than this rank.
int place(const JobMembers& members, int from, int to) {
  const GpuRecord &a = members.page(from).gpu, &b = members.page(to).gpu;
  const std::uint32_t many = std::min<std::uint32_t>(a.reach_count, GpuRecord::kReach);
  const bool apart =
      a.present && b.present && a.uuid != b.uuid && members.peer(from).node == members.peer(to).node;
  const auto* const found = std::find(a.reach, a.reach + many, b.uuid);
  return apart && found != a.reach + many ? static_cast<int>(found - a.reach) : -1;
}

bool takes_part(const JobMembers& members, int r) {
  for (int other = 0; other < members.size(); ++other)
    if (place(members, r, other) >= 0 || place(members, other, r) >= 0) return true;
  return false;
}

/// This rank's part. Line 0 of its block has its pattern; it uses line 1 + r of rank r's block.
class Trial {
 public:
  Trial(DeviceMemory& memory, int device) : memory_(memory), members_(memory.members()), device_(device) {}
  ~Trial() {
    if (stream_.device >= 0) (void)gpu::gpu().destroy_stream(stream_).ok();
    memory_.drop_group_block(key(members_.rank()));
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  Status begin() {
    OURO_ASSIGN(stream_, gpu::gpu().create_stream(device_, 0));
    OURO_ASSIGN(mine_, block(members_.rank()));
    const Pattern p = pattern_of(members_, members_.rank());
    OURO_TRY(gpu::gpu().copy(mine_.data, p.data(), sizeof p, stream_));
    return gpu::gpu().synchronize(stream_);
  }
  /// Whether this GPU reads what rank r has written there, and reads back what it writes there itself.
  Result<bool> is_right(int r) {
    OURO_ASSIGN(const DeviceMemory::BlockAt theirs, block(r));
    std::byte* const scratch = line(mine_.data, members_.rank());
    std::byte* const there = line(theirs.data, members_.rank());
    OURO_ASSIGN(const Pattern read, moved(scratch, theirs.data));
    if (read != pattern_of(members_, r)) return false;
    OURO_TRY(moved(there, mine_.data).status());
    OURO_ASSIGN(const Pattern back, moved(scratch, there));
    return back == pattern_of(members_, members_.rank());
  }

 private:
  static std::uint64_t key(int r) { return kTrialOf + static_cast<std::uint64_t>(r); }
  static std::byte* line(std::byte* block, int r) {
    return block + sizeof(Pattern) * (1 + static_cast<std::size_t>(r));
  }
  Result<DeviceMemory::BlockAt> block(int r) {
    return memory_.group_block(r, key(r), sizeof(Pattern) * (1 + static_cast<std::size_t>(members_.size())));
  }
  /// Lets this GPU's multiprocessors move a pattern, and returns what is in `to` then.
  Result<Pattern> moved(std::byte* to, const std::byte* from) {
    gpu::HopArgs a;
    a.dtype = DType::u8;
    a.count = sizeof(Pattern);
    a.mine = from, a.store = to;
    const gpu::Launch l = gpu::hop(a, 1);
    OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, &a, stream_));
    Pattern p;
    OURO_TRY(gpu::gpu().copy(p.data(), to, sizeof p, stream_));
    OURO_TRY(gpu::gpu().synchronize(stream_));
    return p;
  }

  DeviceMemory& memory_;
  const JobMembers& members_;
  const int device_;
  gpu::Stream stream_;
  DeviceMemory::BlockAt mine_;
};

/// Waits until rank r is so far, or has left or died.
Status await(const JobMembers& members, int r, std::uint32_t state, Clock::time_point until) {
  while (members.page(r).gpu_trial.get() < state && !members.is_dead(r) && !members.has_closed(r)) {
    if (Clock::now() > until)
      return Status(Failure{.reason = Reason::deadline,
                            .text = fmt::format("rank {} has not tried access to other GPUs", r),
                            .rank = r,
                            .detector = "trial of GPUs"});
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return {};
}

}  // namespace

bool reaches(const JobMembers& members, int from, int to) {
  const int at = place(members, from, to);
  return at >= 0 && (members.page(from).gpu_wrong.get() >> at & 1) == 0;
}

Status try_peer_access(DeviceMemory& memory, int device, std::chrono::milliseconds timeout) {
  const JobMembers& members = memory.members();
  if (!takes_part(members, members.rank())) return {};
  const auto until = deadline_after(timeout);
  ControlPage& page = members.own_page();
  Trial trial(memory, device);
  OURO_TRY(trial.begin());
  page.gpu_trial.set(kWritten);
  std::uint32_t wrong = 0;
  bool abroad = false;
  for (int r = 0; r < members.size(); ++r) {
    abroad |= members.is_remote(r);
    const int at = place(members, members.rank(), r);
    if (at < 0) continue;
    OURO_TRY(await(members, r, kWritten, until));
    const auto right = trial.is_right(r);
    if (right.ok() && *right) continue;
    wrong |= 1u << at;
    OURO_WARN(
        "GPU {} does not access memory of rank {}'s GPU correctly, although the driver reports that it can: "
        "{}",
        device, r, right.ok() ? "it reads other data than were written" : right.status().message());
  }
  page.gpu_wrong.set(wrong);
  page.gpu_trial.set(kTried);
  for (int r = 0; r < members.size(); ++r)
    if (!members.is_remote(r) && takes_part(members, r)) OURO_TRY(await(members, r, kTried, until));
  if (wrong != 0 && abroad)
    return {
        Reason::device,
        fmt::format("GPU {} does not access memory of other GPUs of its host correctly, although the driver "
                    "reports that it can; expected OURO_GPU_PATH=staged in a job of several hosts",
                    device)};
  return {};
}

}  // namespace ouro::rt

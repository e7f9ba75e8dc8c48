// Exchanges of messages between GPUs. See gpu_exchanges.h.
#include "runtime/group/gpu_exchanges.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

/// The kernel ends first, since it knows for which rank it waits. An exchange that has not begun has no
/// kernel to end.
constexpr auto kGrace = 1s;

std::vector<int> list(const ExchangePath::Ranks& ranks) {
  std::vector<int> all;
  for (int r = 0; r < ExchangePath::kMaxRanks; ++r)
    if (ranks[static_cast<std::size_t>(r)]) all.push_back(r);
  return all;
}

}  // namespace

GpuExchanges::~GpuExchanges() {
  context_.observers().dismiss(static_cast<DeviceObserver&>(*this));
  detector_.when_failed(this, {});
  path_.reset();
  if (context_.spec().gpu >= 0) ExchangePath::drop_arena(context_, key_, members_.rank());
}

ExchangePath* GpuExchanges::made() {
  std::lock_guard lock(mutex_);
  return path_.get();
}

const GpuTopology& GpuExchanges::topology() {
  std::lock_guard lock(mutex_);
  if (!topology_) topology_ = gpu_topology(context_, members_.world_ranks());
  return *topology_;
}

ExchangePath& GpuExchanges::path() {
  const GpuTopology& known = topology();
  std::unique_lock lock(mutex_);
  if (!path_) {
    path_ = std::make_unique<ExchangePath>(context_, members_, waiter_, key_, detector_.settings().deadline,
                                           known);
    lock.unlock();
    detector_.when_failed(this, [this](const Status& why) { made()->release(why); });
    context_.observers().enrol(static_cast<DeviceObserver&>(*this));
  }
  return *path_;
}

Result<bool> GpuExchanges::by_kernels() {
  const std::string_view forced = context_.spec().gpu_path;
  if (forced == name(GpuPath::staged)) return false;
  const char* const obstacle = ExchangePath::obstacle(topology());
  if (obstacle && forced == name(GpuPath::resident))
    return unsupported(
        fmt::format("exchange: OURO_GPU_PATH={} cannot serve this call: {}", forced, obstacle));
  return obstacle == nullptr;
}

Status GpuExchanges::run(std::span<const Transfer> transfers, const std::shared_ptr<GpuStream>& stream,
                         std::shared_ptr<WorkState>* work) {
  return path().run(transfers, stream, work);
}

std::uint64_t GpuExchanges::ran() {
  ExchangePath* const path = made();
  return path ? path->ran() : 0;
}

bool GpuExchanges::idle() {
  ExchangePath* const path = made();
  return !path || path->idle();
}

void GpuExchanges::drain() {
  if (ExchangePath* const path = made()) path->drain();
}

void GpuExchanges::poll_device() {
  ExchangePath& path = *made();
  if (!detector_.ok()) return path.release(detector_.status());  // it had no memory for it, or no thread
  if (auto fault = path.fault()) {
    (void)detector_.fail(std::move(*fault), nullptr, true);
    return;
  }
  path.with_oldest(
      [this](ExchangePath::Pending& p, const ExchangePath::Ranks& awaited) { check(p, awaited); });
  // If the device has failed an exchange, the others would wait for this rank.
  if (const Status s = path.failure(); !s.ok() && detector_.ok()) (void)detector_.fail(s);
}

void GpuExchanges::check(ExchangePath::Pending& p, const ExchangePath::Ranks& awaited) {
  constexpr const char* kDetector = "control page";
  const std::vector<int> late = list(awaited);
  int left = -1;
  for (const int r : late)
    if (r != members_.rank() && records_.has_left(r)) left = r;
  if (left < 0) {
    p.left_since = {};
  } else if (p.left_since == Clock::time_point{}) {
    p.left_since = Clock::now();
  } else if (Clock::now() - p.left_since >= FailureDetector::kCauseFirst) {
    (void)detector_.fail({.reason = Reason::peer_dead,
                          .text = "it left the group before it sent or took a message of an exchange",
                          .rank = left,
                          .detector = kDetector},
                         nullptr, true);
    return;
  }
  const auto elapsed = Clock::now() - p.start;
  const auto& settings = detector_.settings();
  if (!late.empty() && elapsed >= settings.late_after && !p.late_said) {
    p.late_said = true;
    OURO_WARN("ranks {{{}}} have not sent or taken their messages of an exchange of group {}, {:.1f} s",
              fmt::join(late, ","), settings.group, std::chrono::duration<double>(elapsed).count());
  }
  if (elapsed < settings.deadline + kGrace) return;
  (void)detector_.fail(
      {.reason = Reason::deadline,
       .text = late.empty()
                   ? fmt::format("an exchange with ranks {{{}}} did not end in time, which waits for none of "
                                 "them: work that is before it in its stream has not ended",
                                 fmt::join(list(p.peers), ","))
                   : fmt::format("ranks {{{}}} have not sent or taken their messages of an exchange",
                                 fmt::join(late, ",")),
       .rank = late.empty() ? -1 : late.front(),
       .detector = "deadline"},
      nullptr, true);
}

}  // namespace ouro::rt

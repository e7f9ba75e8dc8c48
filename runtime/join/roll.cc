// Roll. See roll.h.
#include "runtime/join/roll.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/types.h"

namespace ouro::rt {
namespace {

constexpr char kMagic[8] = {'o', 'u', 'r', 'o', 'r', 'o', 'l', '1'};
constexpr std::size_t kLongestJob = 64;  // bytes; ouro-run's ids are half of that

}  // namespace

/// The layout of the segment. All but `codes` is written before any rank is started.
struct Roll::Page {
  char magic[sizeof kMagic];
  std::int32_t world, first;
  char job[kLongestJob];
  // Exit code + 1; 0: it runs. Relaxed order is enough, because no other data depends on it.
  std::atomic<std::uint16_t> codes[kMaxRanks];
};

Roll::Page& Roll::page() const { return *reinterpret_cast<Page*>(segment_->data()); }

Result<std::shared_ptr<Roll>> Roll::create(std::string_view job, int world, int first) {
  auto segment = SharedSegment::create(sizeof(Page), "the roll of ranks");
  if (!segment.ok()) return segment.status();
  std::shared_ptr<Roll> roll(new Roll(std::move(*segment)));
  Page& p = roll->page();
  std::memcpy(p.magic, kMagic, sizeof kMagic);
  p.world = world;
  p.first = first;
  job.copy(p.job, kLongestJob);
  return roll;
}

void Roll::ended(int rank, int code) {
  if (rank < 0 || rank >= world()) return;
  page().codes[rank].store(static_cast<std::uint16_t>(code + 1), std::memory_order_relaxed);
}

std::string Roll::place() const { return fmt::format("/proc/{}/fd/{}", getpid(), segment_->fd()); }

std::shared_ptr<const Roll> Roll::of_launcher() {
  const auto place = env::text("OURO_ROLL");
  if (!place.ok() || !*place) return nullptr;
  Fd fd(::open((*place)->c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const Status opened = fd ? Status() : Status(Reason::resource, std::strerror(errno));
  auto segment = fd ? SharedSegment::attach(std::move(fd), sizeof(Page))
                    : Result<std::shared_ptr<SharedSegment>>(opened);
  if (!segment.ok()) {
    OURO_INFO(BOOTSTRAP, "OURO_ROLL={} is not used: {}", **place, segment.status().failure()->text);
    return nullptr;
  }
  std::shared_ptr<Roll> roll(new Roll(std::move(*segment)));
  const Page& p = roll->page();
  const bool sound = std::memcmp(p.magic, kMagic, sizeof kMagic) == 0 && p.world >= 1 &&
                     p.world <= kMaxRanks && p.first >= 0 && p.first < p.world;
  return sound ? roll : nullptr;
}

std::string Roll::job() const {
  const char* text = page().job;
  return {text, std::find(text, text + kLongestJob, '\0')};
}
int Roll::world() const { return page().world; }
int Roll::first() const { return page().first; }

std::optional<int> Roll::code(int rank) const {
  if (rank < 0 || rank >= world()) return std::nullopt;
  const int stored = page().codes[rank].load(std::memory_order_relaxed);
  return stored == 0 ? std::nullopt : std::optional<int>(stored - 1);
}

}  // namespace ouro::rt

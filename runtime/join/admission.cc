// Admission. See admission.h.
#include "runtime/join/admission.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "transport/wire/codec.h"

namespace ouro::rt {
namespace {

std::string describe(int rank, const std::string& host, int pid) {
  return fmt::format("rank {} ({}, pid {})", rank, wire::printable(wire::view(host)), pid);
}

}  // namespace

Admission::Admission(const wire::Nonce& job, int world, std::string settings, std::string host, int pid)
    : job_(job), settings_(std::move(settings)), entries_(static_cast<std::size_t>(world)) {
  entries_[0] = {true, std::move(host), pid};
}

Status Admission::twice(int rank, const std::string& first_host, int first_pid, const std::string& host,
                        int pid) {
  return {Reason::refused, fmt::format("duplicate-rank: {} joined first, then {}; expected each rank once",
                                       describe(rank, first_host, first_pid), describe(rank, host, pid))};
}

Admission::Decision Admission::consider(const wire::Join& join) {
  const int rank = static_cast<int>(join.rank);
  const std::string who = describe(rank, join.host, join.pid);
  const std::string me = describe(0, entries_[0].host, entries_[0].pid);
  const auto refuse = [](std::string text) {
    return Decision{Verdict::turn_away, Status(Reason::refused, std::move(text))};
  };
  const auto give_up = [](std::string text) {
    return Decision{Verdict::give_up, Status(Reason::mismatch, std::move(text))};
  };
  if (join.job != job_) return refuse("wrong-job: this id names another job");
  if (join.world != entries_.size())
    return give_up(
        fmt::format("world sizes differ: {} says {}, {} says {}", who, join.world, me, entries_.size()));
  if (join.rank >= join.world) return refuse(fmt::format("rank-range: rank {} of {}", join.rank, join.world));
  Entry& entry = entries_[join.rank];
  if (entry.taken) return {Verdict::give_up, twice(rank, entry.host, entry.pid, join.host, join.pid)};
  if (join.settings != settings_)
    return give_up(
        fmt::format("settings differ: {} has '{}', {} has '{}'", who, join.settings, me, settings_));
  entry = {true, join.host, join.pid};
  ++admitted_;
  return {};
}

void Admission::vacate(int rank) {
  Entry& entry = entries_[static_cast<std::size_t>(rank)];
  if (rank != 0 && entry.taken) --admitted_, entry = {};
}

Status Admission::lost(int rank) const {
  const Entry& entry = entries_[static_cast<std::size_t>(rank)];
  return Status(Failure{.reason = Reason::peer_dead,
                        .text = "it ended while the job was forming",
                        .rank = rank,
                        .host = entry.host,
                        .pid = entry.pid,
                        .detector = "socket"});
}

Status Admission::absent(int rank, int code) const {
  return Status(Failure{.reason = Reason::never_joined,
                        .text = fmt::format("it ended with exit code {} before it joined; joined {}/{}", code,
                                            admitted_, entries_.size()),
                        .rank = rank,
                        .detector = "launcher"});
}

Status Admission::expired(double seconds) const {
  return {Reason::never_joined, fmt::format("ranks {{{}}} never joined; {}/{} did within {} s",
                                            fmt::join(missing(), ","), admitted_, entries_.size(), seconds)};
}

std::vector<int> Admission::missing() const {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < entries_.size(); ++r)
    if (!entries_[r].taken) ranks.push_back(static_cast<int>(r));
  return ranks;
}

}  // namespace ouro::rt

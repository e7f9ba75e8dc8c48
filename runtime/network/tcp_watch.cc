// Judges network paths by samples of TCP connections. See tcp_watch.h.
#include "runtime/network/tcp_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
/// Heartbeats and acknowledgements that were sent before the silence may still arrive for so long.
constexpr auto kOnItsWay = 375ms;
/// Older acknowledgements prove nothing: each heartbeat is acknowledged.
constexpr auto kRecently = 1s;
/// The longest time before a first retransmission, without the round trip.
constexpr auto kFirstWait = 300ms;
constexpr auto kNotBefore = 10s;  // two warnings are at least so far apart
constexpr auto kSayAgain = 5min;

constexpr auto kHalf = 5s, kLongestHalf = 60s;
constexpr std::uint64_t kSegments = 200;  // in half a window
constexpr double kLossy = 0.03;
constexpr std::uint64_t kLeastAgain = 10;
constexpr int kLeastBeats = 5;

constexpr double kLeastSeconds = 0.9;  // four heartbeat intervals, one of them a little short
/// A healthy path acknowledges bytes after so many round trips at most: one on the way, one in which the
/// other end may hold an acknowledgement back, and one for a retransmission.
constexpr double kHealthyTrips = 3;
constexpr auto kGap = 1s;  // a longer one between two samples: this process was stopped

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

std::vector<TcpChange> TcpChanges::take(std::vector<transport::TcpSample> samples) {
  std::vector<TcpChange> changes;
  for (const transport::TcpSample& s : samples) {
    const auto b = std::ranges::find(before_, s.connection, &transport::TcpSample::connection);
    if (b == before_.end()) continue;
    changes.push_back({.data = s.data,
                       .counted = s.segments_in > 0,
                       .segments_in = s.segments_in - b->segments_in,
                       .data_segments_out = s.data_segments_out - b->data_segments_out,
                       .retransmitted = s.retransmitted - b->retransmitted,
                       .duplicates = s.duplicates - b->duplicates,
                       .acked = s.bytes_acked - b->bytes_acked,
                       .queued_before = b->queued,
                       .queued = s.queued,
                       .unanswered_before = b->unanswered,
                       .unanswered = s.unanswered,
                       .round_trip = s.round_trip,
                       .shortest_round_trip = s.shortest_round_trip});
  }
  before_ = std::move(samples);
  return changes;
}

void SilenceWatch::take(std::span<const TcpChange> changes, Clock::time_point last_received,
                        Clock::time_point now) {
  const auto before = now_;
  if (last_received != last_received_) {
    const bool known = known_;
    *this = {};
    known_ = known, last_received_ = last_received;
  }
  now_ = now;
  for (const TcpChange& c : changes) {
    known_ |= c.counted;
    round_trip_ = std::max<Clock::duration>(round_trip_, c.round_trip);
    if (c.unanswered && unanswered_ == Clock::time_point{}) unanswered_ = now;
    // The segments that arrived were sent after this rank's first retransmission should have arrived there.
    if (c.acked == 0 && before >= last_received && c.unanswered_before && c.unanswered && c.segments_in > 0)
      outbound_lost_ = true;
  }
  if (std::ranges::any_of(changes, [](const TcpChange& c) { return c.acked > 0; }))
    outbound_lost_ = false, unanswered_ = {};
  if (changes.empty()) return;
  to_ = now;
  if (before - last_received < kOnItsWay + round_trip_) return;
  if (from_ == Clock::time_point{}) from_ = before;
  for (const TcpChange& c : changes) {
    arrives_ |= c.segments_in > 0;
    if (c.acked > 0) acked_ = now;
  }
}

Way SilenceWatch::way() const {
  if (!known_) return Way::unknown;
  if (acked_ != Clock::time_point{}) return now_ - acked_ <= kRecently ? Way::passes : Way::unknown;
  if (outbound_lost_) return Way::outbound_lost;
  // If packets from there arrived, the other end's retransmissions would: each waits twice as long as the one
  // before, so one must arrive before the time of the silence has doubled.
  const bool long_enough =
      from_ != Clock::time_point{} &&
      to_ - last_received_ >= 2 * (from_ - last_received_) + kFirstWait + 2 * round_trip_;
  return unanswered_ != Clock::time_point{} && !arrives_ && long_enough ? Way::nothing_arrives : Way::unknown;
}

std::string SilenceWatch::text(std::string_view host) const {
  switch (way()) {
    case Way::unknown:
      return "";
    case Way::passes:
      return fmt::format(
          "packets pass both ways (its system acknowledges what this rank sends): its process is stopped or "
          "hangs, or some packets from {} are lost or late, large ones perhaps",
          host);
    case Way::outbound_lost:
      return fmt::format(
          "packets from {0} arrive, and for {1:.1f} s none has acknowledged what this rank sends: packets "
          "are lost on the way from this host to {0}, or a round trip takes longer than that",
          host, seconds(to_ - unanswered_));
    case Way::nothing_arrives:
      return fmt::format(
          "no packet has come from {0} for {1:.1f} s: packets are lost on the way from there to this "
          "host, or take longer than that, or {0} is down; "
          "whether packets from this host arrive there is not known",
          host, seconds(to_ - from_));
  }
  return "";
}

bool Repeat::due(double severity, Clock::time_point now) {
  const auto since = now - at_;
  if (said_ > 0 && (since < kNotBefore || (severity < 2 * said_ && since < kSayAgain))) return false;
  said_ = severity;
  at_ = now;
  return true;
}

std::optional<LossWatch::Loss> LossWatch::take(std::span<const TcpChange> changes, Clock::time_point now) {
  if (now_.begin == Clock::time_point{}) now_.begin = before_.begin = now;
  bool again = false;
  for (const TcpChange& c : changes) {
    now_.sent += c.data_segments_out;
    now_.again += c.retransmitted;
    now_.duplicates += c.duplicates;
    again |= c.retransmitted > 0;
  }
  now_.beats += again;
  const std::uint64_t all = now_.again + before_.again, duplicates = now_.duplicates + before_.duplicates;
  const Loss loss{.sent = now_.sent + before_.sent,
                  .again = all - std::min(all, duplicates),
                  .seconds = seconds(now - before_.begin)};
  const int beats = now_.beats + before_.beats;
  const auto age = now - now_.begin;
  if (age >= kLongestHalf || (age >= kHalf && now_.sent >= kSegments)) before_ = std::exchange(now_, {now});
  if (loss.again < kLeastAgain || beats < kLeastBeats || loss.sent == 0 || loss.rate() < kLossy) return {};
  return loss;
}

void RateWatch::take(std::span<const TcpChange> changes, Clock::time_point now) {
  const auto since = now - std::exchange(before_, now);
  if (since > kGap) taken_ = 0;
  Interval b{.seconds = seconds(since)};
  for (const TcpChange& c : changes) {
    if (!c.data) continue;
    b.acked += c.acked;
    b.queued_before += c.queued_before;
    b.queued += c.queued;
    b.round_trip = std::max(b.round_trip, c.shortest_round_trip);
  }
  if (since <= kGap) beats_[taken_++ % kBeats] = b;
}

std::optional<RateWatch::Slow> RateWatch::slow() const {
  const std::size_t n = std::min(taken_, kBeats);
  const auto back = [this](std::size_t i) -> const Interval& { return beats_[(taken_ - 1 - i) % kBeats]; };
  Slow s;
  std::uint64_t acked = 0;
  std::size_t beats = 0;
  for (; beats < n && back(beats).always_queued(); ++beats)
    s.seconds += back(beats).seconds, acked += back(beats).acked;
  if (acked == 0 || s.seconds < kLeastSeconds) return {};
  s.queued = back(0).queued;
  s.rate = static_cast<double>(acked) / s.seconds;
  if (s.rate >= kCrawl) return {};
  // What is queued when a beat begins is acknowledged within `wait` beats, unless it waits for longer. If the
  // path has such a long round trip that these are more than all beats, nothing is known.
  const double beat = s.seconds / static_cast<double>(beats);
  const auto wait =
      static_cast<std::size_t>(std::max(1.0, std::ceil(kHealthyTrips * seconds(back(0).round_trip) / beat)));
  std::uint64_t begun = 0, ended = 0;
  for (std::size_t first = wait; first <= beats; ++first) {
    begun += back(first - 1).queued_before;
    for (std::size_t i = first - wait; i < first; ++i) ended += back(i).acked;
  }
  return begun > ended ? std::optional(s) : std::nullopt;
}

}  // namespace ouro::rt

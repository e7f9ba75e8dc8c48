// Judges network paths by samples of TCP connections. See tcp_watch.h.
#include "runtime/network/tcp_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
/// For so long heartbeats and acknowledgements that were sent before the silence may still arrive.
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
constexpr auto kGap = 1s;              // a longer one between two samples: this process was stopped

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
                       .received = s.bytes_received - b->bytes_received,
                       .queued_before = b->queued,
                       .queued = s.queued,
                       .unanswered_before = b->unanswered,
                       .unanswered = s.unanswered,
                       .round_trip = s.round_trip});
  }
  before_ = std::move(samples);
  return changes;
}

void SilenceWatch::take(std::span<const TcpChange> changes, Clock::time_point heard, Clock::time_point now) {
  const auto before = now_;
  if (heard != heard_) {
    const bool known = known_;
    *this = {};
    known_ = known, heard_ = heard;
  }
  now_ = now;
  for (const TcpChange& c : changes) {
    known_ |= c.counted;
    round_trip_ = std::max<Clock::duration>(round_trip_, c.round_trip);
    if (c.unanswered && unanswered_ == Clock::time_point{}) unanswered_ = now;
    // The segments that arrived were sent after this rank's first retransmission should have arrived there.
    if (c.acked == 0 && before >= heard && c.unanswered_before && c.unanswered && c.segments_in > 0)
      there_lost_ = true;
  }
  if (std::ranges::any_of(changes, [](const TcpChange& c) { return c.acked > 0; }))
    there_lost_ = false, unanswered_ = {};
  if (changes.empty()) return;
  to_ = now;
  if (before - heard < kOnItsWay + round_trip_) return;
  if (from_ == Clock::time_point{}) from_ = before;
  for (const TcpChange& c : changes) {
    arrives_ |= c.segments_in > 0;
    if (c.acked > 0) acked_ = now;
  }
}

Way SilenceWatch::way() const {
  if (!known_) return Way::unknown;
  if (acked_ != Clock::time_point{}) return now_ - acked_ <= kRecently ? Way::passes : Way::unknown;
  if (there_lost_) return Way::there_lost;
  // If packets from there arrived, the other end's retransmissions would: each waits twice as long as the one
  // before, so one must arrive before the time of the silence has doubled.
  const bool long_enough =
      from_ != Clock::time_point{} && to_ - heard_ >= 2 * (from_ - heard_) + kFirstWait + 2 * round_trip_;
  return unanswered_ != Clock::time_point{} && !arrives_ && long_enough ? Way::nothing_comes : Way::unknown;
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
    case Way::there_lost:
      return fmt::format(
          "packets from {0} arrive, and for {1:.1f} s none has acknowledged what this rank sends: "
          "packets are lost on the way from this host to {0}, or a round trip takes longer than that",
          host, seconds(to_ - unanswered_));
    case Way::nothing_comes:
      return fmt::format(
          "no packet has come from {0} for {1:.1f} s: packets are lost on the way from there to this "
          "host, or take longer than that, or {0} is down; whether packets from this host arrive there "
          "is not known",
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
  Beat b{.seconds = seconds(since)};
  std::uint64_t queued_before = 0;
  for (const TcpChange& c : changes) {
    if (!c.data) continue;
    b.acked += c.acked;
    b.received += c.received;
    b.queued += c.queued;
    queued_before += c.queued_before;
  }
  b.always_queued = b.queued > 0 && queued_before > 0;
  if (since <= kGap) beats_[taken_++ % kBeats] = b;
}

std::vector<RateWatch::Slow> RateWatch::slow() const {
  std::vector<Slow> slow;
  const auto add_if_it_crawls = [&slow](Slow s, std::uint64_t bytes) {
    if (bytes == 0 || s.seconds < kLeastSeconds) return;
    s.rate = static_cast<double>(bytes) / s.seconds;
    if (s.rate < kCrawl) slow.push_back(s);
  };
  const std::size_t n = std::min(taken_, kBeats);
  const auto back = [this](std::size_t i) -> const Beat& { return beats_[(taken_ - 1 - i) % kBeats]; };
  Slow out{.outbound = true}, in;
  std::uint64_t acked = 0, received = 0;
  for (std::size_t i = 0; i < n && back(i).always_queued; ++i)
    out.seconds += back(i).seconds, acked += back(i).acked;
  if (out.seconds > 0) out.queued = back(0).queued;
  std::size_t arrived = 0;
  for (std::size_t i = 0; i < n; ++i) {
    in.seconds += back(i).seconds;
    received += back(i).received;
    arrived += back(i).received > 0;
  }
  add_if_it_crawls(out, acked);
  if (2 * arrived >= n) add_if_it_crawls(in, received);
  return slow;
}

}  // namespace ouro::rt

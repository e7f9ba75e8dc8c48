// Tests of the judgements about the network path between two hosts: sequences of samples like those of the
// kernel, at times that the tests choose.
#include "runtime/network/tcp_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "runtime/core/fd.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
using transport::TcpSample;

constexpr auto kBeat = 250ms;
const Clock::time_point kStart = Clock::time_point{} + 100s;

// ---- differences of samples ----

TEST(TcpChanges, CountersAreSubtractedAcrossAWrap) {
  TcpChanges changes;
  TcpSample a{.connection = 1, .segments_in = 0xfffffffe, .bytes_acked = 10, .queued = 7};
  EXPECT_TRUE(changes.take({a}).empty()) << "the first sample says nothing of the time before";
  a.segments_in = 3, a.bytes_acked = 15, a.queued = 9, a.unanswered = true;
  const auto one = changes.take({a});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].segments_in, 5u);
  EXPECT_EQ(one[0].acked, 5u);
  EXPECT_EQ(one[0].queued_before, 7u);
  EXPECT_EQ(one[0].queued, 9u);
  EXPECT_TRUE(one[0].unanswered);
  EXPECT_TRUE(one[0].counted);
}

TEST(TcpChanges, NewConnectionYieldsNoChangeAtFirst) {
  TcpChanges changes;
  (void)changes.take({{.connection = 1, .segments_in = 100}, {.connection = 2, .segments_in = 5}});
  const auto left = changes.take({{.connection = 2, .segments_in = 6}, {.connection = 3, .segments_in = 50}});
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].segments_in, 1u);
}

// ---- silence ----

/// Feeds healthy heartbeat intervals, then a silence of `beats` intervals with the changes that `change`
/// returns. Returns the judgement after it.
Way after_silence(int beats, const std::function<TcpChange(int)>& change,
                  std::chrono::microseconds round_trip = {}) {
  SilenceWatch watch;
  auto now = kStart;
  const TcpChange healthy{.counted = true, .segments_in = 2, .acked = 30, .round_trip = round_trip};
  for (int i = 0; i < 4; ++i, now += kBeat) watch.take(std::span(&healthy, 1), now, now);
  const auto heard = now - kBeat;
  for (int i = 0; i < beats; ++i, now += kBeat) {
    TcpChange c = change(i);
    c.round_trip = round_trip;
    watch.take(std::span(&c, 1), heard, now);
  }
  return watch.way();
}
/// The change of interval `beat` if a heartbeat of this rank and its retransmissions are lost.
TcpChange unanswered(int beat, std::uint32_t segments_in = 0) {
  return {.segments_in = segments_in, .unanswered_before = beat > 1, .unanswered = beat > 0};
}

TEST(SilenceWatch, RetransmissionsOfThePeerMeanOutboundLoss) {
  // The other end receives no acknowledgement and retransmits after 0.2 s, 0.6 s and 1.4 s.
  const auto change = [](int i) { return unanswered(i, i == 0 || i == 2 || i == 5); };
  EXPECT_EQ(after_silence(4, change), Way::outbound_lost);
  EXPECT_EQ(after_silence(6, change), Way::outbound_lost);
  EXPECT_EQ(after_silence(20, change), Way::outbound_lost);
}

TEST(SilenceWatch, LongSilenceMeansThatNothingArrives) {
  const auto change = [](int i) { return unanswered(i); };
  EXPECT_EQ(after_silence(4, change), Way::unknown) << "the other end may be about to send again";
  EXPECT_EQ(after_silence(8, change), Way::nothing_arrives);
}

TEST(SilenceWatch, LateRetransmissionRefutesThatNothingArrives) {
  for (const int late : {3, 5, 11})
    EXPECT_NE(after_silence(20, [=](int i) { return unanswered(i, i == late); }), Way::nothing_arrives);
}

TEST(SilenceWatch, AcknowledgementsMeanThatThePathPasses) {
  EXPECT_EQ(after_silence(5, [](int) { return TcpChange{.segments_in = 1, .acked = 30}; }), Way::passes);
}

TEST(SilenceWatch, OldAcknowledgementsProveNothing) {
  EXPECT_EQ(
      after_silence(
          12, [](int i) { return i < 4 ? TcpChange{.segments_in = 1, .acked = 30} : unanswered(i - 4); }),
      Way::unknown);
}

TEST(SilenceWatch, WithoutUnansweredDataThePathIsUnknown) {
  EXPECT_EQ(after_silence(20, [](int) { return TcpChange{}; }), Way::unknown);
  EXPECT_EQ(after_silence(20, [](int) { return TcpChange{.segments_in = 1}; }), Way::unknown);
}

TEST(SilenceWatch, SegmentsInFlightAtTheStartDoNotCount) {
  // An acknowledgement and a segment arrive shortly after the last sign of life, then nothing.
  const auto late = [](int i) {
    return i == 0 ? TcpChange{.segments_in = 1, .acked = 30} : unanswered(i - 1);
  };
  EXPECT_EQ(after_silence(10, late), Way::nothing_arrives);
  // If a round trip takes a second, segments that were in flight arrive for longer, and the first
  // retransmission is due later.
  const auto slow = [](int i) { return i < 4 ? TcpChange{.segments_in = 1} : unanswered(i - 3); };
  EXPECT_EQ(after_silence(12, slow, 1s), Way::unknown);
  EXPECT_EQ(after_silence(24, slow, 1s), Way::nothing_arrives);
}

TEST(SilenceWatch, AnAcknowledgementRefutesTheLoss) {
  EXPECT_EQ(
      after_silence(
          9, [](int i) { return i == 7 ? TcpChange{.segments_in = 1, .acked = 30} : unanswered(i, 1); }),
      Way::passes);
}

TEST(SilenceWatch, ASignOfLifeDiscardsTheEvidence) {
  SilenceWatch watch;
  auto now = kStart;
  const TcpChange lost{.counted = true, .segments_in = 1, .unanswered_before = true, .unanswered = true};
  for (int i = 0; i < 6; ++i, now += kBeat) watch.take(std::span(&lost, 1), kStart, now);
  EXPECT_EQ(watch.way(), Way::outbound_lost);
  watch.take(std::span(&lost, 1), now - kBeat / 2, now);  // received after the previous sample
  EXPECT_EQ(watch.way(), Way::unknown);
}

TEST(SilenceWatch, EvidenceOutlivesTheConnection) {
  for (const std::uint32_t comes : {0u, 1u}) {
    SilenceWatch watch;
    auto now = kStart;
    const TcpChange lost{
        .counted = true, .segments_in = comes, .unanswered_before = true, .unanswered = true};
    for (int i = 0; i < 10; ++i, now += kBeat) watch.take(std::span(&lost, 1), kStart, now);
    for (int i = 0; i < 10; ++i, now += kBeat) watch.take({}, kStart, now);
    EXPECT_EQ(watch.way(), comes ? Way::outbound_lost : Way::nothing_arrives);
  }
}

TEST(SilenceWatch, TimeWithoutAConnectionIsNoEvidence) {
  SilenceWatch watch;
  auto now = kStart;
  const TcpChange lost{.counted = true, .unanswered_before = true, .unanswered = true};
  for (int i = 0; i < 5; ++i, now += kBeat) watch.take(std::span(&lost, 1), kStart, now);
  for (int i = 0; i < 20; ++i, now += kBeat) watch.take({}, kStart, now);
  EXPECT_EQ(watch.way(), Way::unknown) << "not observed for long enough";
}

TEST(SilenceWatch, KernelWithoutCountersProvesNothing) {
  SilenceWatch watch;
  auto now = kStart;
  const TcpChange lost{.unanswered_before = true, .unanswered = true};
  for (int i = 0; i < 20; ++i, now += kBeat) watch.take(std::span(&lost, 1), kStart, now);
  EXPECT_EQ(watch.way(), Way::unknown);
}

TEST(SilenceWatch, TextNamesHostDirectionAndTime) {
  const auto text = [](std::uint32_t comes, std::uint64_t acked) {
    SilenceWatch watch;
    const bool lost = acked == 0;
    const TcpChange c{
        .counted = true, .segments_in = comes, .acked = acked, .unanswered_before = lost, .unanswered = lost};
    auto now = kStart;
    for (int i = 0; i < 9; ++i, now += kBeat) watch.take(std::span(&c, 1), kStart, now);
    return watch.text("10.0.0.2");
  };
  EXPECT_EQ(SilenceWatch().text("10.0.0.2"), "");
  EXPECT_THAT(text(1, 0), testing::AllOf(testing::HasSubstr("for 2.0 s none has acknowledged"),
                                         testing::HasSubstr("lost on the way from this host to 10.0.0.2")));
  EXPECT_THAT(text(0, 0), testing::AllOf(testing::HasSubstr("no packet has come from 10.0.0.2 for 1.5 s"),
                                         testing::HasSubstr("is not known")));
  EXPECT_THAT(text(1, 30), testing::HasSubstr("stopped or hangs"));
}

// ---- repetition ----

TEST(Repeat, IsDueWhenDoubledAfterTenSecondsOrAfterMinutes) {
  Repeat said;
  EXPECT_TRUE(said.due(0.05, kStart));
  EXPECT_FALSE(said.due(0.05, kStart + 1s));
  EXPECT_FALSE(said.due(0.09, kStart + 2s));
  EXPECT_FALSE(said.due(0.80, kStart + 9s)) << "no more than once in 10 s";
  EXPECT_FALSE(said.due(0.09, kStart + 11s));
  EXPECT_TRUE(said.due(0.11, kStart + 12s));
  EXPECT_FALSE(said.due(0.80, kStart + 21s));
  EXPECT_FALSE(said.due(0.11, kStart + 4min));
  EXPECT_TRUE(said.due(0.03, kStart + 6min));
}

// ---- loss ----

/// Feeds heartbeat intervals with `sent` segments each, of which every `nth` is retransmitted (0: none).
/// Returns the first loss that deserves a warning.
std::optional<LossWatch::Loss> watch_loss(int beats, std::uint32_t sent, std::uint32_t nth,
                                          bool reported = false) {
  LossWatch watch;
  auto now = kStart;
  std::uint32_t all = 0;
  for (int i = 0; i < beats; ++i, now += kBeat) {
    const std::uint32_t before = nth ? all / nth : 0;
    all += sent;
    const std::uint32_t again = nth ? all / nth - before : 0;
    const TcpChange c{.data_segments_out = sent, .retransmitted = again, .duplicates = reported ? again : 0};
    if (auto loss = watch.take(std::span(&c, 1), now)) return loss;
  }
  return {};
}

TEST(LossWatch, FivePercentLossIsReportedWithinSeconds) {
  const auto loss = watch_loss(40, 20, 20);
  ASSERT_TRUE(loss);
  EXPECT_NEAR(loss->rate(), 0.05, 0.01);
  EXPECT_LE(loss->seconds, 10);
}

TEST(LossWatch, LossOnAnIdleLineIsReportedWithinMinutes) {
  EXPECT_FALSE(watch_loss(80, 1, 20));
  const auto loss = watch_loss(4 * 180, 1, 20);
  ASSERT_TRUE(loss);
  EXPECT_NEAR(loss->rate(), 0.05, 0.01);
}

TEST(LossWatch, LossOfOnePercentIsNotReported) {
  EXPECT_FALSE(watch_loss(4 * 600, 20, 100));
  EXPECT_FALSE(watch_loss(4 * 600, 1000, 1000));
  EXPECT_FALSE(watch_loss(4 * 600, 1, 0)) << "idle";
  EXPECT_FALSE(watch_loss(4 * 600, 5000, 0));
}

TEST(LossWatch, NeedlessRetransmissionsDoNotCount) { EXPECT_FALSE(watch_loss(4 * 600, 20, 10, true)); }

TEST(LossWatch, OneInterruptionIsNotReportedAsLoss) {
  LossWatch watch;
  auto now = kStart;
  // Everything that was in flight when the cable was pulled is retransmitted when it is back.
  for (const std::uint32_t again : {1u, 1u, 500u, 20u}) {
    const TcpChange c{.data_segments_out = again, .retransmitted = again};
    EXPECT_FALSE(watch.take(std::span(&c, 1), now));
    now += kBeat;
  }
}

TEST(LossWatch, ALossThatEndsIsForgotten) {
  LossWatch watch;
  auto now = kStart;
  const TcpChange lossy{.data_segments_out = 50, .retransmitted = 5}, good{.data_segments_out = 50};
  for (int i = 0; i < 40; ++i, now += kBeat) (void)watch.take(std::span(&lossy, 1), now);
  EXPECT_TRUE(watch.take(std::span(&lossy, 1), now));
  for (int i = 0; i < 60; ++i, now += kBeat) (void)watch.take(std::span(&good, 1), now);
  EXPECT_FALSE(watch.take(std::span(&good, 1), now));
}

// ---- rate ----

std::optional<RateWatch::Slow> watch_rate(const std::function<TcpChange(int)>& change, int beats = 12) {
  RateWatch watch;
  auto now = kStart;
  watch.take({}, now);
  for (int i = 0; i < beats; ++i) {
    const TcpChange c = change(i);
    watch.take(std::span(&c, 1), now += kBeat);
  }
  return watch.slow();
}

TEST(RateWatch, SlowlyDrainingQueueIsReported) {
  const auto slow = watch_rate([](int) {
    return TcpChange{.data = true, .acked = 30'000, .queued_before = 60'000, .queued = 50'000};
  });
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->queued, 50'000u);
  EXPECT_NEAR(slow->rate, 120'000, 1);
  EXPECT_NEAR(slow->seconds, 2, 0.01);
}

/// Operations that wait for each other: the queue is short where one ends.
TEST(RateWatch, QueueThatDrainsInSlowBurstsIsReported) {
  EXPECT_TRUE(watch_rate([](int i) {
    const std::uint64_t left[] = {80'000, 50'000, 20'000};
    return TcpChange{
        .data = true, .acked = 30'000, .queued_before = left[i % 3], .queued = left[(i + 1) % 3]};
  }));
}

TEST(RateWatch, FastIdleAndBrieflyQueuedLinesAreNotReported) {
  EXPECT_FALSE(watch_rate([](int) { return TcpChange{.data = true}; })) << "idle";
  EXPECT_FALSE(watch_rate([](int) {
    return TcpChange{.data = true, .acked = 1 << 20, .queued_before = 1 << 20, .queued = 1 << 20};
  })) << "4 MiB a second";
  EXPECT_FALSE(watch_rate([](int) {
    return TcpChange{.data = true, .acked = 25'000'000, .queued_before = 4 << 20, .queued = 4 << 20};
  })) << "100 MB a second";
  EXPECT_FALSE(watch_rate([](int i) {
    return TcpChange{.data = true, .acked = 1000, .queued = i % 2 ? 1000u : 0u};
  })) << "small operations, one after the other";
  EXPECT_FALSE(watch_rate([](int) { return TcpChange{.data = true, .queued_before = 1000, .queued = 1000}; }))
      << "nothing moves: that is a silence";
  EXPECT_FALSE(watch_rate([](int) { return TcpChange{.acked = 30, .queued_before = 1000, .queued = 1000}; }))
      << "a control line";
}

TEST(RateWatch, SmallSteadyFramesAreNotReported) {
  EXPECT_FALSE(watch_rate([](int) {
    return TcpChange{.data = true, .acked = 10'000, .queued_before = 240, .queued = 80};
  })) << "the credits of a receiver";
  EXPECT_FALSE(watch_rate([](int) {
    return TcpChange{.data = true, .acked = 100'000, .queued_before = 100'000, .queued = 100'000};
  })) << "bursts with the heartbeat's period";
  // Where a round trip takes 500 ms, the frames of two beats are under way.
  const auto frames = [](int) {
    return TcpChange{.data = true,
                     .acked = 10'000,
                     .queued_before = 20'000,
                     .queued = 20'000,
                     .shortest_round_trip = 500ms};
  };
  EXPECT_FALSE(watch_rate(frames));
  const auto crawling = [&](int i) {
    TcpChange c = frames(i);
    c.queued_before = c.queued = 70'000;  // seven beats, more than three round trips
    return c;
  };
  EXPECT_TRUE(watch_rate(crawling));
  EXPECT_FALSE(watch_rate([&](int i) {
    TcpChange c = crawling(i);
    c.shortest_round_trip = 1s;
    return c;
  })) << "three round trips are longer than all beats";
  EXPECT_FALSE(watch_rate([](int i) {
    TcpChange c{
        .data = true, .acked = 1000, .queued_before = 2000, .queued = 2000, .shortest_round_trip = 500ms};
    if (i == 10 || i == 11) c.queued_before = 300'000;
    if (i == 9 || i == 10 || i == 11) c.queued = 300'000;
    return c;
  })) << "a single burst among small frames, on its way for two beats";
}

/// Only queued bytes count: a rank that sends much over a link and gets little back has a healthy link.
TEST(RateWatch, SmallFramesDuringALargeTransferAreNotReported) {
  RateWatch watch;
  auto now = kStart;
  watch.take({}, now);
  const TcpChange both[] = {{.data = true, .acked = 25'000'000, .queued_before = 8 << 20, .queued = 8 << 20},
                            {.data = true, .acked = 10'000, .queued_before = 80, .queued = 80}};
  for (int i = 0; i < 12; ++i) watch.take(both, now += kBeat);
  EXPECT_FALSE(watch.slow());
}

TEST(RateWatch, LineThatBecomesSlowIsReported) {
  const auto slow = watch_rate([](int i) {
    return i < 8 ? TcpChange{.data = true, .acked = 1 << 20}
                 : TcpChange{.data = true, .acked = 30'000, .queued_before = 60'000, .queued = 50'000};
  });
  ASSERT_TRUE(slow);
  EXPECT_NEAR(slow->rate, 120'000, 1);
  EXPECT_NEAR(slow->seconds, 1, 0.01);
}

TEST(RateWatch, SlowLineIsReportedAfterASecondWithoutAStop) {
  const auto crawling = [](int) {
    return TcpChange{.data = true, .acked = 30'000, .queued_before = 60'000, .queued = 50'000};
  };
  EXPECT_FALSE(watch_rate(crawling, 3));
  EXPECT_TRUE(watch_rate(crawling, 4));
  RateWatch watch;
  auto now = kStart;
  const TcpChange c = crawling(0);
  for (int i = 0; i < 8; ++i) watch.take(std::span(&c, 1), now += kBeat);
  watch.take(std::span(&c, 1), now += 3s);
  EXPECT_FALSE(watch.slow());
}

// ---- the kernel ----

/// Both ends of a connection on the loopback.
std::pair<Fd, Fd> tcp_pair() {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), at, size), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), at, &size), 0);
  Fd a(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(a.get(), at, size), 0);
  return {std::move(a), Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}
/// Writes up to `bytes` bytes without blocking. Returns how many were written.
std::size_t fill(const Fd& socket, std::size_t bytes) {
  const std::vector<char> all(bytes);
  std::size_t sent = 0;
  while (sent < bytes) {
    const ssize_t n = send(socket.get(), all.data(), bytes - sent, MSG_DONTWAIT);
    if (n <= 0) break;
    sent += static_cast<std::size_t>(n);
  }
  return sent;
}

TEST(TcpSample, CountsSegmentsOfALoopbackConnection) {
  const auto [a, b] = tcp_pair();
  const std::uint64_t number = transport::number_connection();
  EXPECT_NE(number, transport::number_connection());
  const auto before = transport::sample_tcp(a.get(), number, true);
  ASSERT_TRUE(before);
  const std::size_t sent = fill(a, 100'000);
  std::vector<char> bytes(sent);
  ASSERT_EQ(recv(b.get(), bytes.data(), sent, MSG_WAITALL), static_cast<ssize_t>(sent));
  const auto after = transport::sample_tcp(a.get(), number, true);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->connection, number);
  EXPECT_TRUE(after->data);
  EXPECT_GT(after->segments_in, 0u);
  EXPECT_GT(after->data_segments_out, before->data_segments_out);
  EXPECT_EQ(after->retransmitted, 0u);
  EXPECT_FALSE(after->unanswered);
  EXPECT_GT(after->shortest_round_trip, 0us);
  const auto there = transport::sample_tcp(b.get(), 0, false);
  ASSERT_TRUE(there);
  EXPECT_FALSE(transport::sample_tcp(-1, 0, false));
}

TEST(TcpSample, UnreadBytesAreReportedAsQueued) {
  const auto [a, b] = tcp_pair();
  const std::size_t sent = fill(a, 64 << 20);
  const auto s = transport::sample_tcp(a.get(), 0, true);
  ASSERT_TRUE(s);
  EXPECT_GT(s->queued, 0u);
  EXPECT_LT(s->queued, sent);  // the rest is in the receive buffer of the other end
}

}  // namespace
}  // namespace ouro::rt

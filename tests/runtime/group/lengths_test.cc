// Lengths beyond any address space, in each call that takes one: they are refused, and the error is
// not sticky.
#include <gtest/gtest.h>

#include "ouro/train/roles.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

/// Lengths just beyond the address space, and lengths so large that they wrap around.
TEST(Lengths, OverflowingLengthsOfMessagesAreRefused) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    Group& g = c.world();
    double word = 1;
    const int other = 1 - c.rank();
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    constexpr std::size_t kOne = 1;
    for (const std::size_t count : {(kOne << 60) + 1, kOne << 60, kOne << 61, (kOne << 61) + 1, ~kOne}) {
      const CView data(&word, count, DType::f64);
      const View room(&word, count, DType::f64);
      auto sent = send(g, data, other, 0, *stream);
      auto received = recv(g, room, other, 0, *stream);
      const auto later = [](Result<Work>& w) { return w.ok() ? w->wait() : w.status(); };
      for (const Status& s : {send(g, data, other), recv(g, room, other).status(), send(g, data, c.rank()),
                              later(sent), later(received)})
        OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}: {}", count, s.message());
      group_start();
      const Status deferred = send(g, data, other), end = group_end();
      OURO_RANK_CHECK(end.reason() == Reason::invalid, "{}: {}, {}", count, deferred.message(),
                      end.message());
      const auto why = g.explain(Collective::all_gather, count, DType::f64);
      OURO_RANK_CHECK(why.status().reason() == Reason::invalid, "{}: {}", count, why.status().message());
    }
    const auto refused = [&](Collective which, DType t, ReduceOp op = ReduceOp::sum) {
      return g.explain(which, 10, t, op).status().reason() == Reason::invalid;
    };
    OURO_RANK_CHECK(refused(static_cast<Collective>(99), DType::f32), "no collective");
    OURO_RANK_CHECK(refused(Collective::none, DType::f32), "none");
    OURO_RANK_CHECK(refused(Collective::all_reduce, static_cast<DType>(99)), "no type");
    OURO_RANK_CHECK(refused(Collective::all_reduce, DType::f32, ReduceOp::band), "bits of floats");
    OURO_RANK_OK(g.explain(Collective::all_reduce, 1000, DType::i32, ReduceOp::band));
    for (int which = 1; which < kCollectives; ++which)
      OURO_RANK_OK(g.explain(static_cast<Collective>(which), 1000, DType::f32));
    auto boxes = g.split(0, c.rank());
    OURO_RANK_OK(boxes);
    auto mail = train::Mailbox::create(std::move(*boxes));
    OURO_RANK_OK(mail);
    const CBytes letter(reinterpret_cast<const std::byte*>(&word), (kOne << 63) + 8);
    const Status posted = mail->send(letter, other);
    OURO_RANK_CHECK(posted.reason() == Reason::invalid, "{}", posted.message());
    const Status queued = mail->isend(letter, other).status();
    OURO_RANK_CHECK(queued.reason() == Reason::invalid, "{}", queued.message());
    OURO_RANK_OK(g.status());
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test

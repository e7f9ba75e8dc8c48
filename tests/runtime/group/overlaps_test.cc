// Batches whose operations share buffers, in ways that differ from rank to rank: every rank's memory ends up
// as after the same calls one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

/// One call of a rank: the offsets in its memory where it reads and writes, in elements.
struct Call {
  Collective what;
  std::size_t count;
  std::size_t in, out;
  int root = 0;
};
using Memory = std::vector<std::int32_t>;

/// How a rank issues its calls.
enum class On { caller, one_stream, two_streams };

Result<Work> issue(Group& g, const Call& call, Memory* memory, const Stream& s) {
  const CView in(memory->data() + call.in, call.count, DType::i32);
  const View out(memory->data() + call.out, call.count, DType::i32);
  if (call.what == Collective::all_reduce) return all_reduce(g, in, out, ReduceOp::sum, s);
  if (call.what == Collective::reduce) return reduce(g, in, out, ReduceOp::sum, call.root, s);
  return broadcast(g, in, out, call.root, s);
}

/// Makes the calls one by one on a copy of `memory`, then batched on another copy; returns "" if the results
/// are equal.
std::string compare(Group& g, const std::vector<Call>& calls, const Memory& memory, On on) {
  Memory expected = memory, got = memory;
  for (const Call& call : calls) OURO_RANK_OK(issue(g, call, &expected, {}));
  std::vector<Stream> streams(calls.size());
  if (on != On::caller) {
    auto first = Stream::create(), second = Stream::create();
    OURO_RANK_OK(first);
    OURO_RANK_OK(second);
    for (std::size_t k = 0; k < calls.size(); ++k)
      streams[k] = on == On::two_streams && k % 2 == 1 ? *second : *first;
  }
  std::vector<Work> works;
  group_start();
  for (std::size_t k = 0; k < calls.size(); ++k) {
    auto work = issue(g, calls[k], &got, streams[k]);
    OURO_RANK_OK(work);
    works.push_back(*work);
  }
  OURO_RANK_OK(group_end());
  for (const Work& w : works) OURO_RANK_OK(w.wait());
  for (std::size_t i = 0; i < got.size(); ++i)
    OURO_RANK_CHECK(got[i] == expected[i], "element {}: {} in place of {}", i, got[i], expected[i]);
  return "";
}

Memory filled(int rank, std::size_t elements, unsigned seed = 1) {
  Memory memory(elements);
  std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
  for (auto& x : memory) x = static_cast<std::int32_t>(random() % 1000);
  return memory;
}

constexpr Collective kKinds[] = {Collective::all_reduce, Collective::reduce, Collective::broadcast};
constexpr std::size_t kCount = 100, kRoom = 16 * kCount;
/// Offset of the n-th region of a rank's memory.
constexpr std::size_t at(std::size_t n) { return n * kCount; }

class Overlaps : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, Overlaps, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// Runs all kinds of collectives with each rank as root, the rank whose buffers count in a rooted operation.
template <class F>
std::string of_all_kinds(Context& c, F&& calls_of) {
  for (const Collective what : kKinds)
    for (int root = 0; root < c.world().size(); ++root)
      for (const On on : {On::caller, On::one_stream, On::two_streams}) {
        std::vector<Call> calls = calls_of();
        for (Call& call : calls) call.what = what, call.root = root;
        const std::string said = compare(c.world(), calls, filled(c.rank(), kRoom), on);
        if (!said.empty())
          return fmt::format("{} root {} on {}: {}", name(what), root, static_cast<int>(on), said);
      }
  return "";
}

Call call(std::size_t in, std::size_t out, std::size_t count = kCount) { return {{}, count, in, out}; }

TEST_P(Overlaps, TwoResultsInOnePlaceKeepCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ(
      run(GetParam(), 2,
          [](Context& c) {
            const std::size_t second = c.rank() == 1 ? at(2) : at(3);
            return of_all_kinds(c, [&] { return std::vector{call(at(0), at(2)), call(at(1), second)}; });
          }),
      "");
}

TEST_P(Overlaps, ResultUsedAsInputKeepsCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ(
      run(GetParam(), 2,
          [](Context& c) {
            const std::size_t second = c.rank() == 0 ? at(2) : at(1);
            return of_all_kinds(c, [&] { return std::vector{call(at(0), at(2)), call(second, at(3))}; });
          }),
      "");
}

TEST_P(Overlaps, OverwrittenInputKeepsCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ(
      run(GetParam(), 2,
          [](Context& c) {
            const std::size_t second = c.rank() == 1 ? at(0) : at(3);
            return of_all_kinds(c, [&] { return std::vector{call(at(0), at(2)), call(at(1), second)}; });
          }),
      "");
}

/// Each rank has a different overlap, some by half a buffer, and one rank has none.
TEST_P(Overlaps, DifferentOverlapsOnEachRankKeepCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ(run(GetParam(), 4,
                [](Context& c) {
                  return of_all_kinds(c, [&]() -> std::vector<Call> {
                    const std::size_t half = kCount / 2;
                    switch (c.rank()) {
                      case 0:  // a chain
                        return {call(at(0), at(2)), call(at(2), at(4)), call(at(4), at(6))};
                      case 1:  // three overlapping results
                        return {call(at(0), at(4)), call(at(1), at(4) + half), call(at(2), at(3) + half)};
                      case 2:  // each call overwrites what the previous one has read
                        return {call(at(0), at(6)), call(at(2), at(0) + half), call(at(4), at(2) + half)};
                      default:
                        return {call(at(0), at(3)), call(at(1), at(4)), call(at(2), at(5))};
                    }
                  });
                }),
            "");
}

/// Shapes are drawn alike on all ranks; places, streams and messages are drawn by each rank for itself.
TEST_P(Overlaps, RandomOverlapsKeepCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    for (unsigned seed = 1; seed <= 60; ++seed) {
      std::mt19937 shared(seed), mine(seed * 77 + static_cast<unsigned>(c.rank()));
      const auto draw = [](std::mt19937& random, std::size_t below) { return random() % below; };
      const std::size_t most = seed % 4 == 0 ? 40'000 : 300;  // some are too large to run as one
      const std::size_t room = 4 * most;
      std::vector<Call> calls(2 + draw(shared, 7));
      Collective what = kKinds[draw(shared, 3)];
      int root = static_cast<int>(draw(shared, 3));
      for (Call& call : calls) {
        if (draw(shared, 4) == 0) what = kKinds[draw(shared, 3)], root = static_cast<int>(draw(shared, 3));
        call.what = what, call.root = root, call.count = 1 + draw(shared, most);
        do {
          call.in = draw(mine, room - call.count), call.out = draw(mine, room - call.count);
          if (draw(mine, 4) == 0) call.out = call.in;
        } while (call.in != call.out && call.in < call.out + call.count && call.out < call.in + call.count);
      }
      const On on = static_cast<On>(draw(mine, 3));
      const std::string said = compare(c.world(), calls, filled(c.rank(), room, seed), on);
      if (!said.empty()) return fmt::format("seed {}: {}", seed, said);
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Ranks may have other things in their batches: messages, and operations of other groups between
/// two operations.
TEST_P(Overlaps, MessagesAndOtherGroupsInBetweenKeepCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    const bool paired = c.rank() < 2;
    auto pair = c.world().split(paired ? 0 : -1, c.rank());
    OURO_RANK_OK(pair);
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    const auto view = [](std::int32_t& x) { return View(&x, 1, DType::i32); };
    for (const Stream& s : {*stream, Stream()}) {
      std::int32_t mine = c.rank() + 1, first = 0, between = 0, second = 0, sent = 7 + c.rank(), got = 0;
      // On a stream the middle operation depends on the first, and the last on the middle one.
      const bool chained = paired && s.valid();
      group_start();
      auto a = all_reduce(c.world(), view(mine), view(first), ReduceOp::sum, s);
      if (c.rank() == 0) OURO_RANK_OK(send(c.world(), view(sent), 1, 5, s));
      if (c.rank() == 1) OURO_RANK_OK(recv(c.world(), view(got), 0, 5, s));
      if (paired)
        OURO_RANK_OK(all_reduce(*pair, view(chained ? first : mine), view(between), ReduceOp::sum, s));
      auto b = all_reduce(c.world(), view(chained ? between : mine), view(second), ReduceOp::sum, s);
      OURO_RANK_OK(group_end());
      OURO_RANK_OK(a);
      OURO_RANK_OK(b);
      OURO_RANK_OK(a->wait());
      OURO_RANK_OK(b->wait());
      const std::int32_t last = s.valid() ? 12 + 12 + 3 : 6;
      OURO_RANK_CHECK(first == 6 && second == last && (!paired || between == (chained ? 12 : 3)), "{} {} {}",
                      first, between, second);
      OURO_RANK_OK(stream->synchronize());
      OURO_RANK_CHECK(c.rank() != 1 || got == 7, "{}", got);
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test

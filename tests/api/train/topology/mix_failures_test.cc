// What mix refuses, and the result for ranks whose calls or rows do not match.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ouro/train/topology.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;

/// The text of a failure, after its class has been checked.
std::string why(const Status& s, Code code) {
  return s.code() == code ? s.failure()->text : "another class: " + (s.ok() ? "ok" : s.message());
}

TEST(MixRefuses, WrongArguments) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<float> x(8), y(8);
    const View to = std::span<float>(y);
    const CView from = std::span<const float>(x);
    struct Wrong {
      Row row;
      CView x;
      View y;
      const char* text;
    };
    const float nan = std::nanf("");
    const Wrong all[] = {
        {{1, {{2, 1}}, {}}, from, to, "mix: takes from rank 2, which is not in the group (0..1)"},
        {{1, {}, {-1}}, from, to, "mix: gives to rank -1, which is not in the group (0..1)"},
        {{1, {{c.rank(), 1}}, {}},
         from,
         to,
         c.rank() == 0 ? "mix: takes from this rank itself (0)" : "mix: takes from this rank itself (1)"},
        {{1, {}, {1 - c.rank(), 1 - c.rank()}},
         from,
         to,
         c.rank() == 0 ? "mix: gives to rank 1 after rank 1; expected them sorted, once each"
                       : "mix: gives to rank 0 after rank 0; expected them sorted, once each"},
        {{nan, {}, {}}, from, to, "mix: weight nan of this rank's own"},
        {{1, {{1 - c.rank(), INFINITY}}, {}},
         from,
         to,
         c.rank() == 0 ? "mix: weight inf of rank 1" : "mix: weight inf of rank 0"},
        {{},
         from,
         {y.data(), 7, DType::f32},
         "mix: output has 7 elements; expected 8 (as many as the input)"},
        {{}, {x.data(), 4, DType::f64}, to, "mix: input is double, output is float"},
        {{},
         {x.data(), 8, DType::i32},
         {y.data(), 8, DType::i32},
         "mix: it is not defined on int32; expected half, bfloat16, float or double"},
        {{},
         {x.data(), 4, DType::f32},
         {x.data() + 1, 4, DType::f32},
         "mix: input and output overlap; in place is legal only where they are the same memory"},
        {{}, {nullptr, 8, DType::f32}, to, "mix: input: null buffer with count 8"},
    };
    for (const Wrong& w : all) {
      const std::string text = why(mix(g, w.row, w.x, w.y), Code::invalid);
      OURO_RANK_CHECK(text == w.text, "{} in place of {}", text, w.text);
    }
    const Device gpu{Device::Kind::cuda, 0};
    const std::string text =
        why(mix(g, {}, CView(x.data(), 8, DType::f32, gpu), View(y.data(), 8, DType::f32, gpu)),
            Code::unsupported);
    OURO_RANK_CHECK(
        text ==
            "mix: its vectors are on a GPU; expected them on the host: only hosts sum up neighbours so far",
        "{}", text);
    Group none;
    OURO_RANK_CHECK(why(mix(none, {}, from, to), Code::invalid) == "the group is an empty handle", "");
    std::vector<float> z(7);
    OURO_RANK_CHECK(why(mix_pair(g, {}, std::span(x), to, std::span(z)), Code::invalid) ==
                        "mix_pair: x, y and z differ in length or type; expected three alike",
                    "");
    OURO_RANK_OK(mix(g, {}, CView(nullptr, 0, DType::f32), View(nullptr, 0, DType::f32)));
    OURO_RANK_OK(mix(g, {0.5, {{1 - c.rank(), 0.5}}, {1 - c.rank()}}, from, to));  // no error is sticky
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(MixFails, OnAllRanksIfCountsDisagree) {
  const auto body = [](Context& c) -> std::string {
    std::vector<float> x(9);
    const std::size_t count = c.rank() == 2 ? 9 : 8;
    const Topology t = *Topology::make("complete", 3);
    const Status s = mix(c.world(), t.row(0, c.rank()), CView(x.data(), count, DType::f32),
                         View(x.data(), count, DType::f32));
    OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
    OURO_RANK_CHECK(
        s.message().find("ranks {0,1} called mix(float, count 8); ranks {2} called mix(float, count 9)") !=
            std::string::npos,
        "{}", s.message());
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// Rank 0 waits for a vector that rank 1 does not send.
TEST(MixFails, AtTheDeadlineIfAVectorIsNotSent) {
  const auto body = [](Context& c) -> std::string {
    const int all[] = {0, 1, 2};
    auto g = c.group(all, "short", {.deadline = Milliseconds(400)});
    OURO_RANK_OK(g);
    std::vector<float> x(8);
    const Status s =
        mix(*g, c.rank() == 0 ? Row{0.5, {{1, 0.5}}, {}} : Row{}, std::span<const float>(x), std::span(x));
    if (c.rank() != 0) {
      OURO_RANK_OK(s);
      OURO_RANK_OK(barrier(c.world()));
      return "";
    }
    OURO_RANK_CHECK(s.reason() == Reason::deadline && s.failure()->rank == 1 && s.failure()->op == "mix",
                    "{}", s.message());
    OURO_RANK_CHECK(
        s.failure()->text ==
            "all ranks entered, and this one got no vector of rank 1: their rows do not match, or it is slow",
        "{}", s.failure()->text);
    OURO_RANK_OK(barrier(c.world()));
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// Rank 1 sends a vector that rank 0 does not take: the next operation between them detects it.
TEST(MixFails, InTheNextOperationIfAVectorIsNotTaken) {
  const auto body = [](Context& c) -> std::string {
    std::vector<float> x(8);
    const auto step = [&](const Row& row) {
      return mix(c.world(), row, std::span<const float>(x), std::span(x));
    };
    OURO_RANK_OK(step(c.rank() == 1 ? Row{1, {}, {0}} : Row{}));
    const int other = 1 - c.rank();
    const Status s = step({0.5, {{other, 0.5}}, {other}});
    // It may have received rank 0's vector before rank 0 detected that.
    if (c.rank() == 1 && s.ok()) return "";
    OURO_RANK_CHECK(s.reason() == Reason::mismatch && s.failure()->rank == 1, "{}", s.message());
    OURO_RANK_CHECK(
        s.message().find("it gave this rank a vector in operation 1 that this rank did not take") !=
            std::string::npos,
        "{}", s.message());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// A vector that is too long for the slots cannot even be sent.
TEST(MixFails, AtTheDeadlineIfALongVectorIsNotTaken) {
  const auto body = [](Context& c) -> std::string {
    const int all[] = {0, 1};
    auto g = c.group(all, "short", {.deadline = Milliseconds(400)});
    OURO_RANK_OK(g);
    std::vector<float> x(4 << 20);
    const Status s =
        mix(*g, c.rank() == 1 ? Row{1, {}, {0}} : Row{}, std::span<const float>(x), std::span(x));
    OURO_RANK_OK(barrier(c.world()));
    if (c.rank() == 0) {
      OURO_RANK_OK(s);
      return "";
    }
    OURO_RANK_CHECK(s.reason() == Reason::deadline && s.failure()->rank == 0, "{}", s.message());
    OURO_RANK_CHECK(s.message().find("could not give its vector to rank 0") != std::string::npos, "{}",
                    s.message());
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train

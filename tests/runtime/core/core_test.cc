// The basic vocabulary: status as text and JSON, names and their parsers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro {
namespace {

Failure full() {
  Failure f;
  f.reason = Reason::peer_dead;
  f.text = "killed by signal 9";
  f.rank = 3;
  f.host = "node7";
  f.pid = 4121;
  f.group = "dp";
  f.generation = 4;
  f.op = "all_reduce";
  f.seq = 1182;
  f.detector = "pidfd";
  f.elapsed_s = 0.0002;
  f.dead = {3, 5};
  return f;
}

TEST(Status, MessageHoldsEveryFieldInOneLine) {
  EXPECT_EQ(
      Status(full()).message(),
      "ouro: peer-dead: rank 3 (node7, pid 4121) in group dp/4, all_reduce seq 1182: killed by signal 9 "
      "(detector pidfd, after 200 us); also dead: 5");
}

TEST(Status, MessageOmitsAbsentFields) {
  EXPECT_EQ(invalid("no program").message(), "ouro: invalid: no program");
  EXPECT_EQ(Status().message(), "ouro: ok");
  Failure f = full();
  f.host = "";
  f.generation = 0;
  f.detector = "";
  f.dead = {3};
  EXPECT_EQ(Status(f).message(),
            "ouro: peer-dead: rank 3 (pid 4121) in group dp, all_reduce seq 1182: killed by signal 9 (after "
            "200 us)");
  f.pid = 0;
  f.rank = -1;
  f.elapsed_s = 0;
  EXPECT_EQ(Status(f).message(),
            "ouro: peer-dead: in group dp, all_reduce seq 1182: killed by signal 9; also dead: 3");
  f.group = "";
  f.dead = {};
  EXPECT_EQ(Status(f).message(), "ouro: peer-dead: in all_reduce seq 1182: killed by signal 9");
}

TEST(Status, DurationsHaveReadableUnits) {
  Failure f{.reason = Reason::deadline, .text = "x"};
  const std::pair<double, const char*> cases[] = {
      {2e-6, "2 us"}, {0.0123, "12.3 ms"}, {5.011, "5.01 s"}, {600, "600.00 s"}};
  for (const auto& [seconds, words] : cases) {
    f.elapsed_s = seconds;
    EXPECT_EQ(Status(f).message(), std::string("ouro: deadline: x (after ") + words + ")");
  }
}

TEST(Status, JsonHoldsEveryField) {
  const auto j = nlohmann::json::parse(Status(full()).json());
  EXPECT_EQ(j["code"], "peer-lost");
  EXPECT_EQ(j["reason"], "peer-dead");
  EXPECT_EQ(j["text"], "killed by signal 9");
  EXPECT_EQ(j["rank"], 3);
  EXPECT_EQ(j["host"], "node7");
  EXPECT_EQ(j["pid"], 4121);
  EXPECT_EQ(j["group"], "dp");
  EXPECT_EQ(j["generation"], 4);
  EXPECT_EQ(j["op"], "all_reduce");
  EXPECT_EQ(j["seq"], 1182);
  EXPECT_EQ(j["detector"], "pidfd");
  EXPECT_DOUBLE_EQ(j["elapsed_s"], 0.0002);
  EXPECT_EQ(j["dead"], (std::vector<int>{3, 5}));
  EXPECT_EQ(nlohmann::json::parse(Status().json())["code"], "ok");
  EXPECT_FALSE(nlohmann::json::parse(invalid("x").json()).contains("rank"));
}

TEST(Status, BytesThatAreNotUtf8DoNotBreakJson) {
  EXPECT_TRUE(nlohmann::json::accept(invalid("host \xff\xfe").json()));
}

TEST(Status, EveryReasonHasANameAndACode) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(Reason::device); ++i) {
    const Reason r = static_cast<Reason>(i);
    EXPECT_STRNE(name(r), "?");
    names.insert(name(r));
    EXPECT_EQ(code_of(r) == Code::ok, r == Reason::none) << name(r);
    EXPECT_STRNE(name(code_of(r)), "?");
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Reason::device) + 1);
  const std::pair<Reason, Code> table[] = {
      {Reason::mismatch, Code::invalid},
      {Reason::deadline, Code::timeout},
      {Reason::never_joined, Code::timeout},
      {Reason::peer_dead, Code::peer_lost},
      {Reason::link_lost, Code::peer_lost},
      {Reason::resource, Code::system},
      {Reason::ring_corrupt, Code::system},
      {Reason::refused, Code::invalid},
      {Reason::forked, Code::invalid},
      {Reason::fenced, Code::aborted},
      {Reason::no_quorum, Code::aborted},
      {Reason::revoked, Code::aborted},
      {Reason::device, Code::cuda},
      {Reason::data_corrupt, Code::system},
      {Reason::peer_unresponsive, Code::peer_lost},
      {Reason::unsupported, Code::unsupported},
  };
  for (const auto& [reason, code] : table) EXPECT_EQ(code_of(reason), code) << name(reason);
}

TEST(Types, NamesAndParsersAgree) {
  for (int i = 0; i < kDTypes; ++i) {
    const DType t = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name(t)), t);
  }
  for (int i = 0; i < kOps; ++i) {
    const OpKind op = static_cast<OpKind>(i);
    EXPECT_EQ(parse_op(name(op)), op);
  }
  for (int i = 0; i < kCollectives; ++i) {
    const auto c = static_cast<Collective>(i);
    EXPECT_STRNE(name(c), "?");
    EXPECT_EQ(parse_collective(name(c)), c == Collective::none ? std::nullopt : std::optional(c));
  }
}

TEST(Types, OtherSpellingsAreUnderstood) {
  const std::pair<const char*, DType> same[] = {
      {"char", DType::i8},           {"float32", DType::f32},
      {"f32", DType::f32},           {"float16", DType::f16},
      {"bf16", DType::bf16},         {"float64", DType::f64},
      {"f64", DType::f64},           {"int", DType::i32},
      {"i64", DType::i64},           {"float8_e4m3fn", DType::f8e4m3},
      {"float8_e5m2", DType::f8e5m2}};
  for (const auto& [text, type] : same) EXPECT_EQ(parse_dtype(text), type) << text;
  EXPECT_EQ(parse_op("premulsum"), OpKind::premulsum);
  EXPECT_EQ(parse_dtype("quaternion"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(parse_op("Sum"), std::nullopt);
  // The spelling of nccl-tests and ouro-perf.
  EXPECT_EQ(parse_collective("alltoall"), Collective::all_to_all);
  EXPECT_EQ(parse_collective("allreduce"), std::nullopt);
}

Result<std::unique_ptr<int>> boxed(int x) {
  if (x < 0) return invalid("negative");
  return std::make_unique<int>(x);
}

/// The macros in a declaration and an assignment, in a function that returns a Result and in one that returns
/// a Status.
Result<int> sum_of(int a, int b, int* calls) {
  OURO_ASSIGN(const auto first, boxed((++*calls, a)));
  int second = 0;
  OURO_ASSIGN(second, [&](int x) -> Result<int> {
    ++*calls;
    OURO_ASSIGN(auto box, boxed(x));
    return *box;
  }(b));
  return *first + second;
}
Status both(int a, int b, int* calls) {
  OURO_ASSIGN([[maybe_unused]] auto box, boxed(a));
  OURO_ASSIGN(box, boxed(b));
  OURO_ASSIGN(*calls, sum_of(a, b, calls));
  return {};
}

TEST(Result, AssignTakesTheValueOrReturns) {
  int calls = 0;
  EXPECT_EQ(*sum_of(2, 3, &calls), 5);
  EXPECT_EQ(calls, 2) << "each expression is evaluated once";
  EXPECT_EQ(sum_of(-1, 3, &calls).status().message(), "ouro: invalid: negative");
  EXPECT_EQ(calls, 3) << "nothing runs after a failure";
  EXPECT_EQ(sum_of(1, -3, &calls).status().reason(), Reason::invalid);
  calls = 0;
  EXPECT_TRUE(both(4, 5, &calls).ok());
  EXPECT_EQ(calls, 9);
  EXPECT_EQ(both(4, -5, &calls).reason(), Reason::invalid);
  EXPECT_EQ(calls, 9);
}

using ResultDeathTest = testing::Test;

/// A program that forgets to check ok() sees what went wrong, not an exception of a standard container.
TEST(ResultDeathTest, ValueOfAFailureEndsTheProgramWithItsText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* const text = "ouro: invalid: no such thing";
  Result<std::string> failed = invalid("no such thing");
  const Result<std::string>& same = failed;
  const auto aborted = testing::KilledBySignal(SIGABRT);
  EXPECT_EXIT((void)failed.value(), aborted, text);
  EXPECT_EXIT((void)*same, aborted, text);
  EXPECT_EXIT((void)failed->size(), aborted, text);
  EXPECT_EXIT((void)same->size(), aborted, text);
  EXPECT_EXIT((void)*std::move(failed), aborted, text);
  // No handler catches it, so it cannot be hidden.
  EXPECT_EXIT(
      try { (void)*failed; } catch (...) { _exit(0); }, aborted, text);
}

}  // namespace
}  // namespace ouro

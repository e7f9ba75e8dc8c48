// The selection table: rows as text and as a file, and their errors; which table is in force; ranks that
// disagree on it are refused. select_test.cc tests which row serves a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "runtime/plan/rules.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kAny = ~std::size_t{0};

/// A file that is removed with this object.
class File {
 public:
  explicit File(const std::string& content)
      : path_(testing::TempDir() + "ouro_rules." + std::to_string(::getpid())) {
    std::ofstream(path_) << content;
  }
  ~File() { ::unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Sets an environment variable for the lifetime of this object.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::vector<Rule> parsed(const std::string& text) {
  auto rules = parse_rules(text);
  EXPECT_TRUE(rules.ok()) << text << ": " << rules.status().message();
  return rules.ok() ? *rules : std::vector<Rule>{};
}
std::string refusal(const std::string& text) {
  const auto rules = parse_rules(text);
  EXPECT_FALSE(rules.ok()) << text;
  EXPECT_EQ(rules.status().reason(), Reason::invalid) << text;
  return rules.status().message();
}

// ---- rows as text -----------------------------------------------------------------------------------

TEST(RuleText, EveryPartOfARowIsRead) {
  const auto rules = parsed(
      "all_reduce<=64K:oneshot,broadcast@registered:zerocopy,barrier:direct,"
      "all_gather@private<=3M:ring,reduce@any<=1G:tree,scatter<=7:linear");
  ASSERT_EQ(rules.size(), 6u);
  EXPECT_EQ(rules[0].collective, Collective::all_reduce);
  EXPECT_EQ(rules[0].max_bytes, 64u << 10);
  EXPECT_EQ(rules[0].algorithm, Algorithm::oneshot);
  EXPECT_EQ(rules[0].buffers, Buffers::any);
  EXPECT_EQ(rules[0].cores, Cores::any);
  EXPECT_EQ(rules[0].min_ranks, 1);
  EXPECT_EQ(rules[0].reason, "OURO_SELECT");
  EXPECT_EQ(rules[1].buffers, Buffers::registered);
  EXPECT_EQ(rules[1].max_bytes, kAny);
  EXPECT_EQ(rules[2].collective, Collective::barrier);
  EXPECT_EQ(rules[3].buffers, Buffers::private_);
  EXPECT_EQ(rules[3].max_bytes, 3u << 20);
  EXPECT_EQ(rules[4].max_bytes, std::size_t{1} << 30);
  EXPECT_EQ(rules[5].max_bytes, 7u);
  EXPECT_TRUE(parsed("").empty());
}

TEST(RuleText, WrongPartsAreNamed) {
  EXPECT_THAT(refusal("all_reduce"),
              AllOf(HasSubstr("rule 'all_reduce': no ':'"), HasSubstr("expected collective")));
  EXPECT_THAT(refusal("all_reduce<=many:ring"), HasSubstr("'many' is no number of bytes"));
  EXPECT_THAT(refusal("all_reduce<=:ring"), HasSubstr("'' is no number of bytes"));
  EXPECT_THAT(refusal("all_reduce<=-1:ring"), HasSubstr("no number of bytes"));
  EXPECT_THAT(refusal("all_reduce<=4KB:ring"), HasSubstr("'4KB' is no number of bytes"));
  EXPECT_THAT(refusal("all_reduce<=99999999999G:ring"), HasSubstr("no number of bytes"));
  EXPECT_THAT(refusal("all_reduce@pinned:ring"), HasSubstr("'pinned' is no kind of buffer"));
  EXPECT_THAT(refusal("allreduce:ring"),
              AllOf(HasSubstr("'allreduce' is no collective"), HasSubstr("all_to_all")));
  EXPECT_THAT(refusal(":ring"), HasSubstr("'' is no collective"));
  EXPECT_THAT(refusal("mix:ring"), HasSubstr("'mix' is no collective"));
  EXPECT_THAT(refusal("all_reduce:rong"),
              AllOf(HasSubstr("all_reduce has no algorithm 'rong'"), HasSubstr("oneshot")));
  EXPECT_THAT(refusal("all_reduce:nvls"),  // rows are for host memory
              AllOf(HasSubstr("all_reduce has no algorithm 'nvls'"), HasSubstr("oneshot")));
  EXPECT_THAT(refusal("barrier:ring"),
              AllOf(HasSubstr("barrier has no algorithm 'ring'"), HasSubstr("dissemination")));
  EXPECT_THAT(refusal("all_reduce:ring,,barrier:direct"), HasSubstr("rule ''"));
}

TEST(RuleText, WrittenRulesAreReadBack) {
  for (const char* text : {"all_reduce:ring", "all_reduce<=65536:oneshot", "broadcast@private<=1:tree",
                           "all_gather@registered:zerocopy", "barrier:dissemination"}) {
    const auto rules = parsed(text);
    ASSERT_EQ(rules.size(), 1u);
    EXPECT_EQ(to_text(rules[0]), text);
  }
  for (const Rule& row : built_in_rules().rows) {
    const auto again = parsed(to_text(row));
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(to_text(again[0]), to_text(row));
    EXPECT_EQ(again[0].max_bytes, row.max_bytes);
    EXPECT_EQ(again[0].buffers, row.buffers);
  }
}

// ---- files ------------------------------------------------------------------------------------------

constexpr const char* kGoodRow =
    R"({"collective": "all_reduce", "buffers": "private", "cores": "enough", "ranks": [2, 4], "max_bytes": 4096, "algorithm": "ring"})";

/// A valid file with the text `from` replaced by `to`.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = std::string(R"({"ouro_tune": 1, "stream_bytes": 77, "rules": [)") + kGoodRow + "]}";
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(RuleFile, EveryFieldIsRead) {
  const File file(changed("77", "77"));
  const auto rules = load_rules(file.path());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules->stream_bytes, 77u);
  EXPECT_EQ(rules->origin, file.path());
  ASSERT_EQ(rules->rows.size(), 1u);
  const Rule& row = rules->rows[0];
  EXPECT_EQ(row.collective, Collective::all_reduce);
  EXPECT_EQ(row.buffers, Buffers::private_);
  EXPECT_EQ(row.cores, Cores::enough);
  EXPECT_EQ(row.min_ranks, 2);
  EXPECT_EQ(row.max_ranks, 4);
  EXPECT_EQ(row.max_bytes, 4096u);
  EXPECT_EQ(row.algorithm, Algorithm::ring);
  EXPECT_THAT(row.reason, HasSubstr(file.path()));
}

TEST(RuleFile, OptionalFieldsMayBeOmitted) {
  for (const auto& [from, to] : {std::pair{R"(, "max_bytes": 4096)", ""}, {R"("ranks": [2, 4], )", ""}}) {
    const File file(changed(from, to));
    const auto rules = load_rules(file.path());
    ASSERT_TRUE(rules.ok()) << from << ": " << rules.status().message();
    ASSERT_EQ(rules->rows.size(), 1u);
  }
  const File bare(R"({"ouro_tune": 1})");
  const auto rules = load_rules(bare.path());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_TRUE(rules->rows.empty());
  EXPECT_EQ(rules->stream_bytes, 0u);
}

TEST(RuleFile, EveryWrongFieldIsNamed) {
  struct Case {
    const char *from, *to, *says;
  };
  for (const Case& c :
       std::vector<Case>{{"\"ouro_tune\": 1", "\"ouro_tune\": 2", "ouro_tune: not 1"},
                         {"\"ouro_tune\": 1", "\"tune\": 1", "ouro_tune: not 1"},
                         {"77", "-1", "stream_bytes: not a number of bytes"},
                         {"77", "\"77\"", "stream_bytes"},
                         {"77", "1.5", "stream_bytes"},
                         {kGoodRow, "7", "rules[0]: not an object"},
                         {kGoodRow, "null", "rules[0]: not an object"},
                         {"\"all_reduce\"", "\"allreduce\"", "rules[0]: collective 'allreduce'"},
                         {"\"all_reduce\"", "1", "rules[0]: collective ''"},
                         {"\"private\"", "\"pinned\"", "rules[0]: buffers 'pinned'"},
                         {"\"enough\"", "\"many\"", "rules[0]: cores 'many'"},
                         {"\"ring\"", "\"rong\"", "rules[0]: algorithm 'rong'"},
                         {"\"ring\"", "\"dissemination\"", "rules[0]: algorithm"},
                         {"[2, 4]", "[4, 2]", "rules[0]: ranks"},
                         {"[2, 4]", "[2]", "rules[0]: ranks"},
                         {"[2, 4]", "[-2, 4]", "rules[0]: ranks"},
                         {"[2, 4]", "[2, 4294967296]", "rules[0]: ranks"},
                         {"[2, 4]", "[2.5, 4]", "rules[0]: ranks"},
                         {"[2, 4]", "2", "rules[0]: ranks"},
                         {"4096", "-4096", "rules[0]: max_bytes"},
                         {"4096", "\"4K\"", "rules[0]: max_bytes"},
                         {"4096", "99999999999999999999", "rules[0]: max_bytes"}}) {
    const File file(changed(c.from, c.to));
    const auto rules = load_rules(file.path());
    ASSERT_FALSE(rules.ok()) << c.to;
    EXPECT_EQ(rules.status().reason(), Reason::invalid);
    EXPECT_THAT(rules.status().message(), AllOf(HasSubstr(file.path()), HasSubstr(c.says))) << c.to;
  }
}

TEST(RuleFile, FilesThatHoldNoRulesAreRefused) {
  for (const char* text :
       {"", "{", "[]", "7", "ring", R"({"ouro_tune": 1, "rules": {}})", R"({"ouro_tune": 1} x)"}) {
    const File file(text);
    const auto rules = load_rules(file.path());
    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_EQ(rules.status().reason(), Reason::invalid);
    EXPECT_THAT(rules.status().message(), HasSubstr(file.path())) << text;
  }
  EXPECT_THAT(load_rules("/nowhere/rules.json").status().message(),
              AllOf(HasSubstr("/nowhere/rules.json"), HasSubstr("cannot be read")));
  EXPECT_FALSE(load_rules(testing::TempDir()).ok());  // a directory
}

TEST(RuleFile, LongFilesAreReadAndDeepOnesRefused) {
  std::string text = R"({"ouro_tune": 1, "rules": [)";
  for (int i = 0; i < 10'000; ++i) text += std::string(i > 0 ? "," : "") + kGoodRow;
  const File file(text + "]}");
  const auto rules = load_rules(file.path());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules->rows.size(), 10'000u);
  const File deep(std::string(1'000'000, '['));
  EXPECT_EQ(load_rules(deep.path()).status().reason(), Reason::invalid);
}

TEST(RuleFile, WrittenRulesAreReadBack) {
  Rules rules = built_in_rules();
  rules.stream_bytes = 12345;
  const File file(to_json(rules, "a machine"));
  const auto again = load_rules(file.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->digest(), rules.digest());
  EXPECT_EQ(again->stream_bytes, 12345u);
  ASSERT_EQ(again->rows.size(), rules.rows.size());
}

TEST(RuleDigest, ChangesWithEveryDifference) {
  const Rules base = built_in_rules();
  EXPECT_EQ(base.digest(), built_in_rules().digest());
  std::vector<Rules> others(8, base);
  others[0].stream_bytes = 1;
  others[1].rows.pop_back();
  std::swap(others[2].rows[0], others[2].rows[1]);
  others[3].rows[0].max_bytes = 1;
  others[4].rows[0].algorithm = Algorithm::ring;
  others[5].rows[0].buffers = Buffers::registered;
  others[6].rows[0].cores = Cores::fewer;
  others[7].rows[0].max_ranks = 3;
  for (std::size_t i = 0; i < others.size(); ++i) EXPECT_NE(others[i].digest(), base.digest()) << i;
  Rules renamed = base;
  renamed.origin = "elsewhere", renamed.rows[0].reason = "because";
  EXPECT_EQ(renamed.digest(), base.digest()) << "what only explains is no difference";
}

// ---- from a user's perspective ----------------------------------------------------------------------

/// explain() for an all-reduce of `count` floats, out of place.
std::string explained(ouro::Group& g, std::size_t count) {
  static float in, out;  // only the addresses matter
  Operation o;
  o.collective = Collective::all_reduce;
  o.in = {&in, count, DType::f32}, o.out = {&out, count, DType::f32};
  const auto text = g.impl()->explain(o);
  return text.ok() ? *text : text.status().message();
}

TEST(RulesInForce, EnvironmentPrecedesTheFileAndTheFileTheTable) {
  const File file(R"({"ouro_tune": 1, "stream_bytes": 4097, "rules": [)" + std::string(kGoodRow) + "]}");
  const Variable tune("OURO_TUNE", file.path()), select("OURO_SELECT", "all_reduce<=1K:tree");
  const auto body = [&](ouro::Context& c) -> std::string {
    const std::string small = explained(c.world(), 256), middle = explained(c.world(), 1024),
                      large = explained(c.world(), 1025);
    OURO_RANK_CHECK(small.starts_with("tree") && small.find("OURO_SELECT") != small.npos, "{}", small);
    const bool ring = middle.starts_with("ring") && middle.find(file.path()) != middle.npos;
    OURO_RANK_CHECK(ring == c.impl()->cores().enough_here(), "{}", middle);
    OURO_RANK_CHECK(large.find("OURO_SELECT") == large.npos && large.find(file.path()) == large.npos, "{}",
                    large);
    OURO_RANK_CHECK(large.find("4097 bytes or more") != large.npos, "{}", large);
    OURO_RANK_CHECK(small.find("non-temporal") == small.npos, "{}", small);
    std::vector<float> in(1000, 1.0f), out(1000);
    OURO_RANK_OK(all_reduce(c.world(), std::span(in), std::span(out)));  // by the ring algorithm of the file
    OURO_RANK_CHECK(out.front() == 2 && out.back() == 2, "{} {}", out.front(), out.back());
    return "";
  };
  EXPECT_EQ(test::run_threads(2, body), "");
}

TEST(RulesInForce, InvalidRulesFailTheJoin) {
  for (const auto& [name, value, says] : {std::tuple{"OURO_SELECT", "all_reduce:rong", "OURO_SELECT: rule"},
                                          {"OURO_TUNE", "/nowhere/rules.json", "/nowhere/rules.json"},
                                          {"OURO_STREAM_BYTES", "0", "OURO_STREAM_BYTES"}}) {
    const Variable set(name, value);
    const auto c = ouro::Context::create({.rank = 0, .world_size = 1, .id = *UniqueId::create()});
    ASSERT_FALSE(c.ok()) << name;
    EXPECT_EQ(c.status().reason(), Reason::invalid);
    EXPECT_THAT(c.status().message(), HasSubstr(says));
  }
}

/// Ranks join one after the other, each with its own table, while rank 0 waits for rank 1.
TEST(RulesInForce, RanksWithOtherRulesAreRefused) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(test::Mode::processes);
  for (const bool differ : {true, false}) {
    const auto id = UniqueId::create();
    ASSERT_TRUE(id.ok());
    const std::string said = test::run_processes(2, [&](ouro::Context& outer) -> std::string {
      if (outer.rank() == 1 || !differ) ::setenv("OURO_SELECT", "all_reduce:ring", 1);
      InitOptions o = test::quick_options();
      o.rank = outer.rank(), o.world_size = 2, o.id = *id;
      auto c = ouro::Context::create(o);
      if (!differ) return c.ok() ? "" : c.status().message();
      OURO_RANK_CHECK(!c.ok() && c.status().reason() == Reason::mismatch, "{}", c.status().message());
      const std::string text = c.status().message();
      OURO_RANK_CHECK(text.find("rules=") != text.rfind("rules="), "{}", text);
      return "";
    });
    EXPECT_EQ(said, "") << (differ ? "different rules" : "equal rules");
  }
}

}  // namespace
}  // namespace ouro::rt

// The selection table: rows as text and as a file, what they refuse, and which of them serves a call; ranks
// that disagree on it are turned away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ouro/ouro.hpp"
#include "runtime/context.h"
#include "runtime/group.h"
#include "runtime/rules.h"
#include "runtime/select.h"
#include "tests/runtime/ranks.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::size_t kAny = ~std::size_t{0};

/// A file that vanishes with the test.
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

/// A variable of the process while this lives.
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
      "all_reduce<=64K:oneshot,broadcast@registered:inplace,barrier:direct,"
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

TEST(RuleText, WhatIsWrongIsNamed) {
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
  EXPECT_THAT(refusal("all_reduce:rong"),
              AllOf(HasSubstr("all_reduce has no algorithm 'rong'"), HasSubstr("oneshot")));
  EXPECT_THAT(refusal("barrier:ring"),
              AllOf(HasSubstr("barrier has no algorithm 'ring'"), HasSubstr("dissemination")));
  EXPECT_THAT(refusal("all_reduce:ring,,barrier:direct"), HasSubstr("rule ''"));
}

TEST(RuleText, WhatIsWrittenIsReadBack) {
  for (const char* text : {"all_reduce:ring", "all_reduce<=65536:oneshot", "broadcast@private<=1:tree",
                           "all_gather@registered:inplace", "barrier:dissemination"}) {
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

/// The good file with the text of `from` replaced.
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

TEST(RuleFile, WhatMayBeLeftOut) {
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

TEST(RuleFile, WhatIsNoRulesFileIsRefused) {
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

TEST(RuleFile, SizeIsNoTrouble) {
  std::string text = R"({"ouro_tune": 1, "rules": [)";
  for (int i = 0; i < 10'000; ++i) text += std::string(i > 0 ? "," : "") + kGoodRow;
  const File file(text + "]}");
  const auto rules = load_rules(file.path());
  ASSERT_TRUE(rules.ok()) << rules.status().message();
  EXPECT_EQ(rules->rows.size(), 10'000u);
  const File deep(std::string(1'000'000, '['));
  EXPECT_EQ(load_rules(deep.path()).status().reason(), Reason::invalid);
}

TEST(RuleFile, WhatIsWrittenIsReadBack) {
  Rules rules = built_in_rules();
  rules.stream_bytes = 12345;
  const File file(to_json(rules, "a machine"));
  const auto again = load_rules(file.path());
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->digest(), rules.digest());
  EXPECT_EQ(again->stream_bytes, 12345u);
  ASSERT_EQ(again->rows.size(), rules.rows.size());
}

TEST(RuleDigest, TellsEveryDifference) {
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

// ---- selection --------------------------------------------------------------------------------------

/// A call of `bytes` (of the region, or of one block) on distinct buffers of n ranks.
Operation operation(Collective c, std::size_t bytes, int n = 2) {
  alignas(8) static char in[1], out[1];
  const std::size_t count = bytes / 4, blocks = static_cast<std::size_t>(n);
  const bool in_blocks =
      c == Collective::reduce_scatter || c == Collective::scatter || c == Collective::all_to_all;
  const bool out_blocks =
      c == Collective::all_gather || c == Collective::gather || c == Collective::all_to_all;
  Operation o;
  o.collective = c;
  o.in = {in, in_blocks ? count * blocks : count, DType::f32};
  o.out = {out, out_blocks ? count * blocks : count, DType::f32};
  return o;
}

struct Case {
  std::string rows;  ///< in front of what is built in
  int ranks = 2;
  bool enough_cores = true;
  std::size_t stream_bytes = kAny;
  std::string job_algorithm = "";
  std::vector<Rule> more = {};  ///< in front of `rows`
};

struct Chosen {
  Status status;
  Choice choice;
  std::string why;
};
Chosen choose(const Case& c, const Operation& o, bool canonical = false) {
  Rules rules = built_in_rules();
  const auto front = parsed(c.rows);
  rules.rows.insert(rules.rows.begin(), front.begin(), front.end());
  rules.rows.insert(rules.rows.begin(), c.more.begin(), c.more.end());
  const Selector selector(rules, c.ranks, c.enough_cores, c.stream_bytes, c.job_algorithm);
  Chosen chosen;
  chosen.status = selector.select(o, 0, canonical, &chosen.choice, &chosen.why);
  return chosen;
}
std::string chosen(const Case& c, const Operation& o, bool canonical = false) {
  const Chosen x = choose(c, o, canonical);
  return x.status.ok() ? std::string(flow::name(x.choice.algorithm)) : x.status.message();
}

TEST(Selection, TheFirstRowThatFitsWins) {
  const Case c{"all_reduce<=1K:tree,all_reduce<=4K:ring,all_reduce<=4K:chain"};
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4)), "tree");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 1024)), "tree");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 1028)), "ring");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4096)), "ring");
  EXPECT_EQ(chosen(c, operation(Collective::all_reduce, 4100)),
            chosen({}, operation(Collective::all_reduce, 4100)));
  EXPECT_EQ(chosen(c, operation(Collective::all_gather, 4)),
            chosen({}, operation(Collective::all_gather, 4)));
}

TEST(Selection, SizesAreOfOneBlock) {
  const Case c{"all_gather<=1K:ring,reduce_scatter<=1K:ring,all_to_all<=1K:pairwise,gather<=1K:linear", 8};
  for (const auto& [collective, name] : {std::pair{Collective::all_gather, "ring"},
                                         {Collective::reduce_scatter, "ring"},
                                         {Collective::all_to_all, "pairwise"},
                                         {Collective::gather, "linear"}}) {
    EXPECT_EQ(chosen(c, operation(collective, 1024, 8)), name);
    EXPECT_EQ(chosen(c, operation(collective, 1028, 8)), chosen({"", 8}, operation(collective, 1028, 8)));
  }
}

TEST(Selection, RowsHoldForTheirRanksAndCores) {
  Rule row = parsed("all_reduce:ring")[0];
  row.min_ranks = 3, row.max_ranks = 5, row.cores = Cores::fewer;
  const Operation o = operation(Collective::all_reduce, 1000);
  const auto name = [&](int ranks, bool enough) { return chosen({"", ranks, enough, kAny, "", {row}}, o); };
  EXPECT_NE(name(2, false), "ring");
  EXPECT_EQ(name(3, false), "ring");
  EXPECT_EQ(name(5, false), "ring");
  EXPECT_NE(name(6, false), "ring");
  EXPECT_NE(name(4, true), "ring");
  row.cores = Cores::enough;
  EXPECT_EQ(name(4, true), "ring");
  EXPECT_NE(name(4, false), "ring");
  row.cores = Cores::any;
  EXPECT_EQ(name(4, true), "ring");
  EXPECT_EQ(name(4, false), "ring");
}

TEST(Selection, RowsHoldForTheirBuffers) {
  const Operation small = operation(Collective::all_gather, 64),
                  large = operation(Collective::all_gather, 1 << 20);
  const auto in_place = [](const std::string& rows, const Operation& o) {
    return choose({rows}, o).choice.try_in_place;
  };
  EXPECT_TRUE(in_place("all_gather@registered:inplace", small));
  EXPECT_TRUE(in_place("all_gather:inplace", small));
  EXPECT_FALSE(in_place("all_gather@registered:direct", large));
  EXPECT_EQ(in_place("all_gather@private:ring", large), in_place("", large))
      << "private rows say nothing of registered buffers";
  EXPECT_EQ(chosen({"all_gather@private:ring"}, small), "ring");
  EXPECT_EQ(chosen({"all_gather@registered:ring,all_gather:direct"}, small), "direct");
  EXPECT_EQ(chosen({"all_gather@private:inplace,all_gather:ring"}, small), "ring")
      << "not possible with those";
}

TEST(Selection, WhatTheCallerForcesBeatsRows) {
  Operation o = operation(Collective::all_reduce, 4096);
  o.algorithm = "chain";
  Chosen x = choose({"all_reduce:ring", 2, true, kAny, "tree"}, o);
  EXPECT_EQ(x.choice.algorithm, Algorithm::chain);
  EXPECT_TRUE(x.choice.forced);
  EXPECT_FALSE(x.choice.try_in_place);
  EXPECT_THAT(x.why, AllOf(StartsWith("chain"), HasSubstr("forced by the caller")));
  for (const char* wrong : {"rong", "pairwise", "line"}) {  // 4096 bytes do not fit into a line
    o.algorithm = wrong;
    x = choose({}, o);
    EXPECT_EQ(x.status.reason(), Reason::invalid);
    EXPECT_THAT(x.status.message(),
                AllOf(HasSubstr(wrong), HasSubstr("oneshot"), Not(HasSubstr("pairwise,"))))
        << wrong;
  }
}

TEST(Selection, TheJobsAlgorithmIsUsedWhereItCanServe) {
  const Case c{"all_reduce:chain", 2, true, kAny, "ring"};
  const Chosen x = choose(c, operation(Collective::all_reduce, 4096));
  EXPECT_EQ(x.choice.algorithm, Algorithm::ring);
  EXPECT_THAT(x.why, HasSubstr("OURO_ALGO"));
  EXPECT_EQ(chosen(c, operation(Collective::broadcast, 4096)),
            chosen({}, operation(Collective::broadcast, 4096)));
  const Chosen in_place = choose({"", 2, true, kAny, "inplace"}, operation(Collective::all_reduce, 8));
  EXPECT_TRUE(in_place.choice.try_in_place);
  EXPECT_NE(in_place.choice.algorithm, Algorithm::inplace) << "something must serve private buffers";
}

TEST(Selection, RowsThatCannotServeArePassedOver) {
  EXPECT_EQ(chosen({"all_reduce:ring,all_reduce:chain"}, operation(Collective::all_reduce, 4096), true),
            "chain")
      << "a ring does not reduce in rank order";
  EXPECT_EQ(chosen({"all_gather:ring"}, operation(Collective::all_gather, 4096), true), "ring")
      << "nothing is reduced";
  EXPECT_EQ(chosen({"all_reduce:line,all_reduce:tree"}, operation(Collective::all_reduce, 56)), "line");
  EXPECT_EQ(chosen({"all_reduce:line,all_reduce:tree"}, operation(Collective::all_reduce, 60)), "tree");

  Operation uneven = operation(Collective::all_to_all, 4096);
  const std::vector<std::size_t> counts = {1024, 1024};
  uneven.uneven = true, uneven.in_counts = uneven.out_counts = counts;
  EXPECT_EQ(chosen({"all_to_all:direct"}, operation(Collective::all_to_all, 4096)), "direct");
  EXPECT_EQ(chosen({"all_to_all:direct"}, uneven), "pairwise");
  EXPECT_FALSE(choose({"all_to_all@registered:inplace"}, uneven).choice.try_in_place);

  Operation aliased = operation(Collective::all_to_all, 4096);  // out of place for inplace alone
  aliased.in.data = aliased.out.data;
  aliased.algorithm = "inplace";
  EXPECT_EQ(choose({}, aliased).status.reason(), Reason::invalid);
  aliased.algorithm = "pairwise";
  EXPECT_EQ(chosen({}, aliased), "pairwise");
}

TEST(Selection, LargeOperationsAreStreamed) {
  // 4096 bytes in and out on 2 ranks: 16384 are touched.
  const Operation o = operation(Collective::all_reduce, 4096);
  EXPECT_TRUE(choose({"", 2, true, 16384}, o).choice.streams);
  EXPECT_FALSE(choose({"", 2, true, 16385}, o).choice.streams);
  EXPECT_TRUE(choose({"", 4, true, 32768}, o).choice.streams) << "those of all ranks count";
  EXPECT_THAT(choose({"", 2, true, 16384}, o).why, HasSubstr("non-temporal stores, as 16384 bytes or more"));
  EXPECT_THAT(choose({"", 2, true, 16385}, o).why, Not(HasSubstr("non-temporal")));
  Operation aliased = o;
  aliased.out.data = const_cast<void*>(o.in.data);
  EXPECT_FALSE(choose({"", 2, true, 1}, aliased).choice.streams) << "its lines are in the cache";
}

// ---- as a user meets it -----------------------------------------------------------------------------

/// What runs for an all-reduce of so many floats, out of place.
std::string explained(ouro::Group& g, std::size_t count) {
  const auto text = g.impl()->explain(operation(Collective::all_reduce, 4 * count));
  return text.ok() ? *text : text.status().message();
}

TEST(RulesInForce, TheEnvironmentComesFirstThenTheFileThenTheTable) {
  const File file(R"({"ouro_tune": 1, "stream_bytes": 4097, "rules": [)" + std::string(kGoodRow) + "]}");
  const Variable tune("OURO_TUNE", file.path()), select("OURO_SELECT", "all_reduce<=1K:tree");
  const auto body = [&](ouro::Context& c) -> std::string {
    const std::string small = explained(c.world(), 256), middle = explained(c.world(), 1024),
                      large = explained(c.world(), 1025);
    OURO_RANK_CHECK(small.starts_with("tree") && small.find("OURO_SELECT") != small.npos, "{}", small);
    const bool ring = middle.starts_with("ring") && middle.find(file.path()) != middle.npos;
    OURO_RANK_CHECK(ring == c.impl()->enough_cores(), "{}", middle);
    OURO_RANK_CHECK(large.find("OURO_SELECT") == large.npos && large.find(file.path()) == large.npos, "{}",
                    large);
    OURO_RANK_CHECK(large.find("4097 bytes or more") != large.npos, "{}", large);
    OURO_RANK_CHECK(small.find("non-temporal") == small.npos, "{}", small);
    std::vector<float> in(1000, 1.0f), out(1000);
    OURO_RANK_OK(all_reduce(c.world(), std::span(in), std::span(out)));  // by the ring of the file
    OURO_RANK_CHECK(out.front() == 2 && out.back() == 2, "{} {}", out.front(), out.back());
    return "";
  };
  EXPECT_EQ(test::run_threads(2, body), "");
}

TEST(RulesInForce, WhatIsWrongEndsTheJoin) {
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

/// Ranks join one after the other, each under a table of its own; rank 0 waits for rank 1 meanwhile.
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

// Parameters and logs: precedence, ranges, complaints, the format of a line, many writers.
#include "runtime/core/env.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <thread>

#include "runtime/core/log.h"

namespace ouro {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class Surroundings : public testing::Test {
 protected:
  Surroundings() {
    std::string pattern = (fs::temp_directory_path() / "ouro-env-test-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    set("HOME", dir_.string());
  }
  ~Surroundings() override {
    for (const auto& [name, old] : old_) {
      if (old) {
        ::setenv(name.c_str(), old->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
    log::reload();
    fs::remove_all(dir_);
  }
  void set(const std::string& name, const std::string& value) {
    const char* old = ::getenv(name.c_str());
    old_.emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  void file(const std::string& name, const std::string& body) { std::ofstream(dir_ / name) << body; }
  env::Setting setting(std::string_view name) {
    for (const env::Setting& s : env::settings()) {
      if (s.parameter->name == name) return s;
    }
    ADD_FAILURE() << name;
    return {};
  }
  /// Directs the log to a file from here on.
  void log_to_file(const std::string& level, const std::string& subsystems) {
    set("OURO_DEBUG", level);
    set("OURO_DEBUG_SUBSYS", subsystems);
    set("OURO_DEBUG_FILE", (dir_ / "log.%p").string());
    log::reload();
  }
  std::vector<std::string> log_lines() {
    std::ifstream in(dir_ / fmt::format("log.{}", getpid()));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  fs::path dir_;
  std::map<std::string, std::optional<std::string>> old_;
};

using Env = Surroundings;
using Log = Surroundings;

TEST_F(Env, EnvironmentBeatsFileBeatsDefault) {
  EXPECT_EQ(**env::real("OURO_LATE"), 10);
  EXPECT_EQ(setting("OURO_LATE").origin, "default");
  file(".ouro.conf", "# comment\n\n  OURO_LATE = 7.5 \nOURO_NUMERICS=canonical\n");
  env::reload();
  EXPECT_EQ(**env::real("OURO_LATE"), 7.5);
  EXPECT_EQ(setting("OURO_LATE").origin, (dir_ / ".ouro.conf:3").string());
  EXPECT_EQ(**env::text("OURO_NUMERICS"), "canonical");
  set("OURO_LATE", "3");
  EXPECT_EQ(**env::real("OURO_LATE"), 3);
  EXPECT_EQ(setting("OURO_LATE").origin, "environment");
}

TEST_F(Env, NamedFileReplacesTheOneAtHome) {
  file(".ouro.conf", "OURO_LATE=7\n");
  file("other", "OURO_DEADLINE=5\n");
  set("OURO_CONF_FILE", (dir_ / "other").string());
  env::reload();
  EXPECT_EQ(**env::real("OURO_LATE"), 10);
  EXPECT_EQ(**env::real("OURO_DEADLINE"), 5);
  set("OURO_CONF_FILE", (dir_ / "missing").string());
  env::reload();
  EXPECT_THAT(env::valid().message(),
              HasSubstr("missing (from environment): expected a file that can be read"));
}

TEST_F(Env, UnsetWithoutDefaultIsNothing) {
  const auto value = env::integer("OURO_SPIN_US");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, std::nullopt);
  set("OURO_SPIN_US", "");
  EXPECT_EQ(*env::integer("OURO_SPIN_US"), std::nullopt) << "an empty variable counts as unset";
}

TEST_F(Env, NumbersHaveSuffixesAndRanges) {
  const std::pair<const char*, std::int64_t> good[] = {
      {"8192", 8192}, {"64K", 65536}, {"1m", 1 << 20}, {" 8192\t", 8192}, {"64K\n", 65536}};
  for (const auto& [text, value] : good) {
    set("OURO_SLOT_BYTES", text);
    ASSERT_TRUE(env::integer("OURO_SLOT_BYTES").ok()) << text;
    EXPECT_EQ(**env::integer("OURO_SLOT_BYTES"), value);
  }
  for (const char* text :
       {"many", "64KB", "-1", "1", "1000000000000", "9223372036854775807G", "K", "0x100", "81 92"}) {
    set("OURO_SLOT_BYTES", text);
    const auto bad = env::integer("OURO_SLOT_BYTES");
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.status().message(),
                HasSubstr(fmt::format("OURO_SLOT_BYTES={} (from environment): expected", text)));
    EXPECT_FALSE(setting("OURO_SLOT_BYTES").valid.ok());
  }
  for (const char* text : {"soon", "-1", "0", "nan", "inf", "1e99"}) {
    set("OURO_DEADLINE", text);
    EXPECT_FALSE(env::real("OURO_DEADLINE").ok()) << text;
  }
  set("OURO_DEADLINE", " 2.5 ");
  EXPECT_EQ(**env::real("OURO_DEADLINE"), 2.5);
  set("OURO_NCCL_HOST", "yes ");
  EXPECT_TRUE(**env::flag("OURO_NCCL_HOST"));
  set("OURO_NUMERICS", " canonical");
  EXPECT_EQ(**env::text("OURO_NUMERICS"), "canonical");
  set("OURO_JOB_ID", " a ");
  EXPECT_EQ(**env::text("OURO_JOB_ID"), " a ") << "free text is as it was given";
  set("OURO_NUMERICS", "exact");
  EXPECT_THAT(env::text("OURO_NUMERICS").status().message(), HasSubstr("expected fast|canonical"));
}

TEST_F(Env, EveryValueIsChecked) {
  EXPECT_TRUE(env::valid().ok()) << env::valid().message();
  const std::pair<const char*, const char*> garbage[] = {
      {"OURO_SECURITY", "strong"},   {"OURO_FABRIC", "pigeon"},    {"OURO_CHECKSUM", "maybe"},
      {"OURO_TCP_CONNECTIONS", "0"}, {"OURO_SILENT_WARN", "soon"}, {"OURO_SILENT_FAIL", "never"},
      {"OURO_INSECURE", "yes"},      {"OURO_INSECURE", "true"},    {"OURO_BIND", "anywhere"}};
  for (const auto& [name, value] : garbage) {
    set(name, value);
    EXPECT_THAT(env::valid().message(),
                HasSubstr(fmt::format("{}={} (from environment): expected", name, value)));
    set(name, "");
  }
  set("OURO_DEBUG", "LOUD");  // falls back, with a warning
  EXPECT_TRUE(env::valid().ok()) << env::valid().message();
}

TEST_F(Env, UnknownNamesAreReportedWithTheNearestName) {
  set("OURO_DEADLIN", "1");
  set("OURO_ENTIRELY_DIFFERENT", "1");
  file(".ouro.conf", "OURO_ALGOS=ring\nnonsense\n");
  env::reload();
  const auto all = env::complaints();
  EXPECT_THAT(all,
              Contains(HasSubstr(
                  "OURO_DEADLIN is not a parameter of ouro and is ignored; did you mean OURO_DEADLINE?")));
  EXPECT_THAT(all, Contains("OURO_ENTIRELY_DIFFERENT is not a parameter of ouro and is ignored"));
  EXPECT_THAT(
      all,
      Contains(HasSubstr(
          ".ouro.conf:1: OURO_ALGOS is not a parameter of ouro and is ignored; did you mean OURO_ALGO?")));
  EXPECT_THAT(all, Contains(HasSubstr(".ouro.conf:2: expected KEY=VALUE, found \"nonsense\"")));
  set("OURO_SECRET", "0123456789abcdef0123456789abcdef");
  log_to_file("INFO", "ENV");
  env::report();
  env::report();
  int told = 0, set = 0;
  for (const std::string& line : log_lines()) {
    told += line.find("OURO_DEADLIN ") != std::string::npos;
    set += line.find("OURO_SECRET=(not shown) (environment)") != std::string::npos;
    EXPECT_EQ(line.find("0123456789abcdef"), line.npos) << "a secret in the log";
  }
  EXPECT_EQ(told, 1) << "once in the life of the process";
  EXPECT_EQ(set, 1);
}

TEST(EnvTable, IsWellFormed) {
  std::set<std::string_view> names;
  for (const env::Parameter& p : env::kParameters) {
    EXPECT_TRUE(p.name.starts_with("OURO_"));
    EXPECT_FALSE(p.doc.empty()) << p.name;
    EXPECT_TRUE(names.insert(p.name).second) << p.name;
    if (p.type == env::Type::integer || p.type == env::Type::real) {
      EXPECT_THAT(std::string(p.accepts), HasSubstr(".."));
    }
  }
  for (const env::Setting& s : env::settings()) {
    if (s.origin == "default") {
      EXPECT_TRUE(s.valid.ok()) << s.valid.message();
    }
  }
}

TEST_F(Log, LinesHaveTheDocumentedForm) {
  log_to_file("INFO", "INIT");
  OURO_INFO(INIT, "rank {} of {}", 1, 4);
  OURO_INFO(COLL, "not wanted");
  OURO_TRACE(INIT, "too much");
  OURO_WARN("disk {}", "full");
  const auto lines = log_lines();
  ASSERT_EQ(lines.size(), 4u);
  const std::string who = fmt::format(":{}:{}", getpid(), gettid());
  EXPECT_THAT(lines[0], testing::EndsWith(who + " OURO version " OURO_VERSION));
  EXPECT_THAT(lines[1], testing::EndsWith(who + " OURO INFO rank 1 of 4"));
  EXPECT_EQ(lines[2], "");
  EXPECT_TRUE(std::regex_match(
      lines[3], std::regex(R"(\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\] )"
                           R"(\S+:\d+:\d+ tests/runtime/core/env_test\.cc:\d+ OURO WARN disk full)")))
      << lines[3];
  EXPECT_EQ(log::last_warning(), "disk full");
}

TEST_F(Log, UnprintedWarningIsKeptAsTheLast) {
  log_to_file("VERSION", "ALL");
  OURO_WARN("unprinted");
  EXPECT_EQ(log_lines().size(), 1u);
  EXPECT_EQ(log::last_warning(), "unprinted");
}

TEST_F(Log, ArgumentsOfUnwantedLinesAreNotEvaluated) {
  log_to_file("WARN", "ALL");
  int calls = 0;
  OURO_INFO(INIT, "{}", ++calls);
  EXPECT_EQ(calls, 0);
}

TEST_F(Log, BadSettingsAreReportedAndWarningsStillPrinted) {
  log_to_file("LOUD", "INIT,NONSENSE");
  OURO_WARN("still here");
  const auto lines = log_lines();
  EXPECT_THAT(
      lines,
      Contains(HasSubstr("OURO_DEBUG=LOUD (from environment): expected VERSION|WARN|INFO|ABORT|TRACE")));
  EXPECT_THAT(lines, Contains(HasSubstr("no such subsystem: NONSENSE")));
  EXPECT_THAT(lines, Contains(HasSubstr("still here")));
}

TEST(LogSubsystems, ParserUnderstandsListsAndExclusions) {
  using log::Subsystem;
  const auto bit = [](Subsystem s) { return 1u << static_cast<int>(s); };
  const std::uint32_t all = log::parse_subsystems("ALL", nullptr);
  EXPECT_EQ(log::parse_subsystems("INIT,COLL", nullptr), bit(Subsystem::INIT) | bit(Subsystem::COLL));
  EXPECT_EQ(log::parse_subsystems("^COLL", nullptr), all & ~bit(Subsystem::COLL));
  EXPECT_EQ(log::parse_subsystems("ALL,^NET,^P2P", nullptr),
            all & ~bit(Subsystem::NET) & ~bit(Subsystem::P2P));
  EXPECT_EQ(log::parse_subsystems("", nullptr), 0u);
  std::string unknown;
  log::parse_subsystems("INIT,foo,^bar", &unknown);
  EXPECT_EQ(unknown, "foo,bar");
}

TEST(LogFileName, PlaceholdersAreReplaced) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  EXPECT_EQ(log::expand_file_name("/tmp/a.%h.%p.%%.%x%"), fmt::format("/tmp/a.{}.{}.%.%x%", host, getpid()));
}

TEST_F(Log, ReloadedSettingsLoseNoLine) {
  log_to_file("INFO", "COLL");
  constexpr int kThreads = 3, kLines = 2000;
  std::atomic<int> left{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&left, t] {
      for (int i = 0; i < kLines; ++i) OURO_INFO(COLL, "line {} of {}", i, t);
      --left;
    });
  int times = 0;
  for (; left > 0; ++times) log::reload();
  for (std::thread& t : threads) t.join();
  EXPECT_GT(times, 0);
  std::size_t written = 0;
  for (const std::string& line : log_lines()) written += line.find("OURO INFO line") != std::string::npos;
  EXPECT_EQ(written, std::size_t{kThreads} * kLines);
}

TEST_F(Log, ManyThreadsWriteWholeLines) {
  log_to_file("INFO", "ALL");
  constexpr int kThreads = 4, kLines = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) {
        OURO_INFO(COLL, "thread {} line {} {}", t, i, std::string(200, 'x'));
        if (i % 50 == 0) OURO_WARN("thread {}", t);
        (void)log::last_warning();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const std::regex whole(R"(\S+ OURO INFO thread \d line \d+ x{200})");
  int complete = 0;
  for (const std::string& line : log_lines()) complete += std::regex_match(line, whole);
  EXPECT_EQ(complete, kThreads * kLines);
}

}  // namespace
}  // namespace ouro

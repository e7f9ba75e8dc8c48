// All ranks of a group choose the same algorithm, whatever hosts they run on; if they do not, the error names
// both choices. select_test.cc tests which row of the table serves a call.
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

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

std::string explained(Group& g) {
  static float in, out;  // only the addresses matter
  rt::Operation o;
  o.collective = Collective::all_reduce;
  o.in = {&in, 1000, DType::f32}, o.out = {&out, 1000, DType::f32};
  const auto text = g.impl()->explain(o);
  return text.ok() ? *text : text.status().message();
}

/// A job over hosts that differ only in name: rank r is on host `hosts[r]`; the ranks of a host are
/// consecutive. Everything runs on one processor, so only a host with a single rank has enough processors.
Result<std::vector<Context>> on_hosts(const std::vector<int>& hosts, const std::string& rendezvous) {
  const auto id = UniqueId::create();
  if (!id.ok()) return id.status();
  const auto n = hosts.size();
  std::vector<Context> contexts(n);
  std::vector<Status> outcomes(n);
  std::vector<std::thread> joiners;
  for (std::size_t r = 0; r < n; ++r)
    joiners.emplace_back([&, r] {
      cpu_set_t mine, one;
      CPU_ZERO(&one);
      if (::sched_getaffinity(0, sizeof mine, &mine) != 0) return;
      int cpu = 0;
      while (!CPU_ISSET(cpu, &mine)) ++cpu;
      CPU_SET(cpu, &one);
      if (::sched_setaffinity(0, sizeof one, &one) != 0) return;
      InitOptions o = quick_options();
      o.rank = static_cast<int>(r), o.world_size = static_cast<int>(n), o.id = *id;
      o.local_size = static_cast<int>(std::count(hosts.begin(), hosts.end(), hosts[r]));
      o.local_rank = static_cast<int>(
          std::count(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(r), hosts[r]));
      o.host_id = fmt::format("host-{}", hosts[r]);
      o.rendezvous = "file:" + rendezvous;
      auto c = Context::create(o);
      if (c.ok())
        contexts[r] = std::move(*c);
      else
        outcomes[r] = c.status();
    });
  for (auto& t : joiners) t.join();
  for (const Status& s : outcomes) OURO_TRY(s);
  return contexts;
}

std::string on_all(std::vector<Context>& contexts, const Body& body) {
  std::vector<std::string> said(contexts.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < contexts.size(); ++r)
    threads.emplace_back([&, r] {
      said[r] = body(contexts[r]);
      if (Status s = contexts[r].close(); !s.ok()) said[r] += " close: " + s.message();
    });
  for (auto& t : threads) t.join();
  std::string all;
  for (std::size_t r = 0; r < said.size(); ++r)
    if (!said[r].empty()) all += fmt::format("rank {}: {}\n", r, said[r]);
  return all;
}

TEST(Choice, IsTheSameOnHostsWithAndWithoutEnoughCores) {
  const std::string place = testing::TempDir() + fmt::format("ouro-choice-{}", ::getpid());
  std::ofstream(place + ".json") << R"({"ouro_tune": 1, "rules": [
    {"collective": "all_reduce", "buffers": "any", "cores": "enough", "hosts": "any",
     "ranks": [2, 64], "max_bytes": 1048576, "algorithm": "ring"},
    {"collective": "all_reduce", "buffers": "any", "cores": "fewer", "hosts": "any",
     "ranks": [2, 64], "max_bytes": 1048576, "algorithm": "halving"}]})";
  const Variable tune("OURO_TUNE", place + ".json"), lo("OURO_SOCKET_IFNAME", "lo"),
      open("OURO_INSECURE", "1");
  auto contexts = on_hosts({0, 1, 1, 2}, place + ".meeting");
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  const auto body = [](Context& c) -> std::string {
    const bool alone = c.rank() == 0 || c.rank() == 3;
    OURO_RANK_CHECK(c.impl()->cores().enough_here() == alone, "on this host");
    OURO_RANK_CHECK(explained(c.world()).starts_with("halving"), "{}", explained(c.world()));
    std::vector<float> in(1000, static_cast<float>(c.rank() + 1)), out(1000);
    OURO_RANK_OK(all_reduce(c.world(), std::span(in), std::span(out)));
    OURO_RANK_CHECK(out.front() == 10 && out.back() == 10, "{} {}", out.front(), out.back());
    // Only the hosts of the group count: the two that have enough processors, or the one that does not.
    auto part = c.world().split(alone ? 0 : 1, c.rank());
    OURO_RANK_OK(part);
    const std::string how = explained(*part);
    OURO_RANK_CHECK(how.starts_with(alone ? "ring" : "halving"), "{}", how);
    OURO_RANK_OK(all_reduce(*part, std::span(in), std::span(out)));
    OURO_RANK_CHECK(out.front() == 5 && out.back() == 5, "{} {}", out.front(), out.back());
    return "";
  };
  EXPECT_EQ(on_all(*contexts, body), "");
  for (const char* end : {".json", ".meeting"}) std::filesystem::remove(place + end);
}

struct Case {
  const char *name, *rows, *other_rows, *said, *other_said;
};
std::ostream& operator<<(std::ostream& os, const Case& c) { return os << c.name; }
class Choices : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Unlike, Choices,
    testing::Values(
        Case{"links", "all_reduce:ring", "all_reduce:halving", "algorithm ring", "algorithm halving"},
        Case{"staging", "all_reduce:inline", "all_reduce:oneshot", "algorithm inline", "algorithm oneshot"},
        Case{"both", "all_reduce:direct", "all_reduce:chain", "algorithm direct", "algorithm chain"},
        Case{"asking", "all_reduce@registered:zerocopy", "all_reduce@registered:ring",
             ", zerocopy where all buffers are registered", ""}),
    [](const auto& info) { return std::string(info.param.name); });

/// Equal calls, but one rank has been made to choose differently.
TEST_P(Choices, DifferentChoicesAreAMismatchThatNamesBoth) {
  if (hosts_of(2) > 1) GTEST_SKIP() << "on several hosts: they share no staging buffers";
  const std::string outcome = run_threads(3, [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<float> in(8, 1.0f), out(8);
    OURO_RANK_OK(all_reduce(g, std::span(in), std::span(out)));  // its plan is cached before the rules change
    OURO_RANK_OK(
        rt::TestAccess::select_by(*g.impl(), c.rank() == 1 ? GetParam().other_rows : GetParam().rows));
    in.resize(9), out.resize(9);
    const Status s = all_reduce(g, std::span(in), std::span(out));
    OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
    OURO_RANK_CHECK(s.failure()->rank == 1, "{}", s.message());
    for (const char* part : {"different algorithms", "ranks {0,2} called all_reduce(float, sum, count 9)",
                             "ranks {1} called", GetParam().said, GetParam().other_said})
      OURO_RANK_CHECK(s.message().find(part) != std::string::npos, "no '{}' in {}", part, s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST(Choices, AlgorithmIsNotNamedIfTheCallsDiffer) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    std::vector<float> in(200'000, 1.0f), out(200'000);
    const std::size_t count = c.rank() == 0 ? 4 : 200'000;  // the algorithms differ as well
    const Status s = all_reduce(c.world(), std::span(in).first(count), std::span(out).first(count));
    OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
    OURO_RANK_CHECK(s.message().find("algorithm") == std::string::npos, "{}", s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// The job's algorithm serves all calls of the collectives that have it, also within a batch. If it cannot
/// serve a call, that call fails on all ranks, and only that call.
TEST(JobAlgorithm, ServesTheCallOrFailsItWithAReason) {
  if (hosts_of(2) > 1) GTEST_SKIP() << "on several hosts: they share no staging buffers";
  for (const char* algorithm : {"ring", "chain", "tree", "halving", "oneshot", "direct", "zerocopy"}) {
    const Variable job("OURO_ALGO", algorithm);
    const std::string outcome = run_threads(3, [&](Context& c) -> std::string {
      Group& g = c.world();
      OURO_RANK_CHECK(explained(g).starts_with(algorithm), "{}", explained(g));
      const bool registered = algorithm == std::string("zerocopy");
      auto memory = c.alloc(4 * 3000);
      OURO_RANK_OK(memory);
      std::vector<float> heap(3000);
      float* const x = registered ? static_cast<float*>(static_cast<void*>(memory->data())) : heap.data();
      std::fill_n(x, 3000, static_cast<float>(c.rank() + 1));
      const std::span<float> a(x, 1000), b(x + 1000, 1000), d(x + 2000, 1000);
      group_start();
      for (const auto& part : {a, b, d}) OURO_RANK_OK(all_reduce(g, part, part));
      OURO_RANK_OK(group_end());
      OURO_RANK_CHECK(x[0] == 6 && x[1500] == 6 && x[2999] == 6, "{} {} {}", x[0], x[1500], x[2999]);
      rt::Operation o;
      o.collective = Collective::all_reduce;
      o.in = {x, 1000, DType::f32}, o.out = {x, 1000, DType::f32};
      OURO_RANK_CHECK(rt::TestAccess::carries_out(*g.impl(), o, *flow::parse_algorithm(algorithm)),
                      "the plan has another flow than {}", algorithm);
      const std::string_view with = algorithm;
      const bool ordered = with != "ring" && with != "tree" && with != "halving";
      const Status exact = all_reduce(g, a, a, ReduceOp::sum, {.numerics = Numerics::canonical});
      if (ordered) {
        OURO_RANK_OK(exact);
      } else {
        OURO_RANK_CHECK(exact.reason() == Reason::invalid, "{}", exact.message());
        const auto says =
            fmt::format("OURO_ALGO={} cannot serve this call: it does not reduce in rank order", algorithm);
        OURO_RANK_CHECK(exact.message().find(says) != std::string::npos, "{}", exact.message());
      }
      if (registered) {
        const Status s = all_reduce(g, std::span(heap), std::span(heap));
        OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
        OURO_RANK_CHECK(s.message().find("Context::alloc") != std::string::npos, "{}", s.message());
      }
      OURO_RANK_OK(g.status());
      OURO_RANK_OK(barrier(g));
      return "";
    });
    EXPECT_EQ(outcome, "") << algorithm;
  }
}

}  // namespace
}  // namespace ouro::test

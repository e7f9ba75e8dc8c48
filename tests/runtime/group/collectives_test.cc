// Every collective with every algorithm, with ranks as threads and as processes: sizes, roots, placement,
// alignment, private and registered memory.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "kernels/flow/list.h"
#include "runtime/core/collectives.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/exchange.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

// Large enough for several rounds of every lane: elements of a region, and of one block.
constexpr std::size_t kLargeRegion = OURO_TEST_TSAN ? 70'003 : 200'003, kLargeBlock = 70'003;
constexpr std::size_t kGuard = 64;  // bytes watched before and after a buffer
constexpr std::byte kCanary{0xA5}, kUnwritten{0xCD};

enum class Where { own, registered, mixed };  // mixed: own memory on odd ranks, registered on even ranks

struct Layout {
  Where where;
  bool in_place;
  std::size_t shift;  // bytes
};

struct Param {
  Form form;
  std::string algorithm;  // "": the selected one
  Mode mode;
};

std::string label(const Param& p) {
  return fmt::format("{}{}_{}_{}", name(p.form.collective), p.form.uneven ? "_v" : "",
                     p.algorithm.empty() ? "selected" : p.algorithm, name(p.mode));
}

std::ostream& operator<<(std::ostream& o, const Param& p) { return o << label(p); }

/// Space for one buffer with its guards, in the rank's own memory and in registered memory.
class Arena {
 public:
  Status make(Context& c, std::size_t bytes) {
    own_.resize(bytes + 2 * kGuard + 64);
    auto memory = c.alloc(own_.size());
    if (memory.ok()) registered_ = *memory;
    return memory.status();
  }
  std::byte* at(bool registered, std::size_t shift) {
    return (registered ? static_cast<std::byte*>(registered_.data()) : own_.data()) + kGuard + shift;
  }

 private:
  std::vector<std::byte> own_;
  Memory registered_;
};

void guard(std::byte* p, std::size_t bytes) {
  std::memset(p - kGuard, static_cast<int>(kCanary), kGuard);
  std::memset(p + bytes, static_cast<int>(kCanary), kGuard);
}
bool guarded(const std::byte* p, std::size_t bytes) {
  for (std::size_t i = 0; i < kGuard; ++i)
    if (p[i - kGuard] != kCanary || p[bytes + i] != kCanary) return false;
  return true;
}
float load_float(const std::byte* p, std::size_t i) {
  float f;
  std::memcpy(&f, p + 4 * i, 4);
  return f;
}

/// Whether the plan of the call has the flow of `algorithm`, and no other.
bool carried_out(Group& g, const Exchange& x, const std::string& algorithm, const std::byte* in,
                 std::byte* out) {
  const auto sent = x.sent(g.rank()), received = x.received(g.rank());
  const Collective c = x.form.collective;
  rt::Operation o;
  o.collective = c, o.root = x.root, o.algorithm = algorithm, o.uneven = x.form.uneven;
  if (in) o.in = {in, x.in_count(g.rank()), DType::f32};
  if (out) o.out = {out, x.out_count(g.rank()), DType::f32};
  if (o.uneven && c != Collective::all_gather) o.in_counts = sent;
  if (o.uneven && c != Collective::reduce_scatter) o.out_counts = received;
  return rt::TestAccess::carries_out(*g.impl(), o, *flow::parse_algorithm(algorithm));
}

/// Makes one call with one layout and checks everything that this rank can observe.
std::string check_call(Group& g, const Exchange& x, const std::string& algorithm, Layout layout, Arena& large,
                       Arena& small) {
  const int r = g.rank();
  const std::size_t in_count = x.in_count(r), out_count = x.out_count(r);
  const bool reads = x.reads(r), writes = x.writes(r), aliased = layout.in_place && reads && writes;
  const auto registered = [&](int q) {
    return layout.where == Where::registered || (layout.where == Where::mixed && q % 2 == 0);
  };
  const bool in_is_large = in_count >= out_count;
  std::byte* const outer = large.at(registered(r), layout.shift);
  std::byte* const inner = aliased ? outer + 4 * x.in_place_at(r) : small.at(registered(r), layout.shift);
  std::byte* const in = in_is_large ? outer : inner;
  std::byte* const out = in_is_large ? inner : outer;

  const std::size_t outer_bytes = 4 * std::max(in_count, out_count),
                    inner_bytes = 4 * std::min(in_count, out_count);
  guard(outer, outer_bytes);
  if (!aliased) guard(inner, inner_bytes);
  if (out_count > 0) std::memset(out, static_cast<int>(kUnwritten), 4 * out_count);
  for (std::size_t i = 0; reads && i < in_count; ++i) {
    const float v = Exchange::value(r, i);
    std::memcpy(in + 4 * i, &v, 4);
  }

  const Status s = x.call(g, reads ? CView(in, in_count, DType::f32) : CView(),
                          writes ? View(out, out_count, DType::f32) : View(), {.algorithm = algorithm});
  if ((algorithm == "zerocopy" || algorithm == "pull") && x.count > 0) {  // these need suitable memory
    bool can = x.form.collective != Collective::all_to_all || !layout.in_place;
    const bool root_only = x.form.collective == Collective::scatter;
    for (int q = 0; x.n > 1 && q < x.n; ++q)
      can = can && (algorithm == "pull" || registered(q) || (root_only && q != x.root));
    if (!can) {
      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
      OURO_RANK_OK(g.status());  // the error is not sticky
      return "";
    }
  }
  OURO_RANK_OK(s);
  if (!algorithm.empty() && x.count > 0)
    OURO_RANK_CHECK(carried_out(g, x, algorithm, reads ? in : nullptr, writes ? out : nullptr),
                    "another flow than {} has run", algorithm);

  if (writes) {
    const std::vector<float> expected = x.expected(r);
    OURO_RANK_CHECK(expected.size() == out_count, "{} {}", expected.size(), out_count);
    for (std::size_t i = 0; i < out_count; ++i)
      OURO_RANK_CHECK(load_float(out, i) == expected[i], "element {}: {} in place of {}", i,
                      load_float(out, i), expected[i]);
  }
  const std::byte* const out_end = writes ? out + 4 * out_count : out;
  for (std::size_t i = 0; reads && i < in_count; ++i) {  // input that is not also output is unchanged
    if (in + 4 * i >= out && in + 4 * i < out_end) continue;
    OURO_RANK_CHECK(load_float(in, i) == Exchange::value(r, i), "input {} is now {}", i, load_float(in, i));
  }
  OURO_RANK_CHECK(guarded(outer, outer_bytes), "a canary is dead");
  OURO_RANK_CHECK(aliased || guarded(inner, inner_bytes), "a canary is dead");
  return "";
}

std::vector<int> roots(const Exchange& x) {
  const Collective c = x.form.collective;
  if (!traits_of(c).rooted()) return {0};
  std::set<int> some{0, x.n / 2, x.n - 1};
  return {some.begin(), some.end()};
}

class Collectives : public testing::TestWithParam<Param> {};

TEST_P(Collectives, ResultIsExact) {
  const Param& p = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(p.mode);
  std::vector<int> sizes{1, 2, 3, 5, 8};
  if (OURO_TEST_TSAN) sizes.pop_back();
  if (p.mode == Mode::processes) sizes = {3};
  if (const auto a = flow::parse_algorithm(p.algorithm); a && flow::between_hosts(*a))
    std::erase(sizes, 1);  // one rank cannot be on several hosts
  if (!serves_here(p.form.collective, p.algorithm))
    GTEST_SKIP() << "on several hosts: they cannot use " << p.algorithm;
  for (int n : sizes) {
    const auto body = [&](Context& c) -> std::string {
      Group& g = c.world();
      const std::size_t several = static_cast<std::size_t>(n);
      const bool blocks = Exchange{p.form, n}.blocks_in() || Exchange{p.form, n}.blocks_out();
      const std::size_t large_count = blocks ? kLargeBlock : kLargeRegion;
      std::set<std::size_t> counts{0, 1, several - 1, several, 7, 1000, large_count};
      if (p.algorithm == "inline") counts = {0, 1, 2, 7, 14};  // 56 bytes
      Arena large, small;
      const std::size_t most = 4 * (blocks ? several * (large_count + 40) : large_count);
      OURO_RANK_OK(large.make(c, most));
      OURO_RANK_OK(small.make(c, most));
      for (std::size_t count : counts) {
        Exchange x{p.form, n, count, 0};
        for (int root : roots(x)) {
          x.root = root;
          for (Where where : {Where::own, Where::registered, Where::mixed})
            for (bool in_place : {false, true})
              for (std::size_t shift : {0, 1}) {
                if (in_place && p.form.uneven && p.form.collective == Collective::all_to_all)
                  continue;  // not allowed
                // If a call takes milliseconds, each value of each dimension is covered only once.
                const bool chosen = (where == Where::own && shift == 1) ||
                                    (where == Where::registered && shift == 0) ||
                                    (where == Where::mixed && !in_place && shift == 0);
                if (count == large_count && (!chosen || root != roots(x).back())) continue;
                std::string said = check_call(g, x, p.algorithm, {where, in_place, shift}, large, small);
                if (!said.empty())
                  return fmt::format("count {} root {} memory {} in_place {} shift {}: {}", count, root,
                                     static_cast<int>(where), in_place, shift, said);
              }
        }
      }
      return "";
    };
    ASSERT_EQ(run(p.mode, n, body), "") << n << " ranks";
  }
}

/// Derived from the list of flows: a new algorithm is tested as soon as it is listed. CMake's filters limit
/// algorithms between hosts to runs with several hosts.
std::vector<Param> all_params() {
  std::vector<Param> all;
  std::set<Collective> seen;
  const auto add = [&](Form form, std::string algorithm) {
    for (Mode mode : {Mode::threads, Mode::processes}) all.push_back({form, algorithm, mode});
  };
  flow::for_each_flow([&](Collective c, flow::Algorithm a, auto f) {
    if (c == Collective::barrier || traits_of(c).neighbours() || f.kSwitched) return;  // tested elsewhere
    const bool has_uneven =
        c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::all_to_all;
    if (seen.insert(c).second) {
      add({c}, "");
      if (has_uneven) add({c, true}, "");
    }
    add({c}, std::string(name(a)));
    const bool serves_uneven = !f.kByReference && (c != Collective::all_to_all || !f.kStaging);
    if (has_uneven && serves_uneven) add({c, true}, std::string(name(a)));
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, Collectives, testing::ValuesIn(all_params()),
                         [](const auto& info) { return label(info.param); });

class Barriers : public testing::TestWithParam<Mode> {};

/// No rank leaves a barrier before all ranks have entered it, as checked with the clock that all ranks share.
TEST_P(Barriers, NoRankLeavesBeforeAllHaveEntered) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  for (int n : {1, 2, 3, 5, 8}) {
    ASSERT_EQ(run(GetParam(), n,
                  [&](Context& c) -> std::string {
                    Group& g = c.world();
                    for (int turn = 0; turn < 20; ++turn) {
                      if (g.rank() == turn % n) std::this_thread::sleep_for(std::chrono::microseconds(300));
                      const std::int64_t came = now();
                      OURO_RANK_OK(barrier(g));
                      const std::int64_t left = now();
                      std::vector<std::int64_t> all(static_cast<std::size_t>(n));
                      OURO_RANK_OK(all_gather(g, CView(&came, 1, DType::i64),
                                              View(all.data(), all.size(), DType::i64)));
                      for (int r = 0; r < n; ++r)
                        OURO_RANK_CHECK(all[static_cast<std::size_t>(r)] <= left,
                                        "turn {}: rank {} had not come", turn, r);
                    }
                    return "";
                  }),
              "")
        << n << " ranks";
  }
}
INSTANTIATE_TEST_SUITE_P(All, Barriers, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

TEST(ForcedAlgorithm, ThatCannotServeIsRefusedAndOthersAreListed) {
  if (hosts_of(3) > 1) GTEST_SKIP() << "on several hosts: the lists are those of one";
  const std::string outcome = run_threads(3, [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<float> in(6), out(6);
    const std::vector<std::size_t> counts{1, 2, 3};
    const auto refused = [&](const Status& s, std::string_view must_list) -> std::string {
      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
      OURO_RANK_CHECK(s.message().find(must_list) != std::string::npos, "'{}' lacks '{}'", s.message(),
                      must_list);
      OURO_RANK_OK(g.status());
      return "";
    };
    const std::span<float> i(in), o(out);
    const std::size_t mine = counts[static_cast<std::size_t>(g.rank())];
    std::string said = refused(all_reduce(g, i, o, ReduceOp::sum, {.algorithm = "linear"}),
                               "ring, chain, tree, halving, inline, oneshot, direct, zerocopy, pull");
    if (said.empty())
      said = refused(broadcast(g, i, o, 0, {.algorithm = "nonsense"}),
                     "chain, tree, inline, direct, zerocopy, pull");
    if (said.empty())
      said = refused(all_gather_v(g, i.first(mine), o, counts, {.algorithm = "zerocopy"}), "ring, direct");
    if (said.empty())
      said = refused(reduce_scatter_v(g, i, o.first(mine), counts, ReduceOp::sum, {.algorithm = "zerocopy"}),
                     "ring, chain, direct");
    if (said.empty()) OURO_RANK_OK(all_reduce(g, i, o));
    return said;
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test

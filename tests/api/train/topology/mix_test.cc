// Rows executed by real ranks: every topology compared with its matrices, all types bit for bit, ranks
// without neighbours, streams, batches, push-sum, two vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "kernels/arith/floats.h"
#include "ouro/train/topology.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;

double value(int rank, std::size_t i) {
  return std::sin(1 + 1.3 * rank + 0.5 * static_cast<double>(i)) * (1 + rank);
}

template <class T>
View view(std::vector<T>& v) {
  return std::span<T>(v);
}

/// Element i of W x, where x has the values of all ranks.
std::vector<double> times(const std::vector<double>& w, const std::vector<double>& x) {
  std::vector<double> y(x.size());
  for (std::size_t r = 0; r < x.size(); ++r)
    for (std::size_t s = 0; s < x.size(); ++s) y[r] += w[r * x.size() + s] * x[s];
  return y;
}

/// Compares one period of `t`, alternately in place and not, with the product of its matrices.
std::string run_period(Group& g, const Topology& t, const std::string& name) {
  constexpr std::size_t kCount = 37;
  const auto n = static_cast<std::size_t>(g.size());
  std::vector<std::vector<double>> want(kCount, std::vector<double>(n));
  std::vector<double> x(kCount), other(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    x[i] = value(g.rank(), i);
    for (std::size_t r = 0; r < n; ++r) want[i][r] = value(static_cast<int>(r), i);
  }
  for (int k = 0; k < t.period(); ++k) {
    View to = k % 2 == 0 ? view(other) : view(x);
    OURO_RANK_OK(mix(g, t.row(k, g.rank()), view(x), to));
    if (k % 2 == 0) x.swap(other);
    for (std::vector<double>& values : want) values = times(t.matrix(k), values);
  }
  for (std::size_t i = 0; i < kCount; ++i)
    OURO_RANK_CHECK(std::abs(x[i] - want[i][static_cast<std::size_t>(g.rank())]) <= 1e-12,
                    "{}: element {}: {} in place of {}", name, i, x[i],
                    want[i][static_cast<std::size_t>(g.rank())]);
  return "";
}

/// Two periods of CECA; whatever y holds at first, even NaN, x ends as the mean.
std::string run_pairs(Group& g, const Topology& t) {
  std::vector<double> x(5), y(5, std::numeric_limits<double>::quiet_NaN()), z(5);
  for (int period = 0; period < 2; ++period) {
    double mean = 0;
    for (int r = 0; r < g.size(); ++r) mean += value(r + period, 2) / g.size();
    x[2] = value(g.rank() + period, 2);
    for (int k = 0; k < t.period(); ++k)
      OURO_RANK_OK(mix_pair(g, *t.pair(period * t.period() + k, g.rank()), view(x), view(y), view(z)));
    OURO_RANK_CHECK(std::abs(x[2] - mean) <= 1e-12, "ceca-2p: {} in place of the mean {}", x[2], mean);
  }
  return "";
}

class Mix : public testing::TestWithParam<int> {};

TEST_P(Mix, APeriodIsTheProductOfItsMatrices) {
  const int n = GetParam();
  std::atomic<int> periods{0};
  const auto body = [&](Context& c) -> std::string {
    for (const TopologyInfo& info : topologies()) {
      for (int variant = 1; variant <= 3; ++variant) {
        TopologyOptions o;
        if (variant > 1 && !info.by_peers && !(info.by_node && n % variant == 0)) continue;
        if (info.by_peers) o.peers = variant;
        if (info.by_node) o.local_world_size = variant;
        const Result<Topology> t = Topology::make(info.name, n, o);
        if (!t.ok()) continue;  // needs a power of two or the like; property_test checks which
        if (std::string wrong = run_period(c.world(), *t, info.name); !wrong.empty()) return wrong;
        if (t->vectors() == 2)
          if (std::string wrong = run_pairs(c.world(), *t); !wrong.empty()) return wrong;
        ++periods;
      }
    }
    return "";
  };
  EXPECT_EQ(run_threads(n, body), "");
  EXPECT_GE(periods, 9 * n);
}
INSTANTIATE_TEST_SUITE_P(Ranks, Mix, testing::Range(1, 10));

/// Element type, accumulation type, and the conversions between them.
template <class T, class A, A (*kWiden)(T), T (*kNarrow)(A)>
struct Type {
  using Element = T;
  using Acc = A;
  static A widen(T x) { return kWiden(x); }
  static T narrow(A x) { return kNarrow(x); }
};
template <class T>
T same(T x) {
  return x;
}
float from_half(arith::Half x) { return arith::widen(x); }
arith::Half to_half(float x) { return arith::narrow<arith::Half>(x); }
float from_bfloat(arith::BFloat16 x) { return arith::widen(x); }
arith::BFloat16 to_bfloat(float x) { return arith::narrow<arith::BFloat16>(x); }
using F16 = Type<arith::Half, float, from_half, to_half>;
using BF16 = Type<arith::BFloat16, float, from_bfloat, to_bfloat>;
using F32 = Type<float, float, same<float>, same<float>>;
using F64 = Type<double, double, same<double>, same<double>>;

/// The rank itself first, then by rank, in the accumulation type; rounded once.
template <class T>
typename T::Element expected(const Row& row, int rank, std::size_t i) {
  using A = typename T::Acc;
  const auto input = [&](int r) { return T::widen(T::narrow(static_cast<A>(value(r, i)))); };
  volatile A sum = 0;  // prevents fused multiply-add, whatever the flags
  bool first = true;
  const auto add = [&](double weight, int r) {
    volatile A term = static_cast<A>(weight) * input(r);
    sum = first ? term : sum + term;
    first = false;
  };
  // A mean of n is computed as their sum, divided once.
  const double share = 1 / static_cast<double>(row.in.size() + 1);
  const bool mean =
      !row.in.empty() && row.self == share &&
      std::all_of(row.in.begin(), row.in.end(), [&](const auto& in) { return in.second == share; });
  if (row.self != 0) add(mean ? 1 : row.self, rank);
  for (const auto& [from, weight] : row.in) add(mean ? 1 : weight, from);
  return T::narrow(mean ? sum / static_cast<A>(row.in.size() + 1) : static_cast<A>(sum));
}

template <class T>
std::string run_type(Group& g, const Topology& t, DType type, std::size_t count) {
  using E = typename T::Element;
  for (int k = 0; k < t.period(); ++k) {
    for (const bool in_place : {false, true}) {
      std::vector<E> x(count), out(count);
      for (std::size_t i = 0; i < count; ++i)
        x[i] = T::narrow(static_cast<typename T::Acc>(value(g.rank(), i)));
      std::vector<E>& y = in_place ? x : out;
      const Row row = t.row(k, g.rank());
      OURO_RANK_OK(mix(g, row, CView(x.data(), count, type), View(y.data(), count, type)));
      for (std::size_t i = 0; i < count; ++i) {
        const E want = expected<T>(row, g.rank(), i);
        OURO_RANK_CHECK(std::memcmp(&y[i], &want, sizeof(E)) == 0,
                        "{}, round {}, in place {}: element {} of {}: {} for {}", name(type), k, in_place, i,
                        count, T::widen(y[i]), T::widen(want));
      }
    }
  }
  return "";
}

/// Many rounds through slots, and counts that do not fill the last slot.
TEST(MixTypes, EveryTypeGivesTheBitsOfASerialMix) {
  const auto body = [](Context& c) -> std::string {
    for (const char* name : {"star", "ring", "static-exp", "one-peer-exp-directed"}) {
      const Topology t = *Topology::make(name, c.world_size());
      for (const std::size_t count :
           {std::size_t{1}, std::size_t{1000}, std::size_t{OURO_TEST_TSAN ? 70'001 : 210'001}}) {
        if (auto w = run_type<F16>(c.world(), t, DType::f16, count); !w.empty()) return w;
        if (auto w = run_type<BF16>(c.world(), t, DType::bf16, count); !w.empty()) return w;
        if (auto w = run_type<F32>(c.world(), t, DType::f32, count); !w.empty()) return w;
        if (auto w = run_type<F64>(c.world(), t, DType::f64, count); !w.empty()) return w;
      }
    }
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

TEST(Mixing, RanksWithoutNeighboursWaitForNobody) {
  std::atomic<bool> idle_done{false};
  const auto body = [&](Context& c) -> std::string {
    const bool idle = c.rank() == 2;
    struct AtEnd {  // on every exit, otherwise the others would wait for ever
      std::atomic<bool>* done;
      ~AtEnd() {
        if (done != nullptr) *done = true;
      }
    } const at_end{idle ? &idle_done : nullptr};
    std::vector<float> x{1, 2, static_cast<float>(c.rank())};
    OURO_RANK_OK(barrier(c.world()));
    OURO_RANK_OK(mix(c.world(), Row{}, view(x), view(x)));  // creates the links
    for (int ms = 0; !idle && !idle_done; ++ms) {
      OURO_RANK_CHECK(ms < 30'000, "{} ms: the idle rank waits for somebody", ms);
      std::this_thread::sleep_for(Milliseconds(1));
    }
    for (int i = 0; i < 20; ++i) {
      const Row row = idle ? Row{} : Row{0.5, {{1 - c.rank(), 0.5}}, {1 - c.rank()}};
      OURO_RANK_OK(mix(c.world(), row, view(x), view(x)));
    }
    OURO_RANK_CHECK(x[2] == (idle ? 2 : 0.5), "{}", x[2]);
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// The mean of ten equal numbers is that number, in every type; summing a rounded tenth of each would not
/// give it.
TEST(Mixing, TheMeanOfEqualsIsExact) {
  const auto body = [](Context& c) -> std::string {
    const Topology complete = *Topology::make("complete", 10);
    const Row row = complete.row(0, c.rank());
    std::vector<float> x{1, 3};
    OURO_RANK_OK(mix(c.world(), row, std::span<const float>(x), std::span(x)));
    OURO_RANK_CHECK(x[0] == 1 && x[1] == 3, "{} {}", x[0], x[1]);
    arith::Half h = arith::narrow<arith::Half>(60000.0F);  // their sum is infinite in their own type
    OURO_RANK_OK(mix(c.world(), row, CView(&h, 1, DType::f16), View(&h, 1, DType::f16)));
    OURO_RANK_CHECK(arith::widen(h) == arith::widen(arith::narrow<arith::Half>(60000.0F)), "{}",
                    arith::widen(h));
    return "";
  };
  EXPECT_EQ(run_threads(10, body), "");
}

/// A weight of zero excludes a vector, even an infinite one.
TEST(Mixing, WeightZeroExcludesAnInfiniteVector) {
  const auto body = [](Context& c) -> std::string {
    std::vector<float> x(3, c.rank() == 0 ? std::numeric_limits<float>::infinity() : 4), y(3);
    const int other = 1 - c.rank();
    OURO_RANK_OK(
        mix(c.world(), c.rank() == 0 ? Row{0, {{1, 0.5}}, {1}} : Row{1, {{0, 1}}, {0}}, view(x), view(y)));
    OURO_RANK_CHECK(y[2] == (c.rank() == 0 ? 2.0F : std::numeric_limits<float>::infinity()), "{}", y[2]);
    OURO_RANK_OK(mix(c.world(), Row{0, {{other, 1}}, {other}}, view(y), view(x)));
    OURO_RANK_CHECK(x[0] == (c.rank() == 1 ? 2.0F : std::numeric_limits<float>::infinity()), "{}", x[0]);
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

/// On a stream the row may be destroyed before the operation runs; in a batch it is deferred.
TEST(Mixing, RunsInOrderOnStreamsAndDeferredInBatches) {
  const auto body = [](Context& c) -> std::string {
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    const Topology ring = *Topology::make("ring", c.world_size());
    std::vector<double> x{value(c.rank(), 0)}, y{value(c.rank(), 1)};
    std::vector<Work> works;
    for (int k = 0; k < 8; ++k) {
      Result<Work> work = Status();
      {
        const Row row = ring.row(k, c.rank());
        work = mix(c.world(), row, view(x), view(x), *stream);
      }
      OURO_RANK_OK(work);
      works.push_back(*work);
    }
    for (const Work& w : works) OURO_RANK_OK(w.wait());
    for (int k = 0; k < 8; ++k) {
      group_start();
      OURO_RANK_OK(mix(c.world(), ring.row(k, c.rank()), view(y), view(y)));
      std::vector<double> z{0};
      const Status inside = mix_pair(c.world(), PairRow{}, view(y), view(y), view(z));
      OURO_RANK_CHECK(inside.code() == Code::invalid, "{}", inside.message());
      OURO_RANK_OK(group_end());
    }
    std::vector<double> want_x, want_y;
    for (int r = 0; r < c.world_size(); ++r) want_x.push_back(value(r, 0)), want_y.push_back(value(r, 1));
    for (int k = 0; k < 8; ++k)
      want_x = times(ring.matrix(k), want_x), want_y = times(ring.matrix(k), want_y);
    const auto me = static_cast<std::size_t>(c.rank());
    OURO_RANK_CHECK(std::abs(x[0] - want_x[me]) < 1e-12, "{} for {}", x[0], want_x[me]);
    OURO_RANK_CHECK(std::abs(y[0] - want_y[me]) < 1e-12, "{} for {}", y[0], want_y[me]);
    return "";
  };
  EXPECT_EQ(run_threads(5, body), "");
}

/// Directed, with columns that sum to 1 and rows that do not: values divided by weights nevertheless converge
/// to the mean.
TEST(Mixing, PushSumConvergesToTheMean) {
  constexpr int n = 5;
  const std::vector<std::vector<int>> gives = {{1, 2, 3, 4}, {2}, {0, 3}, {4}, {0}};
  const auto body = [&](Context& c) -> std::string {
    const auto share = [&](int r) {
      return 1.0 / static_cast<double>(gives[static_cast<std::size_t>(r)].size() + 1);
    };
    Row row{share(c.rank()), {}, gives[static_cast<std::size_t>(c.rank())]};
    for (int r = 0; r < n; ++r)
      for (const int to : gives[static_cast<std::size_t>(r)])
        if (to == c.rank()) row.in.emplace_back(r, share(r));
    double weight = 1, sum = 0, mean = 0;
    std::vector<double> x{value(c.rank(), 3)}, weights{0};
    for (int r = 0; r < n; ++r) mean += value(r, 3) / n;
    for (int k = 0; k < 120; ++k) OURO_RANK_OK(push_sum(c.world(), row, view(x), view(x), weight));
    OURO_RANK_CHECK(std::abs(x[0] / weight - mean) < 1e-12, "{} for {}", x[0] / weight, mean);
    const double apart = std::abs(weight - 1);
    double most = 0;
    OURO_RANK_OK(all_reduce(c.world(), std::span<const double>(&apart, 1), std::span<double>(&most, 1),
                            ReduceOp::max));
    OURO_RANK_CHECK(most > 0.1, "the graph does not show it: weights within {} of 1", most);
    OURO_RANK_OK(all_reduce(c.world(), std::span<const double>(&weight, 1), std::span<double>(&sum, 1)));
    OURO_RANK_CHECK(std::abs(sum - n) < 1e-12, "weights sum to {}", sum);
    return "";
  };
  EXPECT_EQ(run_threads(n, body), "");
}

}  // namespace
}  // namespace ouro::train

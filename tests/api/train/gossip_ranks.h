// A model's memory on one rank, a training step as a user writes it, and figures over all ranks. Used by the
// tests of decentralised training.
#pragma once
#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <vector>

#include "ouro/train/gossip.hpp"
#include "tests/api/train/arrays.h"
#include "tests/runtime/group/ranks.h"
#include "tools/models/tensor.h"

namespace ouro::test {

using models::Gradients;
using models::Tensor;
using models::Values;

/// What a user has before making a trainer: values and gradients, in the user's memory.
struct Model {
  std::vector<Tensor> tensors;
  std::vector<std::vector<double>> values, grads;

  explicit Model(std::vector<Tensor> t) : tensors(std::move(t)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      values.push_back(models::initial_values(tensors[i], i));
      grads.emplace_back(values[i].size());
    }
  }
  std::vector<train::Param> params() {
    std::vector<train::Param> list;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      list.push_back({tensors[i].name, std::span(values[i]), std::span(grads[i]), tensors[i].shape});
    return list;
  }
  /// The same in memory of that GPU, which lives as long as this object.
  std::vector<train::Param> params_on(Device gpu) {
    std::vector<train::Param> list = params();
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i].value = there_.emplace_back(gpu, values[i]).view();
      list[i].grad = there_.emplace_back(gpu, grads[i]).view();
    }
    return list;
  }

 private:
  std::deque<Array> there_;
};

inline bool on_host(const View& v) { return v.device.kind == Device::Kind::host; }

/// Computes a loss and its gradients.
using LossOf = std::function<double(Values, Gradients)>;

/// One step: clears gradients, computes them (on the host, wherever parameters are) and reports them ready in
/// `order`. Returns the loss of this rank.
inline Result<double> train_step(train::GossipTrainer& t, std::span<const int> order, const LossOf& loss_of) {
  OURO_TRY(t.begin_step());
  std::vector<const double*> values;
  std::vector<double*> grads;
  std::deque<std::vector<double>> copies;  // of parameters that are on a GPU
  const auto here = [&](const View& v) {
    return on_host(v) || v.data == nullptr ? static_cast<double*>(v.data)
                                           : copies.emplace_back(v.count).data();
  };
  for (const train::Param& p : t.params()) {
    double* const value = here(p.value);
    if (!on_host(p.value)) OURO_TRY(copy_bytes(p.value.device, value, p.value.data, p.value.bytes()));
    values.push_back(value);
    grads.push_back(here(p.grad));
    if (grads.back() != nullptr) std::fill_n(grads.back(), p.grad.count, 0.0);
  }
  const double loss = loss_of(values, grads);
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (const View& g = t.params()[i].grad; g.data != nullptr && !on_host(g))
      OURO_TRY(copy_bytes(g.device, g.data, grads[i], g.bytes()));
  for (const int i : order) OURO_TRY(t.grad_ready(i));
  OURO_TRY(t.end_backward());
  return loss;
}

/// All parameters, concatenated in the order of the list.
inline std::vector<double> flat(const train::GossipTrainer& t) {
  std::vector<double> all;
  for (const train::Param& p : t.params()) {
    std::vector<double> values(p.value.count);
    const Status s = copy_bytes(p.value.device, values.data(), p.value.data, p.value.bytes());
    EXPECT_TRUE(s.ok()) << s.message();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline Result<std::vector<double>> mean_of(Group& g, std::vector<double> v) {
  OURO_TRY(all_reduce(g, std::span<const double>(v), std::span(v), ReduceOp::avg));
  return v;
}
inline double norm(const std::vector<double>& v) {
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}

/// The distance between ranks: sqrt(sum of ||x_r - mean||^2 / N), and the mean.
struct Consensus {
  double rms = 0;
  std::vector<double> mean;
};
inline Result<Consensus> consensus(Group& g, const std::vector<double>& x) {
  auto mean = mean_of(g, x);
  OURO_TRY(mean.status());
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - (*mean)[i]) * (x[i] - (*mean)[i]);
  auto all = mean_of(g, {squares});
  OURO_TRY(all.status());
  return Consensus{std::sqrt((*all)[0]), std::move(*mean)};
}

/// The tolerance of the golden files: relative 1e-10 up to step 10, then 1e-8; absolute 1e-12 below 1e-4.
inline bool close(double got, double want, std::size_t step, double looser = 1) {
  const double relative = step <= 10 ? 1e-10 : 1e-8;
  return std::abs(got - want) <= looser * (std::abs(want) < 1e-4 ? 1e-12 : relative * std::abs(want));
}
#define OURO_RANK_CLOSE(got, want, step, ...)                                                   \
  do {                                                                                          \
    const double rank_got = (got), rank_want = (want);                                          \
    if (!::ouro::test::close(rank_got, rank_want, step))                                        \
      return fmt::format("{}:{}: {}: {:.17g} in place of {:.17g}, step {}", __FILE__, __LINE__, \
                         fmt::format(__VA_ARGS__), rank_got, rank_want, step);                  \
  } while (0)

inline train::OptimizerFactory plain_sgd(double lr) { return train::optim_fn_sgd({.lr = lr}); }

/// The loss 0.5 ||x - centre||^2 of one vector.
inline LossOf quadratic(std::vector<double> centre, double factor = 1) {
  return [centre = std::move(centre), factor](Values x, Gradients g) {
    double loss = 0;
    for (std::size_t k = 0; k < centre.size(); ++k) {
      const double d = x[0][k] - centre[k];
      loss += 0.5 * d * d;
      g[0][k] += factor * d;
    }
    return loss;
  };
}

// ---- two small vectors ------------------------------------------------------------------------------

inline constexpr std::size_t kCount = 5;
inline const std::vector<int> kOrder = {1, 0};  // the order in which their gradients become ready

inline std::vector<double> centre(int rank) {
  std::vector<double> c(kCount);
  for (std::size_t k = 0; k < kCount; ++k) c[k] = std::sin(1 + 1.3 * rank + 0.5 * static_cast<double>(k));
  return c;
}
/// "a" and "b", each with a loss like 0.5 ||x - centre||^2.
inline Model two_vectors() {
  return Model({{"a", {static_cast<std::int64_t>(kCount)}}, {"b", {static_cast<std::int64_t>(kCount)}}});
}
inline LossOf loss_of(int rank) {
  return [c = centre(rank)](Values x, Gradients g) {
    double loss = 0;
    for (int v = 0; v < 2; ++v)
      for (std::size_t k = 0; k < kCount; ++k) {
        const double d = x[static_cast<std::size_t>(v)][k] - c[k] * (1 + v);
        loss += 0.5 * d * d, g[static_cast<std::size_t>(v)][k] += d;
      }
    return loss;
  };
}
inline train::GossipOptions options(int n, const char* topology = "ring") {
  return {.topology = *train::Topology::make(topology, n),
          .optimizer = train::optim_fn_accum_adam({.lr = 0.05})};
}
inline std::string text(const Status& s) { return s.ok() ? "ok" : s.failure()->text; }
inline bool says(const Status& s, std::string_view part) {
  return s.code() == Code::invalid && text(s).find(part) != std::string::npos;
}

}  // namespace ouro::test

// A model's memory on one rank, a step of sharded training as a user writes it, and the same training by one
// rank alone. Used by the tests of sharded training.
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/arith/floats.h"
#include "ouro/train/shard.hpp"
#include "tests/runtime/group/ranks.h"
#include "tools/models/tensor.h"

namespace ouro::test {

using arith::BFloat16;
using arith::Half;

template <class T>
inline constexpr bool kSixteen = sizeof(T) == 2;
template <class T>
inline constexpr DType kType = std::is_same_v<T, double>     ? DType::f64
                               : std::is_same_v<T, float>    ? DType::f32
                               : std::is_same_v<T, BFloat16> ? DType::bf16
                                                             : DType::f16;
template <class T>
double widened(T x) {
  if constexpr (kSixteen<T>)
    return static_cast<double>(arith::widen(x));
  else
    return static_cast<double>(x);
}
template <class T>
T narrowed(double x) {
  if constexpr (kSixteen<T>)
    return arith::narrow<T>(static_cast<float>(x));
  else
    return static_cast<T>(x);
}

/// Sizes that no number of ranks divides, names that do not decay, tensors smaller than a shard's unit.
inline const std::vector<models::Tensor>& odd_tensors() {
  static const std::vector<models::Tensor> all = {{"w0", {7, 5}},  {"bias0", {7}},  {"bn.weight", {1}},
                                                  {"w1", {33, 3}}, {"w2", {2, 32}}, {"w3", {129}},
                                                  {"bias1", {300}}};
  return all;
}

/// What a user has before making a trainer: values and gradients, in the user's memory.
template <class T>
struct ShardModel {
  std::vector<models::Tensor> tensors;
  std::vector<std::vector<T>> values, grads;

  explicit ShardModel(std::vector<models::Tensor> t = odd_tensors()) : tensors(std::move(t)) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      values.emplace_back();
      for (const double x : models::initial_values(tensors[i], i)) values.back().push_back(narrowed<T>(x));
      grads.emplace_back(values.back().size());
    }
  }
  std::vector<train::Param> params() {
    std::vector<train::Param> list;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      list.push_back({tensors[i].name,
                      {values[i].data(), values[i].size(), kType<T>},
                      {grads[i].data(), grads[i].size(), kType<T>},
                      tensors[i].shape});
    return list;
  }
};

/// The gradient of rank `rank` in a step in which the parameter is x.
template <class T>
T gradient(int rank, int step, std::size_t tensor, std::size_t k, T x, double scale = 1) {
  const double wave =
      std::sin(1.3 * rank + 0.7 * step + 0.31 * static_cast<double>(k) + static_cast<double>(tensor));
  return narrowed<T>((0.5 * wave + 0.1 * widened(x)) * scale);
}

template <class T>
void fill_gradients(std::span<const train::Param> params, int rank, int step, double scale = 1) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const train::Param& p = params[i];
    if (p.grad.data == nullptr) continue;
    const auto* x = static_cast<const T*>(p.value.data);
    auto* g = static_cast<T*>(p.grad.data);
    for (std::size_t k = 0; k < p.value.count; ++k) g[k] = gradient<T>(rank, step, i, k, x[k], scale);
  }
}

/// One step, with gradients ready from the last parameter to the first.
template <class T>
Status shard_step(train::ShardedTrainer& t, int rank, int step) {
  OURO_TRY(t.begin_step());
  fill_gradients<T>(t.params(), rank, step, t.scale());
  for (int i = static_cast<int>(t.params().size()); i-- > 0;)
    if (t.params()[static_cast<std::size_t>(i)].grad.data != nullptr) OURO_TRY(t.grad_ready(i));
  return t.end_backward();
}

/// All parameters, concatenated in the order of the list.
template <class T>
std::vector<T> flat(std::span<const train::Param> params) {
  std::vector<T> all;
  for (const train::Param& p : params) {
    const auto* at = static_cast<const T*>(p.value.data);
    all.insert(all.end(), at, at + p.value.count);
  }
  return all;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// The training of all ranks by one rank alone, without collectives: means are taken in rank order, within
/// rows of `shards` ranks and then between the rows.
template <class T>
struct Serial {
  int ranks, shards;
  ShardModel<T> model;
  std::unique_ptr<train::Optimizer> optimizer;

  Serial(int n, int shard_ranks, const train::OptimizerFactory& f) : ranks(n), shards(shard_ranks) {
    optimizer = *f(model.params());
  }
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static T mean_of(std::span<const T> terms) {
    Wide sum = static_cast<Wide>(widened(terms[0]));
    for (const T& x : terms.subspan(1)) sum += static_cast<Wide>(widened(x));
    return narrowed<T>(static_cast<double>(sum / static_cast<Wide>(terms.size())));
  }
  /// The mean gradient, which is to be divided by `scale`.
  void gradients(int step, double scale = 1) {
    for (std::size_t i = 0; i < model.values.size(); ++i)
      for (std::size_t k = 0; k < model.values[i].size(); ++k) {
        std::vector<T> rows, terms;
        for (int r = 0; r < ranks; ++r) {
          terms.push_back(gradient<T>(r, step, i, k, model.values[i][k], scale));
          if (static_cast<int>(terms.size()) < shards) continue;
          rows.push_back(mean_of(terms));
          terms.clear();
        }
        model.grads[i][k] = mean_of(rows);
      }
  }
  double norm() const {
    double squares = 0;
    for (const auto& g : model.grads)
      for (const T x : g) squares += widened(x) * widened(x);
    return std::sqrt(squares);
  }
  Status step(int s, const train::StepOptions& o = {}, double scale = 1) {
    gradients(s, scale);
    return optimizer->step(model.params(), o);
  }
  std::vector<T> values() { return flat<T>(model.params()); }
};

/// Groups of a 2-D mesh whose rows have `shard_ranks` ranks.
struct Grid {
  Group shards, replicas;
  static Result<Grid> make(Context& c, int shard_ranks) {
    auto row = c.world().split(c.rank() / shard_ranks, c.rank());
    OURO_TRY(row.status());
    auto column = c.world().split(c.rank() % shard_ranks, c.rank());
    OURO_TRY(column.status());
    return Grid{std::move(*row), std::move(*column)};
  }
};
/// shards == size: sharded; 1: plain data parallel; else both.
inline Result<train::ShardedTrainer> make_trainer(Context& c, int shards, std::vector<train::Param> p,
                                                  train::ShardOptions o) {
  if (shards == c.world_size()) return train::ShardedTrainer::create(c.world(), std::move(p), std::move(o));
  if (shards == 1) return train::ShardedTrainer::data_parallel(c.world(), std::move(p), std::move(o));
  auto grid = Grid::make(c, shards);
  OURO_TRY(grid.status());
  return train::ShardedTrainer::create(grid->shards, grid->replicas, std::move(p), std::move(o));
}

inline train::ShardOptions shard_options(double bucket_mb = 25) {
  train::ShardOptions o{.optimizer = train::optim_fn_adamw({.lr = 0.01})};
  o.bucket_mb = bucket_mb;
  o.numerics = Numerics::canonical;
  return o;
}
/// An optimiser of `rule` that counts the elements that it has updated.
class Counting final : public train::Optimizer {
 public:
  Counting(std::unique_ptr<train::Optimizer> rule, std::atomic<std::size_t>& elements)
      : rule_(std::move(rule)), elements_(elements) {}
  Status step(std::span<const train::Param> params, const train::StepOptions& o, const Stream& s) override {
    OURO_TRY(rule_->step(params, o, s));
    for (const train::Param& p : params) elements_ += p.value.count;
    return {};
  }
  double lr() const override { return rule_->lr(); }
  Result<Bytes> save() override { return rule_->save(); }
  Status load(CBytes b) override { return rule_->load(b); }

 private:
  std::unique_ptr<train::Optimizer> rule_;
  std::atomic<std::size_t>& elements_;
};
inline train::OptimizerFactory counting(train::OptimizerFactory rule, std::atomic<std::size_t>& elements) {
  return [rule, &elements](std::span<const train::Param> p) -> Result<std::unique_ptr<train::Optimizer>> {
    auto made = rule(p);
    OURO_TRY(made.status());
    return std::unique_ptr<train::Optimizer>(std::make_unique<Counting>(std::move(*made), elements));
  };
}

inline std::string text(const Status& s) { return s.ok() ? "ok" : s.failure()->text; }
inline bool says(const Status& s, std::string_view part) {
  return s.code() == Code::invalid && text(s).find(part) != std::string::npos;
}

}  // namespace ouro::test

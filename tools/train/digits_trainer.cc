// The training loop of ouro-train digits.
// Used through digits_trainer.h.
#include "tools/train/digits_trainer.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "tools/models/digits.h"
#include "tools/models/mlp.h"
#include "tools/train/device_model.h"

namespace ouro::tools {
namespace {

using models::Digits;
using models::Mlp;

Status check(const TrainOptions& o) {
  if (o.steps < 1) return invalid(fmt::format("--steps must be at least 1, found {}", o.steps));
  if (o.batch < 1) return invalid(fmt::format("--batch must be at least 1, found {}", o.batch));
  if (!(o.lr > 0) || !std::isfinite(o.lr))
    return invalid(fmt::format("--lr must be positive and finite, found {}", o.lr));
  if (!(o.momentum >= 0 && o.momentum < 1))
    return invalid(fmt::format("the momentum must be in [0, 1), found {}", o.momentum));
  if (o.dtype != DType::f32 && o.dtype != DType::f64)
    return invalid(fmt::format("training runs in f32 or f64, not in {}", name(o.dtype)));
  return {};
}

std::vector<std::uint32_t> training_order(std::uint32_t seed) {
  if (seed != 0) return models::lcg_permutation(Digits::kTrainRows, seed);
  std::vector<std::uint32_t> order(Digits::kTrainRows);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

/// Test rows that the model gets right, counted by all ranks together.
template <class T>
Result<std::int64_t> evaluate(Context& context, const Digits& digits, std::span<const T> parameters) {
  std::int64_t mine = 0, all = 0;
  const auto n = static_cast<std::uint32_t>(context.world_size());
  for (auto row = Digits::kTrainRows + static_cast<std::uint32_t>(context.rank()); row < Digits::kRows;
       row += n)
    mine += models::mlp_predict<T>(digits, row, parameters) == digits.labels[row];
  OURO_TRY(all_reduce(context.world(), CView(&mine, 1, DType::i64), View(&all, 1, DType::i64)));
  return all;
}

/// DeviceModel's twin: everything in memory of the host.
template <class T>
class HostModel {
 public:
  static Result<std::unique_ptr<HostModel>> make(Context& c, const TrainOptions& o,
                                                 std::span<const T> initial) {
    return std::make_unique<HostModel>(c, o, initial);
  }
  HostModel(Context& c, const TrainOptions& o, std::span<const T> initial)
      : context_(c),
        options_(o),
        parameters_(initial.begin(), initial.end()),
        velocity_(initial.size()),
        buffer_(initial.size() + 1) {}

  Result<T> step(std::span<const double> sums) {
    const T batch = static_cast<T>(options_.batch), lr = static_cast<T>(options_.lr),
            momentum = static_cast<T>(options_.momentum);
    for (std::size_t i = 0; i < sums.size(); ++i) buffer_[i] = static_cast<T>(sums[i]);
    OURO_TRY(all_reduce(context_.world(), std::span<const T>(buffer_), std::span<T>(buffer_), ReduceOp::sum,
                        {.numerics = options_.numerics}));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      velocity_[i] = momentum * velocity_[i] + buffer_[i] / batch;
      parameters_[i] -= lr * velocity_[i];
    }
    return buffer_.back();
  }
  std::span<const T> parameters() const { return parameters_; }

 private:
  Context& context_;
  const TrainOptions& options_;
  std::vector<T> parameters_, velocity_, buffer_;
};

template <class T, class Model>
Result<TrainReport> train(Context& context, const TrainOptions& o, const Digits& digits) {
  constexpr std::size_t kLoss = Mlp::kParameters;  // the loss travels behind the gradients
  const std::vector<std::uint32_t> order = training_order(o.seed);
  std::vector<double> sums(Mlp::kParameters + 1);
  const Result<std::unique_ptr<Model>> model = Model::make(context, o, models::mlp_initial_parameters<T>());
  if (!model) return model.status();

  TrainReport report;
  report.ranks = context.world_size();
  report.test_rows = Digits::kTestRows;
  report.losses.reserve(static_cast<std::size_t>(o.steps));
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < o.steps; ++step) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const std::vector<std::uint32_t> rows =
        rows_of_step(order, step, o.batch, context.rank(), context.world_size());
    sums[kLoss] =
        models::mlp_add_gradients<T>(digits, rows, (*model)->parameters(), std::span(sums).first(kLoss));
    const Result<T> loss = (*model)->step(sums);
    if (!loss) return loss.status();
    report.losses.push_back(static_cast<double>(*loss) / o.batch);
    if (o.on_step) o.on_step(step, report.losses.back());
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Result<std::int64_t> correct = evaluate<T>(context, digits, (*model)->parameters());
  if (!correct) return correct.status();
  report.correct = *correct;
  return report;
}

}  // namespace

std::vector<std::uint32_t> rows_of_step(const std::vector<std::uint32_t>& order, int step, int batch,
                                        int rank, int ranks) {
  std::vector<std::uint32_t> rows;
  for (int k = rank; k < batch; k += ranks)
    rows.push_back(order[(static_cast<std::size_t>(step) * static_cast<std::size_t>(batch) +
                          static_cast<std::size_t>(k)) %
                         order.size()]);
  return rows;
}

Result<TrainReport> train_digits(Context& context, const TrainOptions& options) {
  OURO_TRY(check(options));
  const Result<Digits> digits = models::load_digits();
  if (!digits) return digits.status();
  const bool wide = options.dtype == DType::f64;
  if (options.device)
    return wide ? train<double, DeviceModel<double>>(context, options, *digits)
                : train<float, DeviceModel<float>>(context, options, *digits);
  return wide ? train<double, HostModel<double>>(context, options, *digits)
              : train<float, HostModel<float>>(context, options, *digits);
}

}  // namespace ouro::tools

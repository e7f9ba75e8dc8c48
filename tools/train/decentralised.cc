// The training loop of ouro-train --strategy decentralised. Used through decentralised.h.
#include "tools/train/decentralised.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tools/models/charlm.h"
#include "tools/models/convnet.h"
#include "tools/models/digits.h"

namespace ouro::tools {
namespace {

using models::CharLm;
using models::ConvNet;
using models::Digits;

/// What is trained: parameters, gradients and data of one rank.
class Task {
 public:
  static Result<Task> make(SmallModel model, int rank, int ranks) {
    Task t;
    t.rank_ = rank, t.ranks_ = ranks;
    if (model == SmallModel::digits) {
      auto digits = models::load_digits();
      OURO_TRY(digits.status());
      t.digits_ = std::move(*digits);
      t.tensors_ = t.net_.tensors();
      t.order = ConvNet::ready_order();
      t.running = t.net_.running();
    } else {
      const auto path = models::find_data_file("GPL-3.txt");
      OURO_TRY(path.status());
      std::ifstream file(*path, std::ios::binary);
      t.text_.assign(std::istreambuf_iterator<char>(file), {});
      if (!file || t.text_.size() <= CharLm::kLength)
        return Status(Reason::resource, fmt::format("{}: cannot be read, or is too short", path->string()));
      t.tensors_ = CharLm::tensors();
      t.order = CharLm::ready_order();
    }
    for (std::size_t i = 0; i < t.tensors_.size(); ++i) {
      t.values_.push_back(models::initial_values(t.tensors_[i], i));
      t.grads_.emplace_back(t.values_[i].size());
    }
    return t;
  }

  std::vector<train::Param> params() {
    std::vector<train::Param> list;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      list.push_back({tensors_[i].name, std::span(values_[i]), std::span(grads_[i]), tensors_[i].shape});
    return list;
  }
  std::vector<train::Buffer> buffers() {
    if (text_.empty())
      return {{"bn1.running_mean", std::span(running.mean)},
              {"bn1.running_var", std::span(running.variance)}};
    return {};
  }
  double loss(int step, models::Values p, models::Gradients g) {
    return text_.empty() ? digits_loss(step, p, g) : text_loss(step, p, g);
  }
  bool has_test() const { return text_.empty(); }
  ConvNet::Score test(models::Values p) const {
    std::vector<double> images;
    std::vector<int> labels;
    for (std::uint32_t row = Digits::kTrainRows; row < Digits::kRows; ++row) add(row, images, labels);
    return net_.evaluate(p, images, labels, running);
  }

  std::vector<int> order;  // in which gradients become ready
  ConvNet::Running running;

 private:
  void add(std::uint32_t row, std::vector<double>& images, std::vector<int>& labels) const {
    const auto image = digits_.image(row);
    images.insert(images.end(), image.begin(), image.end());
    labels.push_back(digits_.labels[row]);
  }
  /// Rank r owns rows r, r + ranks, ...; 16 of them a step, over and over.
  double digits_loss(int step, models::Values p, models::Gradients g) {
    const auto n = static_cast<std::uint32_t>(ranks_), r = static_cast<std::uint32_t>(rank_);
    const std::uint32_t owned = (Digits::kTrainRows - r + n - 1) / n;
    std::vector<double> images;
    std::vector<int> labels;
    for (std::uint32_t k = 0; k < 16; ++k)
      add(r + n * ((16 * static_cast<std::uint32_t>(step) + k) % owned), images, labels);
    return net_.train(p, images, labels, running, g);
  }
  double text_loss(int step, models::Values p, models::Gradients g) {
    std::vector<int> tokens;
    const auto places = static_cast<std::int64_t>(text_.size()) - CharLm::kLength - 1;
    for (std::int64_t k = 0; k < 8; ++k) {
      const std::int64_t at = ((8 * std::int64_t{step} + k) * ranks_ + rank_) * 37 % places;
      for (std::int64_t i = 0; i <= CharLm::kLength; ++i)
        tokens.push_back(
            std::min(static_cast<int>(static_cast<unsigned char>(text_[static_cast<std::size_t>(at + i)])),
                     CharLm::kTokens - 1));
    }
    return CharLm::train(p, tokens, g);
  }

  int rank_ = 0, ranks_ = 1;
  const ConvNet net_{8, 16};
  Digits digits_;
  std::string text_;
  std::vector<models::Tensor> tensors_;
  std::vector<std::vector<double>> values_, grads_;
};

std::vector<const double*> values_of(const train::GossipTrainer& t) {
  std::vector<const double*> list;
  for (const train::Param& p : t.params()) list.push_back(static_cast<const double*>(p.value.data));
  return list;
}

Result<double> step_once(train::GossipTrainer& t, Task& task) {
  OURO_TRY(t.begin_step());
  std::vector<double*> grads;
  for (const train::Param& p : t.params())
    std::fill_n(grads.emplace_back(static_cast<double*>(p.grad.data)), p.grad.count, 0.0);
  const double loss = task.loss(static_cast<int>(t.steps()), values_of(t), grads);
  for (const int p : task.order) OURO_TRY(t.grad_ready(p));
  OURO_TRY(t.end_backward());
  return loss;
}

/// Mean of the loss, consensus.
Result<std::pair<double, double>> measure(Group& g, const train::GossipTrainer& t, double loss) {
  std::vector<double> mine;
  for (const train::Param& p : t.params()) {
    const auto* at = static_cast<const double*>(p.value.data);
    mine.insert(mine.end(), at, at + p.value.count);
  }
  std::vector<double> mean = mine;
  OURO_TRY(all_reduce(g, std::span<const double>(mean), std::span(mean), ReduceOp::avg));
  std::vector<double> both = {loss, 0};
  for (std::size_t i = 0; i < mine.size(); ++i) both[1] += (mine[i] - mean[i]) * (mine[i] - mean[i]);
  OURO_TRY(all_reduce(g, std::span<const double>(both), std::span(both), ReduceOp::avg));
  return std::pair{both[0], std::sqrt(both[1])};
}

// A saved file: the bytes of the trainer, then the running statistics.
std::string file_of(const std::string& stem, int rank) { return fmt::format("{}.rank{}", stem, rank); }

Status write_state(const std::string& path, train::GossipTrainer& t, const ConvNet::Running& running) {
  auto state = t.save();
  OURO_TRY(state.status());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(state->data()), static_cast<std::streamsize>(state->size()));
  for (const std::vector<double>* v : {&running.mean, &running.variance})
    file.write(reinterpret_cast<const char*>(v->data()),
               static_cast<std::streamsize>(v->size() * sizeof(double)));
  file.close();
  return file ? Status{} : Status(Reason::resource, fmt::format("{}: cannot be written", path));
}

Status read_state(const std::string& path, train::GossipTrainer& t, ConvNet::Running& running) {
  std::ifstream file(path, std::ios::binary);
  const std::string all(std::istreambuf_iterator<char>(file), {});
  if (!file) return {Reason::resource, fmt::format("{}: cannot be read", path)};
  const std::size_t tail = (running.mean.size() + running.variance.size()) * sizeof(double);
  if (all.size() < tail) return invalid(fmt::format("{}: too short", path));
  OURO_TRY(t.load(std::as_bytes(std::span(all)).first(all.size() - tail)));
  const char* at = all.data() + all.size() - tail;
  for (std::vector<double>* v : {&running.mean, &running.variance}) {
    if (!v->empty()) std::memcpy(v->data(), at, v->size() * sizeof(double));
    at += v->size() * sizeof(double);
  }
  return {};
}

train::GossipOptions options_of(const DecentralisedOptions& o, train::Topology topology) {
  const bool digits = o.model == SmallModel::digits;
  const double lr = digits ? 4e-3 : 2e-3;
  const train::FactoryOptions factory{.lr = lr, .beta2 = digits ? 0.999 : 0.98, .decay_rule = o.decay};
  train::GossipOptions g{
      .topology = std::move(topology),
      .optimizer = digits ? train::optim_fn_accum_adam(factory) : train::optim_fn_accum_adamw(factory)};
  g.schedule = [lr, steps = o.steps](auto) { return train::cosine_with_warmup(lr, steps, 10); };
  g.bucket_mb = o.bucket_mb;
  g.clip_norm = o.clip_norm;
  g.average_buffers = true;
  g.order = o.order;
  return g;
}

}  // namespace

Result<DecentralisedReport> train_decentralised(Context& context, const DecentralisedOptions& o) {
  if (o.steps < 1) return invalid(fmt::format("--steps must be at least 1, found {}", o.steps));
  Group& world = context.world();
  auto topology = train::Topology::make(o.topology, world.size(), o.topology_options);
  OURO_TRY(topology.status());
  auto task = Task::make(o.model, world.rank(), world.size());
  OURO_TRY(task.status());
  auto made = train::GossipTrainer::create(world, task->params(), task->buffers(), options_of(o, *topology));
  OURO_TRY(made.status());
  train::GossipTrainer& t = *made;
  if (!o.resume.empty()) OURO_TRY(read_state(file_of(o.resume, world.rank()), t, task->running));
  if (o.adaptive) OURO_TRY(t.set_adaptive_factor(*o.adaptive));

  DecentralisedReport report;
  report.first_step = static_cast<int>(t.steps());
  const auto start = std::chrono::steady_clock::now();
  const int last = o.stop_after > 0 ? std::min(o.stop_after, o.steps) : o.steps;
  for (int step = report.first_step; step < last; ++step) {
    const auto loss = step_once(t, *task);
    OURO_TRY(loss.status());
    const auto all = measure(world, t, *loss);
    OURO_TRY(all.status());
    report.losses.push_back(all->first);
    report.consensus.push_back(all->second);
    if (o.on_step) o.on_step(step, all->first, all->second);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!o.save.empty()) OURO_TRY(write_state(file_of(o.save, world.rank()), t, task->running));
  for (const train::BucketLayout& b : t.buckets()) report.blocks.push_back(b.length);

  auto average = t.global_average({.distance = true});
  OURO_TRY(average.status());
  report.distance = average->distance;
  double squares = 0;
  for (const train::Param& p : t.params())
    for (std::size_t i = 0; i < p.value.count; ++i) {
      const double x = static_cast<const double*>(p.value.data)[i];
      squares += x * x;
    }
  report.final_norm = std::sqrt(squares);
  if (task->has_test()) {
    const ConvNet::Score score = task->test(values_of(t));
    report.test_loss = score.loss;
    report.test_accuracy = static_cast<double>(score.correct) / Digits::kTestRows;
  }
  OURO_TRY(average->revert());
  OURO_TRY(t.close());
  return report;
}

}  // namespace ouro::tools

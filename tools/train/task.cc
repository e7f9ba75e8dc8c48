// Samples, conversions between the network's double and the trainer's type, tests and agreement. See task.h.
#include "tools/train/task.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/group/group.h"
#include "tools/models/digits.h"

namespace ouro::tools {
namespace {

template <class F>
void with_type(DType t, F&& f) {  // settle() allows no other types
  t == DType::f64 ? f(double{}) : f(float{});
}

void read(const View& from, std::vector<double>& to) {
  with_type(from.dtype, [&]<class T>(T) {
    const T* at = static_cast<const T*>(from.data);
    std::copy_n(at, from.count, to.begin());
  });
}

void write(const std::vector<double>& from, double factor, const View& to) {
  with_type(to.dtype, [&]<class T>(T) {
    T* at = static_cast<T*>(to.data);
    for (std::size_t i = 0; i < to.count; ++i) at[i] = static_cast<T>(from[i] * factor);
  });
}

View view_of(std::vector<std::byte>& bytes, DType t) { return {bytes.data(), bytes.size() / size_of(t), t}; }

Status mean(Group& world, std::span<double> x, Numerics numerics) {
  return all_reduce(world, std::span<const double>(x), x, ReduceOp::avg, {.numerics = numerics});
}

}  // namespace

Pool::Pool(std::uint32_t samples, std::uint32_t seed, int first, int stride) {
  std::vector<std::uint32_t> all(samples);
  std::iota(all.begin(), all.end(), 0u);
  if (seed != 0) all = models::lcg_permutation(samples, seed);
  for (auto i = static_cast<std::size_t>(first); i < all.size(); i += static_cast<std::size_t>(stride))
    order_.push_back(all[i]);
}

Task::Task(std::unique_ptr<models::Network> network, DType dtype, Numerics numerics)
    : network_(std::move(network)), tensors_(network_->tensors()), dtype_(dtype), numerics_(numerics) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    values_.push_back(models::initial_values(tensors_[i], i));
    grads_.emplace_back(values_[i].size());
    mine_.emplace_back(values_[i].size() * size_of(dtype));
    slope_.emplace_back(mine_[i].size());
    write(values_[i], 1, view_of(mine_[i], dtype));
  }
}

Result<Task> Task::make(Context& c, const TrainOptions& o) {
  auto network = models::make_network(*o.network);
  Status mine = network.status();
  if (mine.ok() && (*network)->samples() < static_cast<std::uint32_t>(c.world_size()))
    mine = invalid(fmt::format("{} samples for {} ranks: expected one each at least", (*network)->samples(),
                               c.world_size()));
  OURO_TRY(agree(c.world(), mine));
  return Task(std::move(*network), *o.dtype, o.numerics);
}

std::vector<train::Param> Task::params() {
  std::vector<train::Param> list;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    list.push_back(
        {tensors_[i].name, view_of(mine_[i], dtype_), view_of(slope_[i], dtype_), tensors_[i].shape});
  return list;
}

std::vector<train::Buffer> Task::buffers() {
  std::vector<train::Buffer> list;
  for (const auto& s : network_->statistics()) list.push_back({s.name, s.values});
  return list;
}

std::vector<const double*> Task::read(std::span<const train::Param> at) {
  std::vector<const double*> list;
  for (std::size_t i = 0; i < at.size(); ++i) {
    tools::read(at[i].value, values_[i]);
    list.push_back(values_[i].data());
  }
  return list;
}

double Task::gradients(std::span<const train::Param> at, std::span<const std::uint32_t> samples,
                       double factor) {
  std::vector<double*> slopes;
  for (std::vector<double>& g : grads_) {
    std::fill(g.begin(), g.end(), 0.0);
    slopes.push_back(g.data());
  }
  const double loss = samples.empty() ? 0 : network_->train(read(at), samples, slopes);
  for (std::size_t i = 0; i < at.size(); ++i) write(grads_[i], factor, at[i].grad);
  return loss;
}

std::vector<double> Task::flat(std::span<const train::Param> at) {
  read(at);
  std::vector<double> x;
  for (const std::vector<double>& v : values_) x.insert(x.end(), v.begin(), v.end());
  return x;
}

Status Task::test(Group& world, std::span<const train::Param> at, TrainReport& report) {
  for (const auto& s : network_->statistics()) OURO_TRY(mean(world, s.values, numerics_));
  const models::Network::Score mine = network_->test(read(at), static_cast<std::uint32_t>(world.rank()),
                                                     static_cast<std::uint32_t>(world.size()));
  std::int64_t counts[] = {mine.correct, mine.rows};
  double loss = mine.loss;
  const View both(counts, 2, DType::i64), losses(&loss, 1, DType::f64);
  OURO_TRY(all_reduce(world, both, both, ReduceOp::sum, kAuto));
  OURO_TRY(all_reduce(world, losses, losses, ReduceOp::sum,
                      {.numerics = numerics_, .algorithm = kAuto.algorithm}));
  report.correct = counts[0], report.test_rows = counts[1];
  if (report.test_rows == 0) return {};
  report.test_loss = loss / static_cast<double>(report.test_rows);
  report.test_accuracy = static_cast<double>(report.correct) / static_cast<double>(report.test_rows);
  return {};
}

Bytes Task::statistics() {
  Bytes all;
  for (const auto& s : network_->statistics()) {
    const auto bytes = std::as_bytes(s.values);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Status Task::set_statistics(CBytes all) {
  std::size_t want = 0;
  for (const auto& s : network_->statistics()) want += s.values.size_bytes();
  if (all.size() != want)
    return invalid(fmt::format("{} bytes of running statistics, expected {}", all.size(), want));
  for (const auto& s : network_->statistics()) {
    std::memcpy(s.values.data(), all.data(), s.values.size_bytes());
    all = all.subspan(s.values.size_bytes());
  }
  return {};
}

Result<TrainOptions> settle(TrainOptions o, const Group& world) {
  if (o.numerics == Numerics::inherit) o.numerics = world.impl()->numerics();
  return settle(std::move(o), world.size());
}

Status agree(Group& world, const Status& mine) {
  constexpr std::int64_t kWell = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = mine.ok() ? kWell : world.rank();
  const View v(&first, 1, DType::i64);
  OURO_TRY(all_reduce(world, v, v, ReduceOp::min, kAuto));
  if (!mine.ok() || first == kWell) return mine;
  return invalid(fmt::format("rank {} cannot continue, and prints the reason", first));
}

Status finite(const TrainOptions& o, int step, double loss) {
  if (std::isfinite(loss)) return {};
  return invalid(
      fmt::format("step {}: the loss is {}: training has diverged; --lr is {}, a smaller one may do",
                  step + 1, loss, *o.lr));
}

Status same_options(Group& world, const TrainOptions& o) {
  const auto settled = settle(o, world);
  OURO_TRY(agree(world, settled.status()));
  const std::string text = fmt::format("{} {} {} {}", to_json(*settled, world.size()).dump(), o.stop_after,
                                       o.save.empty(), o.resume.empty());
  const std::uint64_t hash = XXH3_64bits(text.data(), text.size());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  OURO_TRY(all_gather(world, CView(&hash, 1, DType::u64), View(all.data(), all.size(), DType::u64), kAuto));
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0]) return invalid(fmt::format("rank {} was given other options than rank 0", r));
  return {};
}

Result<Measure> measure(Group& world, const std::vector<double>& mine, double loss, Numerics numerics) {
  std::vector<double> middle = mine;
  OURO_TRY(mean(world, middle, numerics));
  double both[] = {loss, 0};
  for (std::size_t i = 0; i < mine.size(); ++i) both[1] += (mine[i] - middle[i]) * (mine[i] - middle[i]);
  OURO_TRY(mean(world, both, numerics));
  return Measure{both[0], std::sqrt(both[1])};
}

}  // namespace ouro::tools

// The three networks on their data sets. Used through network.h.
#include "tools/models/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "tools/models/charlm.h"
#include "tools/models/convnet.h"
#include "tools/models/digits.h"
#include "tools/models/mlp.h"

namespace ouro::models {
namespace {

class Perceptron : public Network {
 public:
  explicit Perceptron(Digits digits) : digits_(std::move(digits)) {}
  std::vector<Tensor> tensors() const override {
    return {{"fc1.weight", {Mlp::kHidden, Mlp::kIn}},
            {"fc1.bias", {Mlp::kHidden}},
            {"fc2.weight", {Mlp::kOut, Mlp::kHidden}},
            {"fc2.bias", {Mlp::kOut}}};
  }
  std::vector<int> ready_order() const override { return {3, 2, 1, 0}; }
  std::uint32_t samples() const override { return Digits::kTrainRows; }
  double train(Values p, std::span<const std::uint32_t> rows, Gradients g) override {
    std::vector<double> sums(Mlp::kParameters);
    const double loss = mlp_add_gradients<double>(digits_, rows, flat(p), sums);
    const auto count = static_cast<double>(rows.size());
    std::size_t at = 0;
    for (std::size_t t = 0; t < g.size(); ++t)
      for (std::size_t i = 0, n = tensors_[t].count(); i < n; ++i) g[t][i] += sums[at++] / count;
    return loss / count;
  }
  Score test(Values p, std::uint32_t part, std::uint32_t parts) const override {
    const std::vector<double> x = flat(p);
    std::vector<double> unused(Mlp::kParameters);
    Score score;
    for (std::uint32_t row = Digits::kTrainRows + part; row < Digits::kRows; row += parts) {
      score.correct += mlp_predict<double>(digits_, row, x) == digits_.labels[row];
      score.loss += mlp_add_gradients<double>(digits_, {&row, 1}, x, unused);
      ++score.rows;
    }
    return score;
  }

 private:
  std::vector<double> flat(Values p) const {
    std::vector<double> x;
    x.reserve(Mlp::kParameters);
    for (std::size_t t = 0; t < p.size(); ++t) x.insert(x.end(), p[t], p[t] + tensors_[t].count());
    return x;
  }
  const Digits digits_;
  const std::vector<Tensor> tensors_ = Perceptron::tensors();
};

class Convolutional : public Network {
 public:
  explicit Convolutional(Digits digits) : digits_(std::move(digits)) {}
  std::vector<Tensor> tensors() const override { return net_.tensors(); }
  std::vector<int> ready_order() const override { return ConvNet::ready_order(); }
  std::vector<Statistic> statistics() override {
    return {{"bn1.running_mean", running_.mean}, {"bn1.running_var", running_.variance}};
  }
  std::uint32_t samples() const override { return Digits::kTrainRows; }
  double train(Values p, std::span<const std::uint32_t> rows, Gradients g) override {
    Batch batch;
    for (const std::uint32_t row : rows) add(row, batch);
    return net_.train(p, batch.images, batch.labels, running_, g);
  }
  Score test(Values p, std::uint32_t part, std::uint32_t parts) const override {
    Batch batch;
    for (std::uint32_t row = Digits::kTrainRows + part; row < Digits::kRows; row += parts) add(row, batch);
    const auto rows = static_cast<std::int64_t>(batch.labels.size());
    if (rows == 0) return {};
    const ConvNet::Score mean = net_.evaluate(p, batch.images, batch.labels, running_);
    return {mean.loss * static_cast<double>(rows), mean.correct, rows};
  }

 private:
  struct Batch {
    std::vector<double> images;
    std::vector<int> labels;
  };
  void add(std::uint32_t row, Batch& batch) const {
    const auto image = digits_.image(row);
    batch.images.insert(batch.images.end(), image.begin(), image.end());
    batch.labels.push_back(digits_.labels[row]);
  }
  const Digits digits_;
  const ConvNet net_{8, 16};
  ConvNet::Running running_ = net_.running();
};

class Transformer : public Network {
 public:
  explicit Transformer(std::string text) : text_(std::move(text)) {}
  std::vector<Tensor> tensors() const override { return CharLm::tensors(); }
  std::vector<int> ready_order() const override { return CharLm::ready_order(); }
  std::uint32_t samples() const override {
    return static_cast<std::uint32_t>(text_.size() - CharLm::kLength - 1);
  }
  /// Sample s is the sequence that starts at byte (37 s mod samples), so that samples with neighbouring
  /// numbers share no text.
  double train(Values p, std::span<const std::uint32_t> samples, Gradients g) override {
    std::vector<int> tokens;
    for (const std::uint32_t s : samples) {
      const std::size_t at = std::size_t{37} * s % this->samples();
      for (const char c : std::string_view(text_).substr(at, CharLm::kLength + 1))
        tokens.push_back(std::min(static_cast<int>(static_cast<unsigned char>(c)), CharLm::kTokens - 1));
    }
    return CharLm::train(p, tokens, g);
  }
  Score test(Values, std::uint32_t, std::uint32_t) const override { return {}; }

 private:
  const std::string text_;
};

Result<std::string> load_text() {
  OURO_ASSIGN(const auto path, find_data_file("GPL-3.txt"));
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) return Status(Reason::resource, fmt::format("{}: cannot be read", path.string()));
  constexpr std::size_t kLeast = CharLm::kLength + 2, kMost = std::size_t{1} << 30;
  if (text.size() < kLeast || text.size() > kMost)
    return invalid(fmt::format("{}: expected {} to {} bytes of text, found {}", path.string(), kLeast, kMost,
                               text.size()));
  return text;
}

}  // namespace

Result<std::unique_ptr<Network>> make_network(NetworkKind kind) {
  if (kind == NetworkKind::text) {
    OURO_ASSIGN(auto text, load_text());
    return std::unique_ptr<Network>(std::make_unique<Transformer>(std::move(text)));
  }
  OURO_ASSIGN(auto digits, load_digits());
  if (kind == NetworkKind::mlp)
    return std::unique_ptr<Network>(std::make_unique<Perceptron>(std::move(digits)));
  return std::unique_ptr<Network>(std::make_unique<Convolutional>(std::move(digits)));
}

}  // namespace ouro::models

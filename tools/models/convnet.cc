// Forward and backward pass of the convolutional network, in double. Used through convnet.h.
#include "tools/models/convnet.h"

#include <algorithm>
#include <cmath>

namespace ouro::models {
namespace {

constexpr double kEps = 1e-5;
using Array = std::vector<double>;
std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// The 3x3 taps of an image of side kSide: calls f(output, input, tap) for each pair that is inside
/// the border.
template <class F>
void taps(int stride, F&& f) {
  constexpr int side = ConvNet::kSide;
  const int out = side / stride;
  for (int y = 0; y < out; ++y)
    for (int x = 0; x < out; ++x)
      for (int ky = 0; ky < 3; ++ky)
        for (int kx = 0; kx < 3; ++kx) {
          const int sy = y * stride + ky - 1, sx = x * stride + kx - 1;
          if (sy < 0 || sy >= side || sx < 0 || sx >= side) continue;
          f(at(y * out + x), at(sy * side + sx), at(ky * 3 + kx));
        }
}

}  // namespace

std::vector<Tensor> ConvNet::tensors() const {
  return {{"conv1.weight", {c1_, 1, 3, 3}},
          {"conv1.bias", {c1_}},
          {"bn1.weight", {c1_}},
          {"bn1.bias", {c1_}},
          {"conv2.weight", {c2_, c1_, 3, 3}},
          {"conv2.bias", {c2_}},
          {"fc.weight", {kClasses, c2_ * 16}},
          {"fc.bias", {kClasses}}};
}

/// Activations of a batch, in the order sample, channel, pixel.
struct ConvNet::Pass {
  int batch = 0;
  std::span<const double> images;
  Array mean{}, variance{};  // of the batch norm: the batch's own, or given
  bool batch_statistics = true;
  Array conv1{}, normal{}, hidden1{}, hidden2{}, out{};  // normal: before weight and bias; hidden: after ReLU
};

void ConvNet::forward(Values p, Pass& a) const {
  const std::size_t n1 = at(c1_), n2 = at(c2_), in = kPixels, small = kPixels / 4, batch = at(a.batch);
  a.conv1.assign(batch * n1 * in, 0);
  for (std::size_t b = 0; b < batch; ++b)
    for (std::size_t c = 0; c < n1; ++c) {
      double* out = &a.conv1[(b * n1 + c) * in];
      std::fill_n(out, in, p[kBias1][c]);
      taps(1, [&](std::size_t o, std::size_t i, std::size_t k) {
        out[o] += p[kConv1][c * 9 + k] * a.images[b * in + i];
      });
    }
  if (a.batch_statistics) {
    a.mean.assign(n1, 0), a.variance.assign(n1, 0);
    const double count = static_cast<double>(batch * in);
    for (std::size_t c = 0; c < n1; ++c) {
      const auto each = [&](auto&& f) {
        for (std::size_t b = 0; b < batch; ++b)
          for (std::size_t i = 0; i < in; ++i) f(a.conv1[(b * n1 + c) * in + i]);
      };
      each([&](double x) { a.mean[c] += x / count; });
      each([&](double x) { a.variance[c] += (x - a.mean[c]) * (x - a.mean[c]) / count; });
    }
  }
  a.normal.resize(a.conv1.size()), a.hidden1.resize(a.conv1.size());
  for (std::size_t k = 0; k < a.conv1.size(); ++k) {
    const std::size_t c = k / in % n1;
    a.normal[k] = (a.conv1[k] - a.mean[c]) / std::sqrt(a.variance[c] + kEps);
    a.hidden1[k] = std::max(0.0, p[kNormWeight][c] * a.normal[k] + p[kNormBias][c]);
  }
  a.hidden2.assign(batch * n2 * small, 0);
  a.out.assign(batch * kClasses, 0);
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t c = 0; c < n2; ++c) {
      double* out = &a.hidden2[(b * n2 + c) * small];
      std::fill_n(out, small, p[kBias2][c]);
      for (std::size_t d = 0; d < n1; ++d)
        taps(2, [&](std::size_t o, std::size_t i, std::size_t k) {
          out[o] += p[kConv2][(c * n1 + d) * 9 + k] * a.hidden1[(b * n1 + d) * in + i];
        });
      for (std::size_t i = 0; i < small; ++i) out[i] = std::max(0.0, out[i]);
    }
    for (std::size_t j = 0; j < kClasses; ++j) {
      double sum = p[kBias3][j];
      for (std::size_t i = 0; i < n2 * small; ++i)
        sum += p[kLinear][j * n2 * small + i] * a.hidden2[b * n2 * small + i];
      a.out[b * kClasses + j] = sum;
    }
  }
}

namespace {

/// Returns the loss of one sample; replaces its outputs by d(loss)/d(output), not yet divided by the
/// batch size.
double cross_entropy(std::span<double> out, int label) {
  const double top = *std::max_element(out.begin(), out.end()), own = out[at(label)] - top;
  double sum = 0;
  for (double& o : out) sum += o = std::exp(o - top);
  for (double& o : out) o /= sum;
  out[at(label)] -= 1;
  return std::log(sum) - own;
}

}  // namespace

double ConvNet::train(Values p, std::span<const double> images, std::span<const int> labels, Running& running,
                      Gradients g) const {
  Pass a{.batch = static_cast<int>(labels.size()), .images = images};
  forward(p, a);
  const std::size_t n1 = at(c1_), n2 = at(c2_), in = kPixels, small = kPixels / 4, batch = labels.size();
  const double count = static_cast<double>(batch * in);
  for (std::size_t c = 0; c < n1; ++c) {
    running.mean[c] += 0.1 * (a.mean[c] - running.mean[c]);
    running.variance[c] += 0.1 * (a.variance[c] * count / (count - 1) - running.variance[c]);
  }
  double loss = 0;
  for (std::size_t b = 0; b < batch; ++b)
    loss += cross_entropy(std::span(a.out).subspan(b * kClasses, kClasses), labels[b]);
  for (double& o : a.out) o /= static_cast<double>(batch);

  Array d1(a.hidden1.size()), d2(n2 * small);
  for (std::size_t b = 0; b < batch; ++b) {
    std::fill(d2.begin(), d2.end(), 0);
    for (std::size_t j = 0; j < kClasses; ++j) {
      const double d = a.out[b * kClasses + j];
      g[kBias3][j] += d;
      for (std::size_t i = 0; i < d2.size(); ++i) {
        g[kLinear][j * d2.size() + i] += d * a.hidden2[b * d2.size() + i];
        d2[i] += d * p[kLinear][j * d2.size() + i];
      }
    }
    for (std::size_t c = 0; c < n2; ++c) {
      double* d = &d2[c * small];
      for (std::size_t i = 0; i < small; ++i) {
        if (a.hidden2[(b * n2 + c) * small + i] <= 0) d[i] = 0;
        g[kBias2][c] += d[i];
      }
      for (std::size_t e = 0; e < n1; ++e)
        taps(2, [&](std::size_t o, std::size_t i, std::size_t k) {
          g[kConv2][(c * n1 + e) * 9 + k] += d[o] * a.hidden1[(b * n1 + e) * in + i];
          d1[(b * n1 + e) * in + i] += d[o] * p[kConv2][(c * n1 + e) * 9 + k];
        });
    }
  }
  for (std::size_t c = 0; c < n1; ++c) {
    const auto each = [&](auto&& f) {
      for (std::size_t b = 0; b < batch; ++b)
        for (std::size_t i = 0; i < in; ++i) f((b * n1 + c) * in + i, b, i);
    };
    double sum = 0, product = 0;
    each([&](std::size_t k, std::size_t, std::size_t) {
      if (a.hidden1[k] <= 0) d1[k] = 0;
      sum += d1[k], product += d1[k] * a.normal[k];
    });
    g[kNormBias][c] += sum, g[kNormWeight][c] += product;
    const double slope = p[kNormWeight][c] / std::sqrt(a.variance[c] + kEps);
    each([&](std::size_t k, std::size_t, std::size_t) {
      d1[k] = slope * (d1[k] - sum / count - a.normal[k] * product / count);
      g[kBias1][c] += d1[k];
    });
    for (std::size_t b = 0; b < batch; ++b)
      taps(1, [&](std::size_t o, std::size_t i, std::size_t k) {
        g[kConv1][c * 9 + k] += d1[(b * n1 + c) * in + o] * images[b * in + i];
      });
  }
  return loss / static_cast<double>(batch);
}

ConvNet::Score ConvNet::evaluate(Values p, std::span<const double> images, std::span<const int> labels,
                                 const Running& running) const {
  Pass a{.batch = static_cast<int>(labels.size()),
         .images = images,
         .mean = running.mean,
         .variance = running.variance,
         .batch_statistics = false};
  forward(p, a);
  Score score;
  for (std::size_t b = 0; b < labels.size(); ++b) {
    const std::span<double> out = std::span(a.out).subspan(b * kClasses, kClasses);
    score.correct += std::max_element(out.begin(), out.end()) - out.begin() == labels[b];
    score.loss += cross_entropy(out, labels[b]) / static_cast<double>(labels.size());
  }
  return score;
}

}  // namespace ouro::models

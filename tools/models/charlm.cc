// Forward and backward pass of the character model, one sequence at a time, in double. Used through charlm.h.
#include "tools/models/charlm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace ouro::models {
namespace {

constexpr std::size_t V = CharLm::kTokens, D = CharLm::kWidth, H = CharLm::kHeads, J = CharLm::kHead,
                      L = CharLm::kLength;
template <std::size_t N>
using Rows = std::array<std::array<double, N>, L>;

/// y = x W^T + b, row by row.
template <std::size_t In, std::size_t Out>
void linear(const Rows<In>& x, const double* w, const double* b, Rows<Out>& y) {
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t o = 0; o < Out; ++o) {
      double sum = b ? b[o] : 0;
      for (std::size_t i = 0; i < In; ++i) sum += w[o * In + i] * x[t][i];
      y[t][o] = sum;
    }
}
/// dx += dy W; gradients of weight and bias are added.
template <std::size_t In, std::size_t Out>
void linear_back(const Rows<In>& x, const double* w, const Rows<Out>& dy, double* gw, double* gb,
                 Rows<In>& dx) {
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t o = 0; o < Out; ++o) {
      if (gb) gb[o] += dy[t][o];
      for (std::size_t i = 0; i < In; ++i) {
        gw[o * In + i] += dy[t][o] * x[t][i];
        dx[t][i] += dy[t][o] * w[o * In + i];
      }
    }
}

struct Norm {
  Rows<D> normal;
  std::array<double, L> slope;

  void forward(const Rows<D>& x, const double* w, const double* b, Rows<D>& y) {
    for (std::size_t t = 0; t < L; ++t) {
      double mean = 0, variance = 0;
      for (const double v : x[t]) mean += v / D;
      for (const double v : x[t]) variance += (v - mean) * (v - mean) / D;
      slope[t] = 1 / std::sqrt(variance + 1e-5);
      for (std::size_t i = 0; i < D; ++i) {
        normal[t][i] = (x[t][i] - mean) * slope[t];
        y[t][i] = w[i] * normal[t][i] + b[i];
      }
    }
  }
  void back(const double* w, const Rows<D>& dy, double* gw, double* gb, Rows<D>& dx) const {
    for (std::size_t t = 0; t < L; ++t) {
      double sum = 0, product = 0;
      for (std::size_t i = 0; i < D; ++i) {
        gw[i] += dy[t][i] * normal[t][i], gb[i] += dy[t][i];
        const double d = dy[t][i] * w[i];
        sum += d / D, product += d * normal[t][i] / D;
      }
      for (std::size_t i = 0; i < D; ++i)
        dx[t][i] += slope[t] * (dy[t][i] * w[i] - sum - normal[t][i] * product);
    }
  }
};

/// Causal attention. Row t of q, k and v is a third each of row t of qkv, split by heads.
struct Attention {
  std::array<Rows<L>, H> share;

  void forward(const Rows<3 * D>& qkv, Rows<D>& y) {
    for (std::size_t h = 0; h < H; ++h)
      for (std::size_t t = 0; t < L; ++t) {
        std::array<double, L>& p = share[h][t];
        p.fill(0);
        double top = -INFINITY, sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t j = 0; j < J; ++j) p[s] += qkv[t][h * J + j] * qkv[s][D + h * J + j];
          top = std::max(top, p[s] /= std::sqrt(double{J}));
        }
        for (std::size_t s = 0; s <= t; ++s) sum += p[s] = std::exp(p[s] - top);
        for (std::size_t j = 0; j < J; ++j) y[t][h * J + j] = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          p[s] /= sum;
          for (std::size_t j = 0; j < J; ++j) y[t][h * J + j] += p[s] * qkv[s][2 * D + h * J + j];
        }
      }
  }
  void back(const Rows<3 * D>& qkv, const Rows<D>& dy, Rows<3 * D>& d) const {
    for (std::size_t h = 0; h < H; ++h)
      for (std::size_t t = 0; t < L; ++t) {
        const std::array<double, L>& p = share[h][t];
        std::array<double, L> dp{};
        double inner = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t j = 0; j < J; ++j) {
            dp[s] += dy[t][h * J + j] * qkv[s][2 * D + h * J + j];
            d[s][2 * D + h * J + j] += dy[t][h * J + j] * p[s];
          }
          inner += dp[s] * p[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          const double ds = p[s] * (dp[s] - inner) / std::sqrt(double{J});
          for (std::size_t j = 0; j < J; ++j) {
            d[t][h * J + j] += ds * qkv[s][D + h * J + j];
            d[s][D + h * J + j] += ds * qkv[t][h * J + j];
          }
        }
      }
  }
};

// gelu(z) = z * normal_part(z).
double normal_part(double z) { return 0.5 * (1 + std::erf(z / std::numbers::sqrt2)); }
double gelu_slope(double z) {
  return normal_part(z) + z * std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
}

/// Processes one sequence. `share`: 1 / number of tokens in the batch.
double sequence(Values p, std::span<const int> text, double share, Gradients g) {
  const auto token = [&](std::size_t t) { return static_cast<std::size_t>(text[t]); };
  Rows<D> x0, n1, heads, proj, x1, n2, f1, act, f2, x2;
  Rows<3 * D> qkv;
  Norm norm1, norm2;
  Attention attention;
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i)
      x0[t][i] = p[CharLm::kEmb][token(t) * D + i] + p[CharLm::kPos][t * D + i];
  norm1.forward(x0, p[CharLm::kNorm1], p[CharLm::kNorm1Bias], n1);
  linear<D, 3 * D>(n1, p[CharLm::kQkv], p[CharLm::kQkvBias], qkv);
  attention.forward(qkv, heads);
  linear<D, D>(heads, p[CharLm::kProj], p[CharLm::kProjBias], proj);
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i) x1[t][i] = x0[t][i] + proj[t][i];
  norm2.forward(x1, p[CharLm::kNorm2], p[CharLm::kNorm2Bias], n2);
  linear<D, D>(n2, p[CharLm::kF1], p[CharLm::kF1Bias], f1);
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i) act[t][i] = f1[t][i] * normal_part(f1[t][i]);
  linear<D, D>(act, p[CharLm::kF2], p[CharLm::kF2Bias], f2);
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i) x2[t][i] = x1[t][i] + f2[t][i];

  double loss = 0;
  Rows<V> logits;
  linear<D, V>(x2, p[CharLm::kEmb], nullptr, logits);
  for (std::size_t t = 0; t < L; ++t) {
    std::array<double, V>& row = logits[t];
    double top = -INFINITY, sum = 0;
    for (const double o : row) top = std::max(top, o);
    const double own = row[token(t + 1)] - top;
    for (double& o : row) sum += o = std::exp(o - top);
    loss += std::log(sum) - own;
    for (double& o : row) o *= share / sum;
    row[token(t + 1)] -= share;
  }

  Rows<D> dx2{}, dact{}, dn2{}, dx1{}, dheads{}, dn1{}, dx0{};
  Rows<3 * D> dqkv{};
  linear_back<D, V>(x2, p[CharLm::kEmb], logits, g[CharLm::kEmb], nullptr, dx2);
  dx1 = dx2;
  linear_back<D, D>(act, p[CharLm::kF2], dx2, g[CharLm::kF2], g[CharLm::kF2Bias], dact);
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i) dact[t][i] *= gelu_slope(f1[t][i]);
  linear_back<D, D>(n2, p[CharLm::kF1], dact, g[CharLm::kF1], g[CharLm::kF1Bias], dn2);
  norm2.back(p[CharLm::kNorm2], dn2, g[CharLm::kNorm2], g[CharLm::kNorm2Bias], dx1);
  dx0 = dx1;
  linear_back<D, D>(heads, p[CharLm::kProj], dx1, g[CharLm::kProj], g[CharLm::kProjBias], dheads);
  attention.back(qkv, dheads, dqkv);
  linear_back<D, 3 * D>(n1, p[CharLm::kQkv], dqkv, g[CharLm::kQkv], g[CharLm::kQkvBias], dn1);
  norm1.back(p[CharLm::kNorm1], dn1, g[CharLm::kNorm1], g[CharLm::kNorm1Bias], dx0);
  for (std::size_t t = 0; t < L; ++t)
    for (std::size_t i = 0; i < D; ++i) {
      g[CharLm::kEmb][token(t) * D + i] += dx0[t][i];
      g[CharLm::kPos][t * D + i] += dx0[t][i];
    }
  return loss;
}

}  // namespace

std::vector<Tensor> CharLm::tensors() {
  const std::int64_t d = kWidth;
  return {{"pos", {kLength, d}},      {"emb.weight", {kTokens, d}},
          {"qkv.weight", {3 * d, d}}, {"qkv.bias", {3 * d}},
          {"proj.weight", {d, d}},    {"proj.bias", {d}},
          {"ln1.weight", {d}},        {"ln1.bias", {d}},
          {"ln2.weight", {d}},        {"ln2.bias", {d}},
          {"f1.weight", {d, d}},      {"f1.bias", {d}},
          {"f2.weight", {d, d}},      {"f2.bias", {d}}};
}

double CharLm::train(Values p, std::span<const int> text, Gradients g) {
  const std::size_t sequences = text.size() / (L + 1), tokens = sequences * L;
  double loss = 0;
  for (std::size_t s = 0; s < sequences; ++s)
    loss += sequence(p, text.subspan(s * (L + 1), L + 1), 1 / static_cast<double>(tokens), g);
  return loss / static_cast<double>(tokens);
}

}  // namespace ouro::models

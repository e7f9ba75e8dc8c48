// The spectral norm for Topology::contraction. See topology_state.h.
#include <algorithm>
#include <cmath>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

/// A symmetric tridiagonal matrix.
struct Tridiagonal {
  std::vector<double> diagonal, beside;  // beside[i] couples i and i + 1
};

/// Householder reflections, column by column; `a` is symmetric and is overwritten. Reads both halves of `a`.
Tridiagonal tridiagonalise(std::vector<double> a, std::size_t n) {
  Tridiagonal t{std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> v(n), p(n);
  for (std::size_t k = 0; k + 1 < n; ++k) {
    double norm = 0;
    for (std::size_t i = k + 1; i < n; ++i) norm = std::hypot(norm, a[i * n + k]);
    t.beside[k] = norm;
    if (norm == 0) continue;
    std::fill(v.begin(), v.end(), 0.0);
    for (std::size_t i = k + 1; i < n; ++i) v[i] = a[i * n + k];
    v[k + 1] += std::copysign(norm, v[k + 1]);
    double square = 0;
    for (std::size_t i = k + 1; i < n; ++i) square += v[i] * v[i];
    // a <- h a h with h = 1 - 2 v v^T / |v|^2, as a - v q^T - q v^T.
    double vp = 0;
    for (std::size_t i = k; i < n; ++i) {
      double sum = 0;
      for (std::size_t j = k + 1; j < n; ++j) sum += a[i * n + j] * v[j];
      p[i] = 2 * sum / square;
      vp += p[i] * v[i];
    }
    for (std::size_t i = k; i < n; ++i) p[i] -= vp / square * v[i];
    for (std::size_t i = k; i < n; ++i)
      for (std::size_t j = k; j < n; ++j) a[i * n + j] -= v[i] * p[j] + p[i] * v[j];
  }
  for (std::size_t i = 0; i < n; ++i) t.diagonal[i] = a[i * n + i];
  return t;
}

/// Whether all eigenvalues are below x (Sturm's sequence has no sign change).
bool all_below(const Tridiagonal& t, double x) {
  double q = 1;
  for (std::size_t i = 0; i < t.diagonal.size(); ++i) {
    const double before = i == 0 ? 0 : t.beside[i - 1] * t.beside[i - 1];
    q = t.diagonal[i] - x - before / q;
    if (q >= 0) return false;
  }
  return true;
}

}  // namespace

double spectral_norm(const std::vector<double>& a, int size) {
  const auto n = static_cast<std::size_t>(size);
  double largest = 0;
  for (const double entry : a) largest = std::max(largest, std::abs(entry));
  if (largest == 0) return 0;
  std::vector<double> gram(n * n);  // of a / largest, so that no square underflows
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      const double left = a[k * n + i] / largest;
      if (left == 0) continue;
      for (std::size_t j = 0; j < n; ++j) gram[i * n + j] += left * (a[k * n + j] / largest);
    }
  }
  const Tridiagonal t = tridiagonalise(std::move(gram), n);
  double low = 0, high = 0;
  for (std::size_t i = 0; i < n; ++i)
    high = std::max(
        high, std::abs(t.diagonal[i]) + std::abs(t.beside[i]) + (i > 0 ? std::abs(t.beside[i - 1]) : 0));
  high *= 1 + 1e-12;
  for (int halving = 0; halving < 100 && low < high; ++halving) {
    const double middle = low + (high - low) / 2;
    (all_below(t, middle) ? high : low) = middle;
  }
  return largest * std::sqrt(high);
}

}  // namespace ouro::train

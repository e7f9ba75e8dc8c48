// Learning-rate schedules. See schedule.hpp.
#include "ouro/train/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

/// Falls from `high` at 0 to `low` at `of`.
double cosine(double high, double low, double at, double of) {
  return low + (high - low) / 2 * (1 + std::cos(std::numbers::pi * at / of));
}

}  // namespace

Result<Schedule> cosine_with_warmup(double lr, std::int64_t t_max, std::int64_t t_warmup, double eta_min,
                                    double warmup_decay, After after) {
  if (t_max < 1) return invalid(fmt::format("a cosine over {} updates; expected at least 1", t_max));
  if (t_warmup < 0) return invalid(fmt::format("a warm-up of {} updates; expected 0 or more", t_warmup));
  if (!std::isfinite(lr) || !std::isfinite(eta_min) || !std::isfinite(warmup_decay))
    return invalid(
        fmt::format("lr {}, eta_min {}, warmup_decay {}; all must be finite", lr, eta_min, warmup_decay));
  return Schedule(
      [=](std::int64_t u) {
        const StandardFloats floats;
        const auto d = [](std::int64_t n) { return static_cast<double>(n); };
        if (u < t_warmup) return lr * (warmup_decay + (1 - warmup_decay) * d(u) / d(t_warmup));
        if (after == After::hold && u - t_warmup >= t_max) return eta_min;
        return cosine(lr, eta_min, d(u - t_warmup), d(t_max));
      },
      Schedule::kEvery);
}

Result<Schedule> warmup_cosine_decay(const WarmupCosineOptions& o) {
  if (o.steps_per_epoch < 1)
    return invalid(fmt::format("{} steps an epoch; expected at least 1", o.steps_per_epoch));
  if (o.accum < 1)
    return invalid(fmt::format("gradients of {} steps accumulated; expected at least 1", o.accum));
  if (o.epochs < 0) return invalid(fmt::format("{} epochs; expected 0 or more", o.epochs));
  const auto is_fraction = [](double x) { return x >= 0 && x <= 1; };
  if (!std::isfinite(o.peak) || !is_fraction(o.warmup_fraction) || !is_fraction(o.final_fraction))
    return invalid(fmt::format(
        "peak {}, warm-up fraction {}, final fraction {}; expected a finite peak and fractions of 0 to 1",
        o.peak, o.warmup_fraction, o.final_fraction));
  const double total =
      std::max(1.0, static_cast<double>(o.epochs) * static_cast<double>(o.steps_per_epoch / o.accum));
  const double warmup = std::max(1.0, std::floor(o.warmup_fraction * total));
  const double peak = o.peak, last = o.final_fraction * o.peak;
  return Schedule(
      [=](std::int64_t u) {
        const StandardFloats floats;
        const double s = static_cast<double>(u) + 1;
        if (s < warmup) return peak * s / warmup;
        if (s >= total) return last;
        return cosine(peak, last, s - warmup, std::max(1.0, total - warmup));
      },
      Schedule::kEvery);
}

}  // namespace ouro::train

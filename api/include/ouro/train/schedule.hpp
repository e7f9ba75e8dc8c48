/// Learning-rate schedules: pure functions of the update number, plus a current position. For users and for
/// the trainers.
/// @file
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

/// The rate of update u = 0, 1, 2, ..., and the number of the next update. Copies are independent.
///
/// A trainer queries the rate of update 0 when it begins, the rate of each update before making it, and the
/// rate of the next one when its lr() is called. It also queries some updates below known(), to detect ranks
/// whose schedules differ. An exception from `rate` ends the trainer as `invalid` on all ranks.
class OURO_API Schedule {
 public:
  /// Value of `known` for a schedule that has a rate for every update.
  static constexpr std::int64_t kEvery = std::numeric_limits<std::int64_t>::max();
  /// `rate(u)` is the learning rate of update u. `known`: the number of updates that may be queried before
  /// training reaches them; kEvery for the schedules of this library.
  explicit Schedule(std::function<double(std::int64_t)> rate, std::int64_t known = 1)
      : rate_(std::make_shared<const std::function<double(std::int64_t)>>(std::move(rate))), known_(known) {}
  double at(std::int64_t update) const { return (*rate_)(update); }  ///< of any update that `rate` covers
  std::int64_t known() const { return known_; }        ///< number of updates that may be queried on any rank
  double lr() const { return at(position_); }          ///< rate of the next update
  void step() { ++position_; }                         ///< call once after each update
  std::int64_t position() const { return position_; }  ///< number of the next update
  void seek(std::int64_t position) { position_ = position; }  ///< sets the number of the next update

 private:
  std::shared_ptr<const std::function<double(std::int64_t)>> rate_;
  std::int64_t known_ = 1;
  std::int64_t position_ = 0;
};

/// Makes the schedule of one bucket from its parameters; buckets step together, so all schedules must agree.
using ScheduleFactory = std::function<Result<Schedule>(std::span<const Param>)>;

/// After the last update of a cosine: hold the end value, or continue the cosine, which rises again.
enum class After { hold, periodic };

/// u < t_warmup: lr (d + (1-d) u / t_warmup), d = warmup_decay; then eta_min + (lr-eta_min)/2 (1 + cos(pi
/// (u-t_warmup) / t_max)); from u = t_warmup + t_max on as `after` says. Errors: invalid (t_max < 1, t_warmup
/// < 0, a number that is not finite).
OURO_API Result<Schedule> cosine_with_warmup(double lr, std::int64_t t_max, std::int64_t t_warmup,
                                             double eta_min = 1e-6, double warmup_decay = 0.01,
                                             After after = After::hold);

/// Options of warmup_cosine_decay().
struct WarmupCosineOptions {
  double peak = 1e-3;                ///< highest learning rate
  std::int64_t epochs = 1;           ///< passes over the data
  std::int64_t steps_per_epoch = 0;  ///< micro-batches per epoch
  std::int64_t accum = 1;            ///< micro-batches per update
  double warmup_fraction = 0.01;     ///< fraction of all updates
  double final_fraction = 0.01;      ///< end value as a fraction of the peak
};
/// T = max(1, epochs * (steps_per_epoch div accum)), w = max(1, floor(warmup_fraction T)), final =
/// final_fraction peak; f(s) = peak s/w for s < w, final for s >= T, else
/// final + (peak-final)/2 (1 + cos(pi (s-w) / max(1, T-w))). Update u uses f(u+1).
/// Errors: invalid (steps_per_epoch or accum below 1, epochs below 0, fractions outside [0, 1], a number that
/// is not finite).
OURO_API Result<Schedule> warmup_cosine_decay(const WarmupCosineOptions&);

}  // namespace ouro::train

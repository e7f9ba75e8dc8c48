/// Learning-rate schedules: pure functions of the number of an update, and a place in one. For users and for
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

/// The rate of update u = 0, 1, 2, ..., and which update is next. Copies are independent.
///
/// A trainer asks for the rate of update 0 when it begins, for that of each update before it makes it, and
/// for that of the next one when its lr() is asked; besides, so that ranks whose schedules differ are told
/// so, for some of those below known(). What `rate` throws ends the trainer as `invalid`, on all ranks.
class OURO_API Schedule {
 public:
  /// As `known`: there is a rate for every update.
  static constexpr std::int64_t kEvery = std::numeric_limits<std::int64_t>::max();
  /// `rate(u)` is the learning rate of update u. `known`: how many updates it may be asked for although no
  /// run has come to them; those of this library are known for kEvery.
  explicit Schedule(std::function<double(std::int64_t)> rate, std::int64_t known = 1)
      : rate_(std::make_shared<const std::function<double(std::int64_t)>>(std::move(rate))), known_(known) {}
  double at(std::int64_t update) const { return (*rate_)(update); }  ///< of any update that `rate` has
  std::int64_t known() const { return known_; }                      ///< how many any rank may be asked for
  double lr() const { return at(position_); }                        ///< of the next update
  void step() { ++position_; }                                       ///< once after each update
  std::int64_t position() const { return position_; }                ///< the next update
  void seek(std::int64_t position) { position_ = position; }         ///< sets the next update

 private:
  std::shared_ptr<const std::function<double(std::int64_t)>> rate_;
  std::int64_t known_ = 1;
  std::int64_t position_ = 0;
};

/// Makes the schedule of one bucket from its parameters; buckets step together, so all agree.
using ScheduleFactory = std::function<Result<Schedule>(std::span<const Param>)>;

/// After the last update of a cosine: its end value, or the cosine goes on and rises again.
enum class After { hold, periodic };

/// u < t_warmup: lr (d + (1-d) u / t_warmup), d = warmup_decay; then
/// eta_min + (lr-eta_min)/2 (1 + cos(pi (u-t_warmup) / t_max)); from u = t_warmup + t_max on `after`.
/// Errors: invalid (t_max < 1, t_warmup < 0, a number that is not finite).
OURO_API Result<Schedule> cosine_with_warmup(double lr, std::int64_t t_max, std::int64_t t_warmup,
                                             double eta_min = 1e-6, double warmup_decay = 0.01,
                                             After after = After::hold);

/// Options of warmup_cosine_decay().
struct WarmupCosineOptions {
  double peak = 1e-3;                ///< highest learning rate
  std::int64_t epochs = 1;           ///< passes over the data
  std::int64_t steps_per_epoch = 0;  ///< micro-batches of an epoch
  std::int64_t accum = 1;            ///< micro-batches of an update
  double warmup_fraction = 0.01;     ///< of all updates
  double final_fraction = 0.01;      ///< of the peak
};
/// T = max(1, epochs * (steps_per_epoch div accum)), w = max(1, floor(warmup_fraction T)), final =
/// final_fraction peak; f(s) = peak s/w for s < w, final for s >= T, else
/// final + (peak-final)/2 (1 + cos(pi (s-w) / max(1, T-w))). Update u uses f(u+1).
/// Errors: invalid (steps_per_epoch or accum below 1, epochs below 0, fractions outside [0, 1], a number that
/// is not finite).
OURO_API Result<Schedule> warmup_cosine_decay(const WarmupCosineOptions&);

}  // namespace ouro::train

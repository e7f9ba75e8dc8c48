/// Loss scaling for training in 16-bit floats: a scale that halves when gradients overflow and grows while
/// they do not. For users and for the trainers.
/// @file
#pragma once
#include <cstdint>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Who decides that a step overflowed. all: any rank, for all of them (one word is max-reduced a step).
/// local: each rank for each of its buckets, so that scales may diverge, as Decent-DP does.
enum class ScalerScope { all, local };

/// The loss is multiplied by `scale` before the backward pass, gradients are divided by it before they are
/// used. A value: its fields are all of its state.
struct GradScaler {
  double scale = 65536;                  ///< what the loss is multiplied with
  double growth = 2;                     ///< factor after `interval` clean steps
  double backoff = 0.5;                  ///< factor after an overflow
  std::int64_t interval = 2000;          ///< clean steps until the scale grows
  ScalerScope scope = ScalerScope::all;  ///< who decides that a step overflowed
  std::int64_t clean_steps = 0;          ///< since the scale changed

  /// What a step leaves behind; `finite`: all gradients were.
  OURO_API void update(bool finite);
  /// invalid: a scale that is not positive and finite, growth below 1, backoff outside (0, 1], interval
  /// below 1.
  OURO_API Status check() const;
};

}  // namespace ouro::train

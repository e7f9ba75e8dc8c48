/// Loss scaling for training in 16-bit floats: a scale that shrinks when gradients overflow and grows while
/// they do not. For users and for the trainers.
/// @file
#pragma once
#include <cstdint>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Scope of an overflow. all: an overflow on any rank counts for all ranks (one word is max-reduced per
/// step). local: each rank decides for each of its buckets, so scales may diverge, as in Decent-DP.
enum class ScalerScope { all, local };

/// The loss is multiplied by `scale` before the backward pass, and gradients are divided by it before they
/// are used. A value type: its fields are all of its state.
struct GradScaler {
  double scale = 65536;                  ///< factor for the loss
  double growth = 2;                     ///< factor after `interval` clean steps
  double backoff = 0.5;                  ///< factor after an overflow
  std::int64_t interval = 2000;          ///< number of clean steps until the scale grows
  ScalerScope scope = ScalerScope::all;  ///< scope of an overflow
  std::int64_t clean_steps = 0;          ///< clean steps since the scale last changed

  /// Updates the scale after a step; `finite`: all gradients were finite.
  OURO_API void update(bool finite);
  /// invalid: a scale that is not positive and finite, growth below 1, backoff outside (0, 1],
  /// interval below 1.
  OURO_API Status check() const;
};

}  // namespace ouro::train

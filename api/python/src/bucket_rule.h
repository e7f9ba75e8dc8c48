// Optimisers of a bucket that Python supplies: ouro's rules, or an optimiser of another library. Used by
// train_gossip.cc and train_sharded.cc.
#pragma once
#include "api/python/src/train.h"
#include "ouro/train/scaler.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::python {

/// `made`: a Rule, or a callable that takes the names of a bucket's parameters and returns a Rule or an
/// object with
/// groups          list of (names, Rule); empty: step(scale) updates, on gradients times scale
/// rates()         the learning rate of each group, for the next step
/// changed()       list of (group, Rule): groups whose other options have changed
/// stepped()       called after each update
/// save(), load()  its own additional state, as bytes
train::OptimizerFactory factory_of(nb::object made, std::shared_ptr<Raised>, bool rules_only = false);

/// `made`: None, a Schedule, or a callable that takes the same names and returns one.
train::ScheduleFactory schedules_of(nb::object made, std::shared_ptr<Raised>);

/// `wanted`: None, or a dict of scale, growth, backoff, interval, scope. Errors: ValueError (another key).
std::optional<train::GradScaler> scaler_of(nb::handle wanted);

}  // namespace ouro::python

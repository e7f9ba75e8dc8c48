// Optimisers of a bucket that Python names: rules of ouro's, or an optimiser of another library. Used by
// train_gossip.cc and train_sharded.cc.
#pragma once
#include "api/python/src/train.h"
#include "ouro/train/scaler.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::python {

/// `made`: a Rule, or a callable that is given the names of a bucket's parameters and returns a Rule or an
/// object with
///   groups          list of (names, Rule); empty: step(scale) does it, on gradients times scale
///   rates()         the learning rate of each group, for the next step
///   stepped()       after each update
///   save(), load()  of what it has besides, as bytes
train::OptimizerFactory factory_of(nb::object made, std::shared_ptr<Raised>, bool rules_only = false);

/// `made`: None, a Schedule, or a callable as above that returns one.
train::ScheduleFactory schedules_of(nb::object made, std::shared_ptr<Raised>);

/// None, or a dict of scale, growth, backoff, interval, scope. Errors: ValueError (another key).
std::optional<train::GradScaler> scaler_of(nb::handle wanted);

}  // namespace ouro::python

// Two real cores, between which copies can be measured. Used to calibrate a host.
#pragma once
#include <memory>

#include "runtime/calibration/measure.h"

namespace ouro::rt {

/// A probe between the calling thread, which is bound to hardware thread `here`, and a thread that this
/// starts on `there`; -1: any hardware thread that the system chooses. Both threads check the clock: nothing
/// is measured after `end`. Errors: resource (no memory, no thread, or the system refuses the
/// hardware thread).
Result<std::unique_ptr<Probe>> make_pair_probe(int here, int there, Clock::time_point end);

}  // namespace ouro::rt

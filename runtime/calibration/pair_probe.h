// Two real cores that can be asked what a copy takes. Used where a host is calibrated.
#pragma once
#include <memory>

#include "runtime/calibration/measure.h"

namespace ouro::rt {

/// The calling thread, which goes to hardware thread `here` and stays there, and one that this starts, on
/// `there`; -1: wherever the system puts it. Both look at the clock: after `end` nothing is answered any
/// more. Errors: resource (no memory, no thread, or the system refuses the hardware thread).
Result<std::unique_ptr<Probe>> make_pair_probe(int here, int there, Clock::time_point end);

}  // namespace ouro::rt

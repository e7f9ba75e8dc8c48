// The calibration that ranks which joined now on this host would use, for people. Used by ouro-info.
#pragma once
#include <string>

#include "runtime/context/host_calibration.h"

namespace ouro::info {

/// Where it is from, then a row for each pair of cores and size: microseconds to write and to read, by kind
/// of copy, and of one copy out of another process.
std::string calibration_text(const rt::HostCalibration&);

}  // namespace ouro::info

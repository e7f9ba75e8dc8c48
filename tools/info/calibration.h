// Prints the calibration that ranks would use if they joined now on this host. Used by ouro-info.
#pragma once
#include <string>

#include "runtime/context/host_calibration.h"

namespace ouro::info {

/// The origin of the record, then a row for each pair of cores and each size: microseconds to write and to
/// read, by kind of copy, and of one copy out of another process.
std::string calibration_text(const rt::HostCalibration&);

}  // namespace ouro::info

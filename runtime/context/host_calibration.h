// The record of this host: pinned, stored, or measured. Used by the first rank of a host when it joins, and
// by ouro-info.
#pragma once
#include <string>

#include "runtime/calibration/record.h"
#include "runtime/core/status.h"
#include "runtime/job/job_members.h"

namespace ouro::rt {

/// The value of OURO_CALIBRATION.
struct CalibrationMode {
  enum class Kind : std::uint8_t { off, measured, pinned } kind = Kind::off;
  Calibration pinned = {};
  std::string file = {}, key = {};  ///< file and key of the pinned record
  /// The setting that must be equal on all ranks: "measured", "off", or the digest of the pinned record.
  std::string setting() const;
};
/// Reads OURO_CALIBRATION. Errors: invalid, for a file that cannot be read or is no record.
Result<CalibrationMode> calibration_mode();

struct HostCalibration {
  Calibration record = {};  ///< not known(): built-in values apply
  std::string origin = {};  ///< in words: where the record is from, or why there is none
  std::string key = {};     ///< identifies processor, kernel and topology
  std::string file = {};    ///< file that it is stored in; "": none
  double milliseconds = 0;  ///< time that it took to get the record
};

/// The record that the first rank of a host puts on its page. If measured: the record stored by an earlier
/// job, if a hand-off still takes as long (1 ms); otherwise a new measurement (at most 30 ms, on threads of
/// its own), which is stored. Done once per process: later calls return the same result. Never fails: if
/// nothing can be measured (one core only, other work on all of them), the record is not known() and `origin`
/// states the reason.
HostCalibration host_calibration(const CalibrationMode&);

/// The record on that page, as all ranks of this host read it.
Calibration calibration_of_host(const JobMembers&);

}  // namespace ouro::rt

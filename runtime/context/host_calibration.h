// The record of this host: pinned, kept, or measured. Used by the first rank of a host when it joins, and by
// ouro-info.
#pragma once
#include <string>

#include "runtime/calibration/record.h"
#include "runtime/context/job_members.h"
#include "runtime/core/status.h"

namespace ouro::rt {

/// What OURO_CALIBRATION says.
struct CalibrationMode {
  enum class Kind : std::uint8_t { off, measured, pinned } kind = Kind::off;
  Calibration pinned = {};
  std::string file = {}, key = {};  ///< of what is pinned
  /// What all ranks must have alike: "measured", "off", or the digest of what is pinned.
  std::string setting() const;
};
/// Errors: invalid, of a file that cannot be read or is no record.
Result<CalibrationMode> calibration_mode();

struct HostCalibration {
  Calibration record = {};  ///< not known(): what is built in serves
  std::string origin = {};  ///< in words: where it is from, or why there is none
  std::string key = {};     ///< of processor, kernel and topology
  std::string file = {};    ///< where it is kept; "": nowhere
  double milliseconds = 0;  ///< what it took to get
};

/// What the first rank of a host puts on its page. Measured: kept by an earlier job, if a hand-off takes as
/// long as it did then (1 ms), else measured (at most 30 ms, on threads of its own) and kept. Once in a
/// process: later calls have the same answer. Never fails: where nothing can be measured (one core only,
/// other work on all of them) the record says so.
HostCalibration host_calibration(const CalibrationMode&);

/// What stands on that page, as all ranks of this host read it.
Calibration calibration_of_host(const JobMembers&);

}  // namespace ouro::rt

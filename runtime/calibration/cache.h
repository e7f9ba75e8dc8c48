// The record that an earlier job of this user has stored on this host. Used to calibrate a host.
#pragma once
#include <optional>
#include <string>

#include "runtime/calibration/record.h"

namespace ouro::rt {

/// Identifies the machine that figures belong to: processor, stepping, microcode, kernel, and `topology`, a
/// text of the caller's choice.
std::string calibration_key(const std::string& topology);

/// $XDG_CACHE_HOME/ouro, else $HOME/.cache/ouro; "": neither is set, and nothing is stored.
std::string calibration_cache_directory();

/// One file for each key in `directory`. If that is "", nothing is found or stored.
class CalibrationCache {
 public:
  CalibrationCache(std::string directory, std::string key);
  /// Returns "" if there is no directory.
  const std::string& file() const { return file_; }
  /// nullopt: there is none. Errors: refused (the directory or the file belongs to another user, or others
  /// may write to it), invalid (not a complete record, or of another key), resource.
  Result<std::optional<Calibration>> load() const;
  /// Atomic; readable by this user only. Errors: refused, as above; resource.
  Status store(const Calibration&) const;

 private:
  const std::string directory_, key_, name_, file_;
};

}  // namespace ouro::rt

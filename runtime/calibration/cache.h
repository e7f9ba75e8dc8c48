// The record that an earlier job of this user has left on this host. Used where a host is calibrated.
#pragma once
#include <optional>
#include <string>

#include "runtime/calibration/record.h"

namespace ouro::rt {

/// What the figures are of: processor, stepping, microcode, kernel, and `topology`, in the caller's words.
std::string calibration_key(const std::string& topology);
/// Whether that key is of a processor such as the built-in table of algorithms was measured on: AMD Zen 5.
bool is_native(const std::string& key);

/// $XDG_CACHE_HOME/ouro, else $HOME/.cache/ouro; "": there is neither, and nothing is kept.
std::string calibration_cache_directory();

/// One file for each key in `directory`; "": nothing is found or kept.
class CalibrationCache {
 public:
  CalibrationCache(std::string directory, std::string key);
  /// "" where there is no directory.
  const std::string& file() const { return file_; }
  /// nullopt: there is none. Errors: refused (the directory or the file is another user's, or others may
  /// write to it), invalid (not a record, or of another key).
  Result<std::optional<Calibration>> load() const;
  /// Whole or not at all, for this user alone. Errors: refused, as above; resource.
  Status store(const Calibration&) const;

 private:
  const std::string directory_, key_, name_, file_;
};

}  // namespace ouro::rt

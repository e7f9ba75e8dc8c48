// What ouro-train says: progress, a last line, and files of numbers and curves. Used by main.cc.
#pragma once
#include <optional>
#include <string>

#include "tools/cli/files.h"
#include "tools/train/options.h"

namespace ouro::tools {

/// Files that rank 0 writes; empty: not. Each takes its name when the run has ended well, and is as it was
/// until then.
struct Outputs {
  std::string json, csv, plot;
};

/// Two options must not name one file: a result would overwrite another one, or a state (--save, --resume).
/// Errors: invalid, naming both.
Status distinct(const Outputs&, const TrainOptions&);

/// Before training: whether files can be written there; leaves nothing behind. Errors: resource.
Status try_outputs(const Outputs&);
/// All but the CSV, which LossFile writes. Errors: resource.
Status write_outputs(const Outputs&, const TrainReport&);

/// The CSV: a line a step, as it comes.
class LossFile {
 public:
  LossFile(const std::string& path, Strategy);  ///< no path: nothing is written
  void add(const Step&);
  Status finish();  ///< Errors: resource
  /// The file that has the lines of a run that has failed; empty: none has.
  std::string where() const { return file_ ? file_->where() : ""; }

 private:
  std::optional<GrowingFile> file_;
  bool consensus_, begun_ = false;
};

/// While training: one line rewritten on a terminal, ten lines elsewhere.
class Progress {
 public:
  explicit Progress(int steps);  ///< up to this one
  void operator()(const Step&) const;

 private:
  int steps_;
  bool terminal_;
};

/// One line. `gpu`: its name, or empty.
std::string summary(const TrainReport&, const std::string& gpu);
/// The curves of --plot.
std::string picture(const TrainReport&);

}  // namespace ouro::tools

// The output of ouro-train: progress, a last line, and files of numbers and curves. Used by main.cc.
#pragma once
#include <optional>
#include <string>

#include "tools/cli/files.h"
#include "tools/train/options.h"

namespace ouro::tools {

/// Files that rank 0 writes; empty: not written. Each is written under a temporary name and renamed when the
/// run has succeeded; until then a previous file is unchanged.
struct Outputs {
  std::string json, csv, plot;
};

/// Fails if two options name one file: a result would overwrite another one, or a state (--save, --resume).
/// Errors: invalid, naming both options.
Status distinct(const Outputs&, const TrainOptions&);

/// Call before training: checks whether the files can be written; leaves no files behind. Errors: resource.
Status try_outputs(const Outputs&);
/// Writes all files except the CSV, which LossFile writes. Errors: resource.
Status write_outputs(const Outputs&, const TrainReport&);

/// Writes the CSV: one line for each step, while the run proceeds.
class LossFile {
 public:
  LossFile(const std::string& path, Strategy);  ///< empty path: nothing is written
  void add(const Step&);
  Status finish();  ///< Errors: resource
  /// The file that has the lines of a failed run; empty: there is none.
  std::string where() const { return file_ ? file_->where() : ""; }

 private:
  std::optional<GrowingFile> file_;
  bool consensus_, begun_ = false;
};

/// Shows progress while training: one line that is rewritten on a terminal, ten lines elsewhere.
class Progress {
 public:
  explicit Progress(int steps);  ///< number of the last step
  void operator()(const Step&) const;

 private:
  int steps_;
  bool terminal_;
};

/// The last line of output. `gpu`: the GPU's name, or empty.
std::string summary(const TrainReport&, const std::string& gpu);
/// The curves of --plot.
std::string picture(const TrainReport&);

}  // namespace ouro::tools

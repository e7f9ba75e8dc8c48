// What ouro-train says: progress, a last line, and files of numbers and curves. Used by main.cc.
#pragma once
#include <string>

#include "tools/train/options.h"

namespace ouro::tools {

/// Files that rank 0 writes; empty: not.
struct Outputs {
  std::string json, csv, plot;
};

/// Before training: whether files can be written there. Makes them, empty. Errors: resource.
Status try_outputs(const Outputs&);
/// Errors: resource.
Status write_outputs(const Outputs&, const TrainReport&);

/// While training: one line rewritten on a terminal, ten lines elsewhere.
class Progress {
 public:
  explicit Progress(int steps);  ///< up to this one
  void operator()(int step, double loss, double consensus) const;

 private:
  int steps_;
  bool terminal_;
};

/// One line. `gpu`: its name, or empty.
std::string summary(const TrainReport&, const std::string& gpu);
/// The curves of --plot.
std::string picture(const TrainReport&);

}  // namespace ouro::tools

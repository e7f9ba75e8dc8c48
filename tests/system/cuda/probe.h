// Questions about undocumented behaviour of driver and device that ouro's GPU paths rely on. Asked by
// gpu_probe, one process per question, since an answer may be a hang.
#pragma once
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// The answer to a question.
struct Answer {
  bool good = false;  ///< ouro's paths work as they are
  std::string text;   ///< as text, with a time or a number
};

struct Question {
  const char* name;  ///< on the command line
  const char* text;
  /// Blocks streams for at most `patience` before it releases them; a driver call may still never return.
  Result<Answer> (*ask)(Gpu&, int device, std::chrono::milliseconds patience);
};
/// All questions, with those of thread_questions().
std::vector<Question> questions();
/// Those that several threads ask together.
std::span<const Question> thread_questions();

}  // namespace ouro::gpu

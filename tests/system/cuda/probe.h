// What a driver and a device do where no document promises it, and what ouro's paths on GPUs rest on. Asked
// by gpu_probe, a process each, since an answer may be a hang.
#pragma once
#include <chrono>
#include <span>
#include <string>

#include "kernels/device/gpu.h"

namespace ouro::gpu {

/// What came out.
struct Answer {
  bool good = false;  ///< ouro's paths can do as they do
  std::string text;   ///< in words, with a time or a number
};

struct Question {
  const char* name;  ///< of the command line
  const char* text;
  /// Waits for `patience` at most before it lets go of what it holds up; a driver may still not come back.
  Result<Answer> (*ask)(Gpu&, int device, std::chrono::milliseconds patience);
};
std::span<const Question> questions();

}  // namespace ouro::gpu

// gpu_probe --list: prints a line "name text" per question. gpu_probe NAME: asks that question on device 0
// and prints the answer. Run by gpu-check before everything else. Exit code: 0 good, 1 not as ouro needs it,
// 2 wrong usage, 3 an error, 77 no GPU.
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "tests/system/cuda/probe.h"

int main(int argc, char** argv) {
  using namespace ouro::gpu;
  const std::string_view name = argc == 2 ? argv[1] : "";
  if (name == "--list") {
    for (const Question& q : questions()) fmt::print("{} {}\n", q.name, q.text);
    return 0;
  }
  for (const Question& q : questions()) {
    if (name != q.name) continue;
    if (gpu().devices() == 0) {
      fmt::print("SKIP: no CUDA device: {}\n", gpu().version());
      return 77;
    }
    const auto answer = q.ask(gpu(), 0, std::chrono::seconds(2));
    fmt::print("{}\n", answer.ok() ? answer->text : answer.status().message());
    std::fflush(stdout);
    // Exits without waiting for streams of the device, which may still be blocked.
    std::_Exit(!answer.ok() ? 3 : answer->good ? 0 : 1);
  }
  fmt::print(stderr, "gpu_probe: expected --list or the name of a question, got '{}'\n", name);
  return 2;
}

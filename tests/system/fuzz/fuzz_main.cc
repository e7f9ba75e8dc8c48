// One libFuzzer program: OURO_FUZZ_TARGET names the function of targets.h. Run by tools/gate fuzz.
#include <cstdio>
#include <string>

#include "tests/system/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ouro::fuzz::OURO_FUZZ_TARGET({data, size});
  return 0;
}

// With OURO_FUZZ_SEEDS set, the seeds are written into that folder before the run.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("OURO_FUZZ_SEEDS");
  if (!folder) return 0;
  for (const auto& entry : ouro::fuzz::entries()) {
    if (entry.target != ouro::fuzz::OURO_FUZZ_TARGET) continue;
    int i = 0;
    for (const auto& seed : entry.seeds()) {
      const std::string path = std::string(folder) + "/seed-" + std::to_string(i++);
      if (std::FILE* file = std::fopen(path.c_str(), "we")) {
        std::fwrite(seed.data(), 1, seed.size(), file);
        std::fclose(file);
      }
    }
  }
  return 0;
}

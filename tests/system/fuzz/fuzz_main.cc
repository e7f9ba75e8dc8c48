// The libFuzzer program: the variable OURO_FUZZ_TARGET names the function of targets.h. Run by
// tools/gate fuzz.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/system/fuzz/targets.h"

namespace {
const ouro::fuzz::Entry* g_entry = nullptr;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  g_entry->target({data, size});
  return 0;
}

// If OURO_FUZZ_SEEDS is set, writes the seeds into that folder before the run.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("OURO_FUZZ_TARGET");
  for (const auto& entry : ouro::fuzz::entries())
    if (name && std::string_view(name) == entry.name) g_entry = &entry;
  if (!g_entry) {
    std::fputs("OURO_FUZZ_TARGET names no target\n", stderr);
    std::exit(2);
  }
  const char* const folder = std::getenv("OURO_FUZZ_SEEDS");
  if (!folder) return 0;
  int i = 0;
  for (const auto& seed : g_entry->seeds()) {
    const std::string path = std::string(folder) + "/seed-" + std::to_string(i++);
    if (std::FILE* file = std::fopen(path.c_str(), "we")) {
      std::fwrite(seed.data(), 1, seed.size(), file);
      std::fclose(file);
    }
  }
  return 0;
}

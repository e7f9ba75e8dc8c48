// Runs each target over the files FOLDER/TARGET/* of the given folders and over its seeds. Its coverage is
// measured by tools/gate fuzz --coverage.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/system/fuzz/targets.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  for (const auto& entry : ouro::fuzz::entries()) {
    std::size_t inputs = 0, bytes = 0;
    const auto run = [&](const ouro::wire::Bytes& b) {
      entry.target(b);
      ++inputs, bytes += b.size();
    };
    for (const auto& seed : entry.seeds()) run(seed);
    for (int i = 1; i < argc; ++i) {
      std::error_code none;
      for (const auto& file : fs::directory_iterator(fs::path(argv[i]) / entry.name, none)) {
        std::ifstream in(file.path(), std::ios::binary);
        run({std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
      }
    }
    std::printf("%-18s %6zu inputs %8zu bytes\n", entry.name, inputs, bytes);
  }
}

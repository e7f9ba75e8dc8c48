// Runs each fuzz target over its corpus and some ten thousand mutations of it; works in every build.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

#include "tests/system/fuzz/targets.h"

namespace ouro::fuzz {
namespace {

class Corpus : public testing::TestWithParam<Entry> {};

wire::Bytes mutate(wire::Bytes b, std::mt19937_64& random) {
  for (auto n = 1 + random() % 3; n > 0; --n) {
    const std::size_t at = b.empty() ? 0 : random() % b.size();
    switch (random() % 6) {
      case 0:
        b.resize(at);
        break;
      case 1:
        b.insert(b.begin() + static_cast<std::ptrdiff_t>(at), random() % 64,
                 static_cast<std::uint8_t>(random()));
        break;
      case 2:
        if (!b.empty()) b.erase(b.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 3:
        if (!b.empty()) b[at] = static_cast<std::uint8_t>(random() % 2 ? 0xff : 0);
        break;
      default:
        if (!b.empty()) b[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
        break;
    }
  }
  return b;
}

/// The repository's corpus files of a target, sorted by name.
std::vector<wire::Bytes> files_of(const char* target) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(OURO_FUZZ_CORPUS) / target, none))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<wire::Bytes> all;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    all.emplace_back((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  }
  return all;
}

TEST_P(Corpus, SeedsAndMutationsKeepTheParsersPromises) {
  std::mt19937_64 random(1);
  const Entry& entry = GetParam();
  auto seeds = entry.seeds();
  for (wire::Bytes& b : files_of(entry.name)) seeds.push_back(std::move(b));
  ASSERT_FALSE(seeds.empty());
  // Truncations and changes of each seed: the same number of cases for each target, whatever the size of
  // its corpus.
  const std::size_t cases = entry.slow ? 600 : 12'000, each = cases / seeds.size() + 1;
  for (const auto& seed : seeds) {
    entry.target(seed);
    const std::size_t cuts = std::min(seed.size(), each / 4);
    for (std::size_t n = 0; n < cuts; ++n) entry.target(wire::View(seed).first(n * seed.size() / cuts));
    for (std::size_t i = 0; i < each; ++i) entry.target(mutate(seed, random));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(entries().begin(), entries().end()),
                         [](const auto& info) { return info.param.name; });

// Deeper than a stack allows; mutations do not reach this depth.
TEST(Depth, DocumentsOfAnyDepthAreReadWithoutRecursion) {
  constexpr std::size_t kDepth = 200'000;
  const auto nested = [&](std::string_view before, std::string_view after) {
    wire::Bytes b(before.begin(), before.end());
    b.insert(b.end(), kDepth, '[');
    b.insert(b.end(), kDepth, ']');
    b.insert(b.end(), after.begin(), after.end());
    return b;
  };
  using namespace std::string_view_literals;
  tune(nested(R"({"ouro_tune": 1, "rules": )", "}"));
  tune(nested(R"({"ouro_tune": )", "}"));
  cluster(nested(R"({"nodes": )", "}"));
  results(nested("\0{\"results\": "sv, "}"));
  checkpoint(nested("\0{\"ouro-train state\": 3, \"run\": {\"a\": "sv,
                    "}, \"step\": 1, \"parts\": [], \"checksum\": 1}\n"));
}

}  // namespace
}  // namespace ouro::fuzz

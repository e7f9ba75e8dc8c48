// Each fuzz target over its seeds and some ten thousand mutations of them: what every build can run.
#include <gtest/gtest.h>

#include <random>

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

TEST_P(Corpus, SeedsAndMutationsKeepTheParsersPromises) {
  std::mt19937_64 random(1);
  const auto seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (const auto& seed : seeds) {
    GetParam().target(seed);
    for (std::size_t n = 0; n < seed.size(); ++n) GetParam().target(wire::View(seed).first(n));
    for (int i = 0; i < 2000; ++i) GetParam().target(mutate(seed, random));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(entries().begin(), entries().end()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ouro::fuzz

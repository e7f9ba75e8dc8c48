// The digits data set: 1797 images of 8x8 pixels in a fixed shuffled order, 1437 rows to train, 360 to test.
// Used by ouro-train, its tests and benches.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::models {

struct Digits {
  static constexpr std::uint32_t kRows = 1797;
  static constexpr std::uint32_t kTrainRows = 1437;  ///< rows 0..1436; the others are for testing
  static constexpr std::uint32_t kTestRows = kRows - kTrainRows;
  static constexpr int kPixels = 64;
  static constexpr int kClasses = 10;

  std::vector<float> pixels;         ///< kRows x kPixels, row-major, in [0, 1] in steps of 1/16
  std::vector<std::uint8_t> labels;  ///< kRows, 0..9

  std::span<const float> image(std::uint32_t row) const {
    return {pixels.data() + std::size_t{row} * kPixels, kPixels};
  }
};

/// 0..n-1, shuffled by the linear congruential generator s <- (1103515245 s + 12345) mod 2^31 (Fisher-Yates,
/// from the last entry down). A closed form, so that every language and platform obtains the same order.
std::vector<std::uint32_t> lcg_permutation(std::uint32_t n, std::uint32_t seed);

/// Rows of 65 integers separated by commas: 64 pixels 0..16, then the label. Row j of the result is row
/// lcg_permutation(kRows, 12345)[j] of the text. `source` names the text in errors. Errors: invalid, with
/// row, column (both from 1) and what was found.
Result<Digits> parse_digits(std::string_view text, std::string_view source);

/// The path of a data file: in OURO_DATA_DIR if that is set, else in <program>/../share/ouro/data, else in
/// the source tree that the program was built from. Errors: invalid, listing all places searched.
Result<std::filesystem::path> find_data_file(std::string_view name);

/// Finds, reads and parses "digits.csv".
Result<Digits> load_digits();

}  // namespace ouro::models

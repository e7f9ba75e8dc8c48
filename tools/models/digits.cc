// Finding, reading and shuffling the digits data set.
// Used through digits.h.
#include "tools/models/digits.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/core/env.h"

namespace ouro::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kSplitSeed = 12345;
constexpr int kMaxPixel = 16;
constexpr int kColumns = Digits::kPixels + 1;

Status bad_cell(std::string_view source, std::uint32_t row, int column, const std::string& what) {
  return invalid(fmt::format("{}: row {}, column {}: {}", source, row + 1, column + 1, what));
}

/// Reads one line into a row of the file-ordered set.
Status parse_row(std::string_view line, std::string_view source, std::uint32_t row, float* pixels,
                 std::uint8_t* label) {
  for (int column = 0; column < kColumns; ++column) {
    const bool last = column == kColumns - 1;
    const std::size_t comma = line.find(',');
    const std::string_view cell = line.substr(0, comma);
    if (!last && comma == std::string_view::npos)
      return bad_cell(source, row, column,
                      fmt::format("the row ends here; expected {} columns, found {}", kColumns, column + 1));
    if (last && comma != std::string_view::npos)
      return bad_cell(source, row, column, fmt::format("expected {} columns, found more", kColumns));
    const int limit = last ? Digits::kClasses - 1 : kMaxPixel;
    int value = -1;
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size() || value < 0 || value > limit)
      return bad_cell(
          source, row, column,
          fmt::format("expected {} 0..{}, found \"{}\"", last ? "a label" : "a pixel", limit, cell));
    if (last)
      *label = static_cast<std::uint8_t>(value);
    else
      pixels[column] = static_cast<float>(value) / float{kMaxPixel};
    line.remove_prefix(last ? line.size() : comma + 1);
  }
  return {};
}

}  // namespace

std::vector<std::uint32_t> lcg_permutation(std::uint32_t n, std::uint32_t seed) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::uint64_t s = seed;
  for (std::uint32_t i = n; i-- > 1;) {
    s = (1103515245 * s + 12345) % (std::uint64_t{1} << 31);
    std::swap(order[i], order[s % (i + 1)]);
  }
  return order;
}

Result<Digits> parse_digits(std::string_view text, std::string_view source) {
  std::vector<float> pixels(std::size_t{Digits::kRows} * Digits::kPixels);
  std::vector<std::uint8_t> labels(Digits::kRows);
  std::uint32_t row = 0;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (row == Digits::kRows)
      return invalid(fmt::format("{}: expected {} rows, found more", source, Digits::kRows));
    OURO_TRY(parse_row(line, source, row, &pixels[std::size_t{row} * Digits::kPixels], &labels[row]));
    ++row;
  }
  if (row != Digits::kRows)
    return invalid(fmt::format("{}: expected {} rows, found {}", source, Digits::kRows, row));

  Digits shuffled;
  shuffled.pixels.reserve(pixels.size());
  shuffled.labels.reserve(labels.size());
  for (const std::uint32_t from : lcg_permutation(Digits::kRows, kSplitSeed)) {
    const auto first = pixels.begin() + std::ptrdiff_t{from} * Digits::kPixels;
    shuffled.pixels.insert(shuffled.pixels.end(), first, first + Digits::kPixels);
    shuffled.labels.push_back(labels[from]);
  }
  return shuffled;
}

Result<fs::path> find_data_file(std::string_view name) {
  std::error_code ignored;
  const auto directory = env::text("OURO_DATA_DIR");
  if (!directory.ok()) return directory.status();
  if (*directory) {  // a directory that the user named is never overruled
    const fs::path path = fs::path(**directory) / name;
    if (fs::is_regular_file(path, ignored)) return path;
    return invalid(fmt::format("no file {} (OURO_DATA_DIR={})", path.string(), **directory));
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share/ouro/data" / name;
  if (fs::is_regular_file(installed, ignored)) return installed;
  return invalid(
      fmt::format("no file {}; set OURO_DATA_DIR to the directory that holds {}", installed.string(), name));
}

Result<Digits> load_digits() {
  const Result<fs::path> path = find_data_file("digits.csv");
  if (!path) return path.status();
  std::ifstream file(*path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return Status(Reason::resource, fmt::format("{}: cannot be read", path->string()));
  return parse_digits(text, path->string());
}

}  // namespace ouro::models

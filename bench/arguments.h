// Command lines of benchmarks: --help, and whole numbers in a range. Used by the programs of this folder.
#pragma once
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

namespace ouro::bench {

/// Argument i, or `fallback` if there are fewer; nullopt: not a whole number from `low` to `high`.
inline std::optional<int> number(int argc, char** argv, int i, int fallback, int low, int high) {
  if (argc <= i) return fallback;
  const std::string_view text = argv[i];
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    return std::nullopt;
  return value;
}

/// Prints `usage` and returns the exit code if the program should end: 0 after --help, 2 if `right` is false.
inline std::optional<int> help_or_refuse(int argc, char** argv, bool right, const char* usage) {
  const bool help = argc > 1 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h");
  if (right && !help) return std::nullopt;
  std::fprintf(help ? stdout : stderr, "usage: %s\n", usage);
  return help ? 0 : 2;
}

}  // namespace ouro::bench

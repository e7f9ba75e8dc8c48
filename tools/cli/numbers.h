// Validators for numbers in options, with messages that name the limit. Used by the parsers of programs.
// CLI11's own checks accept nan, and show a missing limit as a number of 309 digits.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>

namespace ouro::tools {

/// Reads numbers as CLI11 does (0x10 and 010 are 16 and 8); nullopt if it is not a number or T
/// cannot hold it.
template <class T>
std::optional<T> read_number(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  T value{};
  if constexpr (std::is_integral_v<T>)
    value = std::strtoll(text.c_str(), &end, 0);
  else
    value = std::strtod(text.c_str(), &end);
  const bool whole = !text.empty() && end == text.c_str() + text.size();
  if (!whole || (std::is_integral_v<T> && errno != 0) || !std::isfinite(static_cast<double>(value)))
    return std::nullopt;
  return value;
}

/// Accepts a finite number of T's kind for which `good` holds. `limit` completes the message "expected
/// a number ".
template <class T, class Good>
CLI::Validator number(const std::string& limit, Good good) {
  return CLI::Validator(
      [limit, good](std::string& text) {
        // Always signed: an unsigned option would take "-2" for 2^64 - 2.
        using Wide = std::conditional_t<std::is_integral_v<T>, long long, double>;
        if (const std::optional<Wide> value = read_number<Wide>(text); value && good(*value))
          return std::string();
        return fmt::format("expected a {}number {}, found {}", std::is_integral_v<T> ? "whole " : "", limit,
                           text);
      },
      limit);
}

template <class T>
CLI::Validator at_least(T low) {
  return number<T>(fmt::format("of {} or more", low), [low](auto x) { return x >= low; });
}
/// Accepts real numbers above 0.
inline CLI::Validator above_zero() {
  return number<double>("above 0", [](double x) { return x > 0; });
}
template <class T>
CLI::Validator between(T low, T high) {
  return number<T>(fmt::format("from {} to {}", low, high),
                   [low, high](auto x) { return x >= low && x <= high; });
}

}  // namespace ouro::tools

// Variables of an environment, as text and numbers. Used by the files that read the variables of launchers.
#pragma once
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "runtime/core/env.h"
#include "runtime/core/status.h"

namespace ouro {

/// Reads one environment. An empty variable counts as unset.
class Variables {
 public:
  explicit Variables(const Environment& env) : env_(env) {}

  /// "" if unset.
  std::string_view text(const std::string& name) const {
    const auto it = env_.find(name);
    return it == env_.end() ? std::string_view() : std::string_view(it->second);
  }
  bool has(const std::string& name) const { return !text(name).empty(); }
  Result<int> number(const std::string& name) const {
    const std::string_view value = text(name);
    int out = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error != std::errc() || end != value.data() + value.size()) {
      return invalid(fmt::format("{}={} is not an integer", name, value));
    }
    return out;
  }
  /// The first of the names that is set, or "".
  std::string first(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return name;
    }
    return "";
  }

 private:
  const Environment& env_;
};

}  // namespace ouro

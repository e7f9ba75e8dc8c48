// NCCL's variables and configuration files. See variables.h.
#include "api/nccl/variables.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "runtime/core/env.h"
#include "runtime/core/per_process.h"

namespace ouro::nccl {
namespace {

struct Value {
  std::string text, origin;
};
using Values = std::map<std::string, Value>;

std::string trimmed(const std::string& s) {
  const auto first = s.find_first_not_of(" \t\r\n"), last = s.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : s.substr(first, last - first + 1);
}

/// Adds the KEY=VALUE lines of one file; existing keys keep their value.
void read_file(const std::string& path, Values* values) {
  std::ifstream in(path);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::size_t eq = line.find('=');
    if (trimmed(line).starts_with('#') || eq == std::string::npos) continue;
    values->emplace(trimmed(line.substr(0, eq)),
                    Value{trimmed(line.substr(eq + 1)), path + ":" + std::to_string(number)});
  }
}

const Values& of_files() {
  static constinit MadeOnce<const Values> values;
  return values.get([] {
    Values all;
    const char* const chosen = std::getenv("NCCL_CONF_FILE");
    const char* const home = std::getenv("HOME");
    if (chosen && *chosen != '\0')
      read_file(chosen, &all);
    else if (home && *home != '\0')
      read_file(std::string(home) + "/.nccl.conf", &all);
    read_file("/etc/nccl.conf", &all);
    return all;
  });
}

}  // namespace

std::optional<std::string> variable(const std::string& name) {
  if (const char* const set = std::getenv(name.c_str())) {
    std::string text = trimmed(set);
    return text.empty() ? std::nullopt : std::optional(std::move(text));
  }
  const auto it = of_files().find(name);
  return it == of_files().end() || it->second.text.empty() ? std::nullopt : std::optional(it->second.text);
}

Result<std::optional<long long>> number(const std::string& name, const char* expected) {
  const auto text = variable(name);
  if (!text) return std::optional<long long>();
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text->c_str(), &end, 0);
  if (errno != 0 || end != text->c_str() + text->size())
    return invalid(fmt::format("{}={}; expected {}", name, *text, expected));
  return std::optional(value);
}

Result<bool> flag(const std::string& name, bool fallback) {
  OURO_ASSIGN(const auto value, number(name, "0 or 1"));
  return value ? *value != 0 : fallback;
}

std::map<std::string, std::string> variables_set() {
  std::map<std::string, std::string> all;
  for (const auto& [name, value] : process_environment())
    if (name.starts_with("NCCL_") && !value.empty()) all.emplace(name, "environment");
  for (const auto& [name, value] : of_files())
    if (!value.text.empty()) all.emplace(name, value.origin);
  return all;
}

}  // namespace ouro::nccl

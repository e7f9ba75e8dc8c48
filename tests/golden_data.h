// Reference results: files of the folder OURO_GOLDEN_DIR, by default the project's own copy. Tests contain no
// cases in code: they run the cases of the files, and report how many there were. Used by tests with the
// label `golden`.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef OURO_GOLDEN_DEFAULT  // CMake defines where they are in the source
#define OURO_GOLDEN_DEFAULT "tests/golden"
#endif

namespace ouro::test {

inline std::filesystem::path golden_dir() {
  const char* given = std::getenv("OURO_GOLDEN_DIR");
  return given && *given ? given : OURO_GOLDEN_DEFAULT;
}

/// The parsed file; throws, with the path, if it is missing or not JSON.
template <class Json = nlohmann::json>
Json golden(const std::string& file, const std::filesystem::path& folder = golden_dir()) {
  const auto path = folder / file;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("no golden file " + path.string());
  try {
    return Json::parse(in);
  } catch (const nlohmann::json::exception& e) {
    throw std::runtime_error(path.string() + ": " + e.what());
  }
}

/// Counts cases by kind; the destructor prints the counts: "golden: 12 topologies". Kinds given to the
/// constructor are printed even if their count is zero.
class CasesRun {
 public:
  CasesRun(std::initializer_list<std::string> kinds) {
    for (const std::string& kind : kinds) counts_[kind] = 0;
  }
  void none_yet(const std::string& kind) { counts_[kind]; }
  void add(const std::string& kind) { ++counts_[kind]; }
  ~CasesRun() {
    for (const auto& [kind, n] : counts_) fmt::print("golden: {} {}\n", n, kind);
  }
  CasesRun(const CasesRun&) = delete;
  CasesRun& operator=(const CasesRun&) = delete;

 private:
  std::map<std::string, int> counts_;
};

/// The parts of a case's name, "ring/lws2/accum4". The code that implements a part takes it; a part that
/// nothing takes is an error that names it, so that no case runs as something other than its name says.
class NameParts {
 public:
  explicit NameParts(std::string name) : name_(std::move(name)) {
    for (std::size_t at = 0; at <= name_.size();) {
      const std::size_t end = std::min(name_.find('/', at), name_.size());
      parts_.push_back(name_.substr(at, end - at));
      at = end + 1;
    }
  }
  std::string first() {
    if (parts_.empty()) throw std::invalid_argument("the name '" + name_ + "' has too few parts");
    std::string part = parts_.front();
    parts_.erase(parts_.begin());
    return part;
  }
  /// Takes `word`; returns whether it is one of the parts.
  bool flag(const std::string& word) {
    const auto it = std::find(parts_.begin(), parts_.end(), word);
    if (it == parts_.end()) return false;
    parts_.erase(it);
    return true;
  }
  /// Takes the part that begins with `word`; returns the rest of it: "4" of "accum4".
  std::optional<std::string> after(const std::string& word) {
    for (auto it = parts_.begin(); it != parts_.end(); ++it)
      if (it->size() > word.size() && it->starts_with(word)) {
        std::string rest = it->substr(word.size());
        parts_.erase(it);
        return rest;
      }
    return {};
  }
  std::optional<double> number(const std::string& word) {
    const auto rest = after(word);
    return rest ? std::optional(number_of(*rest)) : std::nullopt;
  }
  std::optional<int> integer(const std::string& word) {
    const auto x = number(word);
    if (x && *x != static_cast<int>(*x)) bad(fmt::format("{}{}", word, *x));
    return x ? std::optional(static_cast<int>(*x)) : std::nullopt;
  }
  int required(const std::string& word) {
    const auto x = integer(word);
    if (!x) throw std::invalid_argument("the name '" + name_ + "' has no part '" + word + "<number>'");
    return *x;
  }
  /// A topology's local world size. In runs of models, alternating-exp-ring has 2 unless the name
  /// gives another.
  int local_size(const std::string& topology) {
    return integer("lws").value_or(topology == "alternating-exp-ring" ? 2 : 1);
  }
  /// `text`, which must be a number as a whole.
  double number_of(const std::string& text) const {
    char* end = nullptr;
    const double x = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') bad(text);
    return x;
  }
  void expect_none_left() const {
    if (!parts_.empty()) bad(parts_.front());
  }
  [[noreturn]] void bad(const std::string& part) const {
    throw std::invalid_argument("no test knows '" + part + "' in the name '" + name_ + "'");
  }

 private:
  std::string name_;
  std::vector<std::string> parts_;
};

/// Calls run(ranks, name, case) for each case of a file {"<ranks>": {"<name>": case}}; keys that begin with
/// '_' are remarks. A case that throws is a failure, and the next one is still run.
template <class Run>
void for_each_run(const std::string& file, const Run& run) {
  const nlohmann::json all = golden(file);
  for (const auto& [ranks, runs] : all.items()) {
    if (ranks.starts_with("_")) continue;
    for (const auto& [name, want] : runs.items()) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                         fmt::format("{}: {} ranks, {}", file, ranks, name));
      try {
        const int n = static_cast<int>(NameParts(ranks).number_of(ranks));
        run(n, name, want);
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    }
  }
}

}  // namespace ouro::test

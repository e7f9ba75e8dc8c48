// Algorithms and protocols by NCCL's names. See tuning.h.
#include "api/nccl/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace ouro::nccl {
namespace {

constexpr std::string_view kAlgorithms[] = {"tree",     "ring", "collnetdirect", "collnetchain", "nvls",
                                            "nvlstree", "pat"};
constexpr std::string_view kProtocols[] = {"ll", "ll128", "simple"};

struct Function {
  std::string_view nccl, ouro;
  bool ring, tree;  ///< whether ouro has this algorithm for the function
};
constexpr Function kFunctions[] = {{"allreduce", "all_reduce", true, true},
                                   {"broadcast", "broadcast", false, true},
                                   {"reduce", "reduce", false, true},
                                   {"allgather", "all_gather", true, false},
                                   {"reducescatter", "reduce_scatter", true, false}};

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    std::string part = text.substr(at, end - at);
    std::erase_if(part, [](unsigned char c) { return std::isspace(c) != 0; });
    std::transform(part.begin(), part.end(), part.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (!part.empty()) parts.push_back(std::move(part));
    at = end + 1;
  }
  return parts;
}

/// Calls `one` with each function that a part of the value names ("" for all) and the words that
/// remain for it.
Status for_each_list(const char* variable, const std::string& value, std::span<const std::string_view> known,
                     const std::function<void(std::string_view function, const std::vector<std::string>& left,
                                              bool excludes)>& one) {
  for (const std::string& part : parts_of(value, ';')) {
    const std::size_t colon = part.find(':');
    const std::string function = colon == std::string::npos ? "" : part.substr(0, colon);
    if (!function.empty() && std::none_of(std::begin(kFunctions), std::end(kFunctions),
                                          [&](const Function& f) { return f.nccl == function; }))
      return invalid(
          fmt::format("{}={}: there is no function '{}'; expected allreduce, broadcast, "
                      "reduce, allgather or reducescatter",
                      variable, value, function));
    std::string list = colon == std::string::npos ? part : part.substr(colon + 1);
    const bool excludes = list.starts_with('^');
    if (excludes) list.erase(0, 1);
    const std::vector<std::string> named = parts_of(list, ',');
    std::vector<std::string> left;
    for (const std::string_view k : known)
      if ((std::find(named.begin(), named.end(), k) != named.end()) != excludes) left.emplace_back(k);
    if (left.empty())
      return invalid(fmt::format("{}={}: '{}' leaves nothing to choose", variable, value, part));
    one(function, left, excludes);
  }
  return {};
}

}  // namespace

Result<Choice> parse_algorithms(const std::string& value) {
  Choice choice;
  OURO_TRY(for_each_list(
      "NCCL_ALGO", value, kAlgorithms,
      [&](std::string_view function, const std::vector<std::string>& left, bool excludes) {
        const bool chosen = !excludes && left.size() == 1 && (left[0] == "ring" || left[0] == "tree");
        for (const Function& f : kFunctions) {
          if (!function.empty() && f.nccl != function) continue;
          if (chosen && (left[0] == "ring" ? f.ring : f.tree))
            choice.rows += fmt::format("{}{}:{}", choice.rows.empty() ? "" : ",", f.ouro, left[0]);
          else if (!function.empty() || !chosen)
            choice.declined += fmt::format("{}{}", choice.declined.empty() ? "" : ", ", f.ouro);
        }
      }));
  return choice;
}

Status check_protocols(const std::string& value) {
  return for_each_list("NCCL_PROTO", value, kProtocols, [](auto&&...) {});
}

}  // namespace ouro::nccl

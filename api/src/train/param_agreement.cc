// Checks of parameter lists, and the comparison of lists and options between ranks. See param_agreement.h.
#include "api/src/train/param_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "api/src/train/average_agreement.h"

namespace ouro::train {
namespace {

Status check_one(const Param& p) {
  const auto wrong = [&](const std::string& what) {
    return invalid(fmt::format("parameter '{}' {}", p.name, what));
  };
  if (p.value.data == nullptr && p.value.count > 0) return wrong("is a null pointer");
  if (const std::int64_t n = elements_of(p.shape);
      !p.shape.empty() && (n < 0 || static_cast<std::size_t>(n) != p.value.count))
    return wrong(fmt::format("has {} elements, its shape ({}) {}; expected contiguous memory", p.value.count,
                             fmt::join(p.shape, ","), n < 0 ? "none" : fmt::format("{}", n)));
  if (p.order == Order::channels_last && p.shape.size() != 4)
    return wrong(fmt::format("is channels_last with {} dimensions; expected 4", p.shape.size()));
  if (frozen(p)) return {};
  if (!trains(p.value.dtype))
    return wrong(fmt::format("is of type {}; expected double, float, bfloat16 or half", name(p.value.dtype)));
  if (p.grad.count != p.value.count || p.grad.dtype != p.value.dtype || p.grad.device != p.value.device)
    return wrong("has a gradient of another count, type or device");
  return {};
}

Status check_apart(std::span<const Param> params) {
  std::set<std::string_view> names;
  std::vector<std::pair<std::uintptr_t, const Param*>> starts;
  for (const Param& p : params) {
    if (!names.insert(p.name).second) return invalid(fmt::format("two parameters are named '{}'", p.name));
    if (p.value.count > 0) starts.emplace_back(reinterpret_cast<std::uintptr_t>(p.value.data), &p);
  }
  std::sort(starts.begin(), starts.end());
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i].first < starts[i - 1].first + starts[i - 1].second->value.bytes())
      return invalid(fmt::format("parameters '{}' and '{}' share memory; expected tied weights once",
                                 starts[i - 1].second->name, starts[i].second->name));
  return {};
}

std::uint64_t digest_of(const Param& p) {
  Digest d;
  d.add(p);
  d.add(frozen(p));
  return d.value();
}

std::string words_of(const Param& p) {
  return fmt::format("'{}' {} ({}){}{}", p.name, name(p.value.dtype), fmt::join(p.shape, ","),
                     p.order == Order::channels_last ? " channels_last" : "", frozen(p) ? " frozen" : "");
}

/// Which parameter it is that the ranks have not in common; all ranks call it.
Status explain_difference(Group& g, std::span<const Param> params, std::size_t count_of_rank_0) {
  std::vector<std::uint64_t> root(count_of_rank_0);
  for (std::size_t i = 0; i < count_of_rank_0 && g.rank() == 0; ++i) root[i] = digest_of(params[i]);
  OURO_TRY(broadcast(g, std::span<const std::uint64_t>(root), std::span(root), 0));
  std::uint64_t first = 0;
  while (first < std::min(root.size(), params.size()) && root[first] == digest_of(params[first])) ++first;
  if (first == root.size() && first == params.size()) first = ~std::uint64_t{0};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(g.size()));
  OURO_TRY(all_gather(g, std::span<const std::uint64_t>(&first, 1), std::span(all)));
  const auto worst = std::min_element(all.begin(), all.end());
  return invalid(
      fmt::format("the ranks have different parameters: rank {} differs from rank 0 at parameter {}; "
                  "this rank has {} there",
                  worst - all.begin(), *worst, *worst < params.size() ? words_of(params[*worst]) : "none"));
}

}  // namespace

Status check_trainable(std::span<const Param> params) {
  if (params.empty()) return invalid("no parameters; expected at least one");
  for (const Param& p : params) OURO_TRY(check_one(p));
  if (std::all_of(params.begin(), params.end(), frozen))
    return invalid("all parameters are frozen; expected a gradient's memory for at least one");
  return check_apart(params);
}

std::uint64_t digest_of(std::span<const Param> params) {
  Digest d;
  for (const Param& p : params) d.add(digest_of(p));
  return d.value();
}

Status agree(Group& g, std::span<const Param> params, std::span<const Claim> claims, const Status& mine) {
  enum { kRefuses, kCount, kParams, kClaims };
  const std::size_t words = kClaims + claims.size();
  std::vector<std::uint64_t> my_words(words), all(words * static_cast<std::size_t>(g.size()));
  my_words[kRefuses] = mine.ok() ? 0 : 1;
  my_words[kCount] = params.size();
  my_words[kParams] = digest_of(params);
  std::transform(claims.begin(), claims.end(), my_words.begin() + kClaims,
                 [](const Claim& c) { return c.digest; });
  const Status gathered = all_gather(g, std::span<const std::uint64_t>(my_words), std::span(all));
  if (!mine.ok()) return mine;  // of the two the one that can be mended here
  OURO_TRY(gathered);
  const auto of = [&](std::size_t rank, std::size_t word) { return all[rank * words + word]; };
  const auto n = static_cast<std::size_t>(g.size());
  bool same_params = true;
  for (std::size_t r = 0; r < n; ++r) {
    if (of(r, kRefuses) != 0)
      return invalid(fmt::format("rank {} refused its arguments; its own error says why", r));
    same_params &= of(r, kCount) == of(0, kCount) && of(r, kParams) == of(0, kParams);
  }
  if (!same_params) return explain_difference(g, params, of(0, kCount));
  for (std::size_t r = 1; r < n; ++r)
    for (std::size_t c = 0; c < claims.size(); ++c)
      if (of(r, kClaims + c) != of(0, kClaims + c))
        return invalid(fmt::format("rank {} has {} than rank 0; expected all alike", r, claims[c].other));
  return {};
}
Status agree(Group& g, std::span<const Claim> claims, const Status& mine) {
  return agree(g, {}, claims, mine);
}

}  // namespace ouro::train

// Digests, the reduction that compares them, and the search for the rank that differs. See comparison.h.
#include "api/train/common/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"

namespace ouro::train {
namespace {

/// The finaliser of splitmix64 (Steele, Lea, Flood, 2014).
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
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

Status differ(std::string_view call, const std::string& how) {
  return invalid(fmt::format("{}: the ranks differ: {}; expected all alike", call, how));
}

// ---- over one group, after a comparison has shown all ranks that they differ ----------------------

int rank_of_job(const Group& g, std::size_t r) { return g.ranks()[r]; }

/// Determines which claim differs, and on which rank.
Status explain_claims(Group& g, std::string_view call, std::span<const Claim> claims) {
  const std::size_t n = claims.size();
  std::vector<std::uint64_t> mine, all(n * static_cast<std::size_t>(g.size()));
  for (const Claim& c : claims) mine.push_back(c.value);
  OURO_TRY(all_gather(g, std::span<const std::uint64_t>(mine), std::span(all), kAuto));
  for (std::size_t r = 1; r < static_cast<std::size_t>(g.size()); ++r)
    for (std::size_t c = 0; c < n; ++c) {
      const std::uint64_t theirs = all[r * n + c], first = all[c];
      if (theirs == first) continue;
      return differ(call, fmt::format("rank {} has {} than rank {}{}", rank_of_job(g, r), claims[c].other,
                                      rank_of_job(g, 0),
                                      claims[c].counts ? fmt::format(" ({} and {})", theirs, first) : ""));
    }
  return invalid(fmt::format("{}: the ranks differ", call));
}

/// Determines which parameter differs between the ranks.
Status explain_params(Group& g, std::string_view call, std::span<const Param> params) {
  std::uint64_t count = params.size();
  OURO_TRY(broadcast(g, std::span<const std::uint64_t>(&count, 1), std::span(&count, 1), 0, kAuto));
  std::vector<std::uint64_t> root(count);
  for (std::size_t i = 0; i < count && g.rank() == 0; ++i) root[i] = digest_of(params[i]);
  OURO_TRY(broadcast(g, std::span<const std::uint64_t>(root), std::span(root), 0, kAuto));
  std::uint64_t first = 0;
  while (first < std::min(root.size(), params.size()) && root[first] == digest_of(params[first])) ++first;
  if (first == root.size() && first == params.size()) first = ~std::uint64_t{0};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(g.size()));
  OURO_TRY(all_gather(g, std::span<const std::uint64_t>(&first, 1), std::span(all), kAuto));
  const auto worst = std::min_element(all.begin(), all.end());
  return differ(call,
                fmt::format("rank {} differs from rank {} at parameter {}; this rank has {} there",
                            rank_of_job(g, static_cast<std::size_t>(worst - all.begin())), rank_of_job(g, 0),
                            *worst, *worst < params.size() ? words_of(params[*worst]) : "none"));
}

/// Ok if all ranks have taken part and none refuses; `found` then holds the reduced words.
Status gather_words(Group& g, std::string_view call, Comparison& found, const Status& mine) {
  const View words = found.view();
  Status exchanged = all_reduce(g, words, words, ReduceOp::max, kAuto);
  if (!mine.ok()) return mine;  // this rank's own error is the one that can be fixed here
  OURO_TRY(exchanged);
  return found.refused(call);
}

Comparison start(const Group& g, std::span<const Claim> claims, const Status& mine) {
  return mine.ok() ? Comparison(claims)
                   : Comparison::refusal(claims.size(), rank_of_job(g, static_cast<std::size_t>(g.rank())));
}

}  // namespace

void Digest::mix(std::uint64_t word) { state_ = scramble(state_ + 0x9e3779b97f4a7c15 + word); }
void Digest::add(double x) { mix(std::bit_cast<std::uint64_t>(x)); }
void Digest::add(std::string_view text) {
  add(text.size());
  for (const char c : text) add(static_cast<unsigned char>(c));
}
void Digest::add(const Param& p) {
  add(p.name);
  add(p.value.dtype);
  add(p.value.device.kind);
  add(p.value.count);
  add(p.shape.size());
  for (const std::int64_t d : p.shape) add(d);
  add(p.order);
}
std::uint64_t digest_of(std::span<const Param> params) {
  Digest d;
  for (const Param& p : params) d.add(digest_of(p));
  return d.value();
}

TensorClaims tensor_claims(std::uint64_t digest, std::size_t tensors, std::size_t elements) {
  return {{{"another number of tensors", tensors, true},
           {"another number of elements", elements, true},
           {"other names, shapes, types, devices, order or options", digest}}};
}

Comparison::Comparison(std::span<const Claim> claims) {
  for (const Claim& c : claims) words_.insert(words_.end(), {c.value, ~c.value});
  words_.push_back(0);
}

Comparison Comparison::refusal(std::size_t claims, int world_rank) {
  Comparison c{std::span<const Claim>()};
  c.words_.assign(2 * claims, ~std::uint64_t{0});
  c.words_.push_back(~static_cast<std::uint64_t>(world_rank));
  return c;
}

bool Comparison::agreed() const {
  for (std::size_t i = 0; i + 1 < words_.size(); i += 2)
    if (words_[i] != ~words_[i + 1]) return false;
  return words_.back() == 0;
}

Status Comparison::refused(std::string_view call) const {
  if (words_.back() == 0) return {};
  return invalid(
      fmt::format("{}: rank {} refused its arguments; its own error says why", call, ~words_.back()));
}

Status Comparison::verdict(std::string_view call, std::span<const Claim> mine) const {
  OURO_TRY(refused(call));
  for (std::size_t c = 0; c < mine.size(); ++c) {
    const std::uint64_t highest = words_[2 * c], lowest = ~words_[2 * c + 1];
    if (highest == lowest) continue;
    return differ(call, fmt::format("some have {} than others{}", mine[c].other,
                                    mine[c].counts ? fmt::format(" ({} to {}, this rank {})", lowest, highest,
                                                                 mine[c].value)
                                                   : ""));
  }
  return {};
}

Status compare(Group& g, std::string_view call, std::span<const Claim> claims, const Status& mine) {
  OURO_TRY(not_in_batch(call));
  if (g.size() <= 1) return mine;
  Comparison found = start(g, claims, mine);
  OURO_TRY(gather_words(g, call, found, mine));
  return found.agreed() ? Status{} : explain_claims(g, call, claims);
}

Status compare(Group& g, std::string_view call, std::span<const Param> params, std::span<const Claim> claims,
               const Status& mine) {
  const Claim own[] = {{"other parameters", digest_of(params)}};
  OURO_TRY(not_in_batch(call));
  if (g.size() <= 1) return mine;
  Comparison lists = start(g, own, mine);
  OURO_TRY(gather_words(g, call, lists, mine));
  return lists.agreed() ? compare(g, call, claims) : explain_params(g, call, params);
}

}  // namespace ouro::train

// Checks that all ranks pass consistent arguments, before any data moves, so that every rank gets the error.
// Used by the trainers and averages, to compare; and by the saved forms and optimisers, for their digests.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

/// Hashes numbers and texts into one word, which is the same on every rank of a job.
class Digest {
 public:
  template <class T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void add(T word) { mix(static_cast<std::uint64_t>(word)); }
  void add(std::string_view text);
  void add(const Param&);  ///< name, type, kind of device, count, shape, order
  void add(double);        ///< its bits
  std::uint64_t value() const { return state_; }

 private:
  void mix(std::uint64_t word);
  std::uint64_t state_ = 0x6f75726f;
};

/// Digest of the list, including which parameters are frozen.
std::uint64_t digest_of(std::span<const Param>);

/// A value that all ranks must have in common; `other`, a literal, completes "rank 2 has ... than rank 0".
struct Claim {
  std::string_view other;
  std::uint64_t value = 0;
  bool counts = false;  ///< the value is a number that is meaningful to a reader
};

/// Claims about a list of arrays; `digest` covers the arrays and the options of the call.
using TensorClaims = std::array<Claim, 3>;
TensorClaims tensor_claims(std::uint64_t digest, std::size_t tensors, std::size_t elements);

/// Claims as numbers that ranks reduce with max: each next to its complement, so that both the largest and
/// the smallest value result. For comparisons over several groups; compare() does it over a single group.
class Comparison {
 public:
  explicit Comparison(std::span<const Claim>);
  /// For a rank that cannot take part at all; `claims` is the number of claims.
  static Comparison refusal(std::size_t claims, int world_rank);
  View view() { return std::span(words_); }
  bool agreed() const;
  /// Not ok if a rank refused; names the first one.
  Status refused(std::string_view call) const;
  /// Ok, or invalid with the claim that differs, but not the rank; `mine` are this rank's values.
  Status verdict(std::string_view call, std::span<const Claim> mine) const;

 private:
  // (x, ~x) of each claim; last, ~(the lowest world rank that refuses), or 0.
  std::vector<std::uint64_t> words_;
};

/// Collective over the group: ok, or `invalid` on every rank, naming the first claim and rank (of the job)
/// that differ. If `mine` is not ok, this rank refuses and gets its own error, and the others get one that
/// names it. All ranks must pass the same claims, with any values. One small all-reduce, more if
/// ranks differ.
Status compare(Group&, std::string_view call, std::span<const Claim>, const Status& mine = {});
/// The same, but compares the parameters before all claims and names the first one that differs.
Status compare(Group&, std::string_view call, std::span<const Param>, std::span<const Claim>,
               const Status& mine);

}  // namespace ouro::train

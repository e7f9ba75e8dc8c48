// Do all ranks mean the same? Compared before anything moves, so that every rank gets the error. Used by the
// trainers and averages, to compare; and by the saved forms and optimisers, for their digests.
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

/// Mixes numbers and texts into one word; the same on every rank of a job.
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

/// Of the list, frozen or not included.
std::uint64_t digest_of(std::span<const Param>);

/// What all ranks must have alike; `other`, a literal, completes "rank 2 has ... than rank 0".
struct Claim {
  std::string_view other;
  std::uint64_t value = 0;
  bool counts = false;  ///< the value is a number that says something to a reader
};

/// Of a list of arrays; `digest`: of what they and the options of the call are.
using TensorClaims = std::array<Claim, 3>;
TensorClaims tensor_claims(std::uint64_t digest, std::size_t tensors, std::size_t elements);

/// Claims as numbers that ranks reduce with max: each beside its complement, so that the largest and the
/// smallest come out. For comparisons over several groups; compare() is the one over a single group.
class Comparison {
 public:
  explicit Comparison(std::span<const Claim>);
  /// This rank, which has `claims` of them, cannot take part at all.
  static Comparison refusal(std::size_t claims, int world_rank);
  View view() { return std::span(words_); }
  bool agreed() const;
  /// Names the first rank that refused.
  Status refused(std::string_view call) const;
  /// "who differs", without saying who: ok, or invalid; `mine` is what this rank has.
  Status verdict(std::string_view call, std::span<const Claim> mine) const;

 private:
  std::vector<std::uint64_t> words_;  // of each claim (x, ~x); ~(the lowest world rank that refuses), or 0
};

/// Collective over the group: ok, or `invalid` on every rank, which names the first claim and rank (of the
/// job) that differ. `mine` not ok: this rank refuses and gets its own error, the others get one that names
/// it. All ranks have the same claims, whatever their values. One small all-reduce, more where ranks differ.
Status compare(Group&, std::string_view call, std::span<const Claim>, const Status& mine = {});
/// The same, and before all claims the parameters: names the first that differs.
Status compare(Group&, std::string_view call, std::span<const Param>, std::span<const Claim>,
               const Status& mine);

}  // namespace ouro::train

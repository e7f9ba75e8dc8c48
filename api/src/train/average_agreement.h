// Do all ranks mean the same tensors? Compared before anything is averaged, so that every rank gets the
// error. Used by the averages of the trainers' layer (average.cc, federation*.cc, outer*.cc).
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

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

/// What a rank is about to do, as numbers that ranks reduce with max: each beside its complement, so that the
/// largest and the smallest come out.
class Agreement {
 public:
  Agreement() = default;
  Agreement(std::uint64_t digest, std::size_t tensors, std::size_t elements);
  /// This rank cannot take part at all.
  static Agreement refusal(int world_rank);
  std::span<std::uint64_t> words() { return words_; }
  View view() { return words(); }
  /// Something else that has to be alike.
  void also(std::uint64_t word);
  bool agreed() const;
  /// "who differs": invalid with what was found and what this rank has; `mine` is what it was at first.
  Status verdict(std::string_view call, const Agreement& mine) const;

 private:
  // digest, tensors, elements, each as (x, ~x); 1 + the world rank of who refuses, or 0
  std::array<std::uint64_t, 7> words_{};
};

/// Collective over the group: ok, or `invalid` on every rank. `mine` not ok: this rank refuses and gets its
/// own error, the others get one that names it.
Status agree(Group&, std::string_view call, const Agreement&, const Status& mine = {});

/// Elements of a shape; -1 where a dimension is negative or an address cannot count them.
std::int64_t elements_of(std::span<const std::int64_t> shape);
/// Floating-point numbers of 16 to 64 bits: what trains, and what averages.
constexpr bool trains(DType t) {
  return t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16;
}

/// Elements, types, device and memory of a list that is to be averaged. Errors: invalid, naming the
/// parameter. `gradients`: it is about the gradients, of those that have one.
Status check_tensors(std::string_view call, std::span<const Param>, bool gradients = false);

}  // namespace ouro::train

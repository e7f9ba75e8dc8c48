// Saved states of trainers: numbers and byte runs, concatenated without gaps, little-endian; last a checksum
// of everything before it. Used by gossip_save.cc, outer_save.cc, shard_save.cc.
#pragma once
#include <xxhash.h>

#include <cstring>
#include <optional>
#include <type_traits>

#include "ouro/train/param.hpp"

namespace ouro::train {

class Writer {
 public:
  template <class T>
  void number(const T& x) {
    static_assert((std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>) ||
                  std::is_same_v<T, double>);
    const auto* at = reinterpret_cast<const std::byte*>(&x);
    out_.insert(out_.end(), at, at + sizeof x);
  }
  void bytes(CBytes b) {
    number(static_cast<std::uint64_t>(b.size()));
    out_.insert(out_.end(), b.begin(), b.end());
  }
  /// Appends the checksum and returns the state.
  Bytes take() {
    number(XXH3_64bits(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  Bytes out_;
};

/// Beyond the end, every number is zero and every byte run empty, and `whole` is false.
class Reader {
 public:
  /// A reader of the state that Writer::take returned, without the checksum; none: it is too short
  /// or damaged.
  static std::optional<Reader> checked(CBytes in) {
    std::uint64_t sum = 0;
    if (in.size() < sizeof sum) return {};
    std::memcpy(&sum, in.data() + in.size() - sizeof sum, sizeof sum);
    in = in.first(in.size() - sizeof sum);
    if (XXH3_64bits(in.data(), in.size()) != sum) return {};
    return Reader(in);
  }
  template <class T>
  T number() {
    T x{};
    if (in_.size() < sizeof x) return whole = false, x;
    std::memcpy(&x, in_.data(), sizeof x);
    in_ = in_.subspan(sizeof x);
    return x;
  }
  CBytes bytes() {
    const auto n = number<std::uint64_t>();
    if (in_.size() < n) return whole = false, CBytes{};
    const CBytes b = in_.first(n);
    in_ = in_.subspan(n);
    return b;
  }
  bool empty() const { return in_.empty(); }
  bool whole = true;

 private:
  explicit Reader(CBytes in) : in_(in) {}
  CBytes in_;
};

}  // namespace ouro::train

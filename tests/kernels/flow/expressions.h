// Symbolic values: which sum, with which association and in which precision, a value represents. Used by
// the verifier.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ouro::flow {

/// raw: an unchanged input; wide: in the accumulation type; rounded: a finished reduction.
enum class Kind : std::uint8_t { none, raw, wide, rounded };
inline const char* name(Kind k) {
  constexpr const char* kNames[] = {"nothing", "raw", "wide", "rounded"};
  return kNames[static_cast<int>(k)];
}

/// `expr` is an id of Expressions (in barriers: the set of ranks whose arrival the value implies).
struct Value {
  std::int64_t expr = -1;
  Kind kind = Kind::none;
};

/// Hash-consed sums: equal ids are equal expressions with equal association. Id key*n + rank is the leaf
/// "chunk `key` of the input of `rank`".
class Expressions {
 public:
  Expressions(int n, int keys) : n_(n), leaves_(std::int64_t{n} * keys) {}
  std::int64_t leaf(int rank, int key) const { return std::int64_t{key} * n_ + rank; }
  struct Sum {
    std::uint64_t ranks;
    std::int64_t key;
  };
  /// The ranks whose chunk `key` the expression adds up; key -1: different chunks, or one rank more
  /// than once.
  Sum of(std::int64_t id) const {
    if (id < leaves_) return {std::uint64_t{1} << (id % n_), id / n_};
    return sums_[static_cast<std::size_t>(id - leaves_)];
  }
  std::int64_t add(std::int64_t a, std::int64_t b) {
    const auto [at, fresh] =
        ids_.try_emplace(static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint64_t>(b),
                         leaves_ + static_cast<std::int64_t>(sums_.size()));
    if (fresh) {
      const Sum x = of(a), y = of(b);
      sums_.push_back({x.ranks | y.ranks, x.key == y.key && (x.ranks & y.ranks) == 0 ? x.key : -1});
    }
    return at->second;
  }
  std::int64_t scale(std::int64_t a, double weight) {
    const auto [at, fresh] =
        scaled_.try_emplace({a, weight}, leaves_ + static_cast<std::int64_t>(sums_.size()));
    if (fresh) sums_.push_back(Sum(of(a)));
    return at->second;
  }
  std::int64_t in_rank_order(int key) {
    std::int64_t id = leaf(0, key);
    for (int r = 1; r < n_; ++r) id = add(id, leaf(r, key));
    return id;
  }

 private:
  int n_;
  std::int64_t leaves_;
  std::vector<Sum> sums_;
  std::unordered_map<std::uint64_t, std::int64_t> ids_;
  std::map<std::pair<std::int64_t, double>, std::int64_t> scaled_;
};

}  // namespace ouro::flow

// Random choices of a run: all of them derive from its seed. Used by everything that is simulated.
#pragma once
#include <cstdint>

namespace simulate {

/// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mixed(seed)) {}
  std::uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15); }
  /// Uniform from 0 to n - 1.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  int pick(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }
  /// Logarithmic: every binary order of magnitude is equally likely, so short times are as frequent as
  /// long ones.
  std::int64_t spread(std::int64_t low, std::int64_t high) {
    int doublings = 0;
    while (low << (doublings + 1) <= high) ++doublings;
    const std::int64_t from = low << below(static_cast<std::uint64_t>(doublings) + 1);
    return between(from, from * 2 < high ? from * 2 : high);
  }

 private:
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  std::uint64_t state_;
};

}  // namespace simulate

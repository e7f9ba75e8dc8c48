// Detects that operations keep taking other times than expected. Used by groups that may measure again.
#pragma once
#include <cstdint>

namespace ouro::rt {

/// Evaluates samples of measured time divided by the expected time. A late rank makes an operation longer,
/// never shorter, so only the least sample of a window counts. A wrong expectation is off by a constant
/// factor; a factor that changes shows that processors have moved.
class Misses {
 public:
  static constexpr int kWindow = 8;  ///< samples
  /// unknown: the factor by which a ratio may be off if the usual one is not known; changed: by which the
  /// usual ratio may change. The default is for times that the model predicts.
  explicit Misses(double unknown = 3, double changed = 2) : unknown_(unknown), changed_(changed) {}
  /// The limits for times that the same operations took before.
  static Misses of_repetitions() { return Misses(1.5, 1.5); }
  /// Returns true if ratios keep missing, and the record should be checked.
  bool add(double ratio);
  /// A check has shown that the record holds: these ratios are due to the model, and the next check needs
  /// twice as many windows that miss.
  void record_holds();
  /// Nothing could be measured: the next check needs twice as many windows that miss.
  void nothing_found();
  /// Another record is in force, whose usual ratios are not known yet. Until it has settled, the next check
  /// needs twice as many windows that miss, so that records are not replaced again and again.
  void record_changed();

 private:
  static constexpr std::uint32_t kMost = 512;    // windows
  static constexpr std::uint32_t kCalm = 64;     // windows without a miss after which one miss suffices again
  static constexpr std::uint32_t kSettled = 16;  // the same after a change

  double unknown_, changed_;
  double least_ = 0, usual_ = 0;  // 0: not known
  int samples_ = 0;
  std::uint32_t missing_ = 0, calm_ = 0, patience_ = 1, enough_ = kCalm;
};

}  // namespace ouro::rt

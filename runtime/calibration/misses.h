// Detects that operations keep taking other times than predicted. Used by groups that may measure again.
#pragma once
#include <cstdint>

namespace ouro::rt {

/// Evaluates samples of measured time divided by the time that the model predicts. A late rank makes an
/// operation longer, never shorter, so the least sample of a window counts. A wrong model is off by a
/// constant factor; a factor that changes shows that processors have moved.
class Misses {
 public:
  static constexpr int kWindow = 8;  ///< samples
  /// Returns true if ratios keep missing, and the record should be checked.
  bool add(double ratio);
  /// A check has shown that the record holds: these ratios are due to the model, and the next check needs
  /// twice as many windows that miss.
  void record_holds();
  /// Nothing could be measured: the next check needs twice as many windows that miss.
  void nothing_found();
  /// Another record is in force, whose usual ratios are not known yet. The next check needs twice as many
  /// windows that miss, so that records are not replaced again and again.
  void record_changed();

 private:
  static constexpr double kUnknown = 3;  // factor by which a ratio may be off if the usual one is not known
  static constexpr double kChanged = 2;  // factor by which the usual ratio may change
  static constexpr std::uint32_t kMost = 512;  // windows
  static constexpr std::uint32_t kCalm = 64;   // windows without a miss after which one miss suffices again

  double least_ = 0, usual_ = 0;  // 0: not known
  int samples_ = 0;
  std::uint32_t missing_ = 0, calm_ = 0, patience_ = 1;
};

}  // namespace ouro::rt

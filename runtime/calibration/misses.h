// Whether operations keep missing what is predicted of them. Used by groups that may measure again.
#pragma once
#include <cstdint>

namespace ouro::rt {

/// Looks at samples: how long operations took, by how long the model says that they take. A rank that comes
/// late makes an operation longer, not shorter, so of a window of samples the least counts. A model is wrong
/// by factors that stay; what tells that processors have moved is a factor that changes.
class Misses {
 public:
  static constexpr int kWindow = 8;  ///< samples
  /// True: they keep missing, and the record is to be checked.
  bool add(double ratio);
  /// A check has shown that the record holds: such ratios are the model's, and the next check takes twice as
  /// many windows that miss.
  void record_holds();
  /// Nothing could be measured: the next try takes twice as many windows that miss.
  void nothing_found();
  /// Another record is in force: nothing is known of its ratios. A record that is given up soon takes more
  /// misses the next time.
  void record_changed();

 private:
  static constexpr double kUnknown = 3;        // by which a ratio may be off where nothing is known of it
  static constexpr double kChanged = 2;        // by which it may change
  static constexpr std::uint32_t kMost = 512;  // windows
  static constexpr std::uint32_t kCalm = 64;   // windows without a miss after which the next is heard at once

  double least_ = 0, usual_ = 0;  // 0: none
  int samples_ = 0;
  std::uint32_t missing_ = 0, calm_ = 0, patience_ = 1;
};

}  // namespace ouro::rt

// Windows of samples. See misses.h.
#include "runtime/calibration/misses.h"

#include <algorithm>

namespace ouro::rt {

bool Misses::add(double ratio) {
  least_ = samples_ == 0 ? ratio : std::min(least_, ratio);
  if (++samples_ < kWindow) return false;
  samples_ = 0;
  const double around = usual_ > 0 ? usual_ : 1, by = usual_ > 0 ? changed_ : unknown_;
  if (least_ <= around * by && least_ * by >= around) {
    missing_ = 0;
    if (++calm_ >= enough_) calm_ = 0, patience_ = 1;
    return false;
  }
  calm_ = 0;
  return ++missing_ >= patience_;
}

void Misses::nothing_found() {
  missing_ = 0, patience_ = std::min(2 * patience_, kMost);
  enough_ = kCalm;
}

void Misses::record_holds() {
  usual_ = least_;
  nothing_found();
}

void Misses::record_changed() {
  usual_ = 0;
  nothing_found();
  enough_ = kSettled;
}

}  // namespace ouro::rt

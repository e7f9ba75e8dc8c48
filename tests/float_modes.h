// Floating-point modes other than the one in which programs start, for tests of what must not depend on them.
#pragma once
#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ouro::test {

struct FloatMode {
  const char* name;
  int rounding;
  bool flush,
      zeros;  // results that are subnormal become zero; operands are taken for zero (aarch64: both or none)
};
inline constexpr FloatMode kFloatModes[] = {
    {"flushes results", FE_TONEAREST, true, false}, {"takes operands for zero", FE_TONEAREST, false, true},
    {"flushes all", FE_TONEAREST, true, true},      {"rounds up", FE_UPWARD, false, false},
    {"rounds down", FE_DOWNWARD, false, false},     {"rounds to zero", FE_TOWARDZERO, true, true},
};

/// The mode of the calling thread, as the processor has it, without flags of what has occurred.
inline std::uint64_t float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;
#else
  std::uint64_t word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word));
  return word;
#endif
}

/// Sets a mode until its destructor restores the thread's own.
class InFloatMode {
 public:
  explicit InFloatMode(const FloatMode& mode) : before_(float_mode()) {
    std::fesetround(mode.rounding);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | (mode.flush ? 0x8000u : 0) | (mode.zeros ? 0x40u : 0));
#else
    if (mode.flush || mode.zeros) write(float_mode() | std::uint64_t{1} << 24);
#endif
    set_ = float_mode();
  }
  ~InFloatMode() { write(before_); }
  InFloatMode(const InFloatMode&) = delete;
  InFloatMode& operator=(const InFloatMode&) = delete;
  /// Whether the thread is still in this mode.
  bool holds() const { return float_mode() == set_; }

 private:
  static void write(std::uint64_t word) {
#if defined(__x86_64__)
    _mm_setcsr(static_cast<unsigned>(word));
#else
    __asm__ volatile("msr fpcr, %0" : : "r"(word));
#endif
  }
  std::uint64_t before_, set_ = 0;
};

}  // namespace ouro::test

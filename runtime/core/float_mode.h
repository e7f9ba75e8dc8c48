// StandardFloats: the processor's floating-point mode in which the library computes, whatever the calling
// thread has set. Used around all loops of the host, by trainers, by the choice of algorithms, and by the
// threads of the library.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ouro {

/// While it lives, the calling thread rounds to nearest, keeps subnormal numbers and does not trap: the mode
/// in which programs start. The destructor restores the thread's own mode. Threads differ in it: a library
/// that was built with -ffast-math, torch.set_flush_denormal(True) or fesetround() sets it, and sums must not
/// depend on that. Numbers that are in memory before the constructor are read after it; the compiler may
/// still move arithmetic on other numbers out of this object's life, so loops belong into functions that are
/// not inlined.
class StandardFloats {
 public:
  StandardFloats() : own_(get()) {
    if (differs(own_)) set(kStandard);
    __asm__ volatile("" : : : "memory");
  }
  ~StandardFloats() {
    __asm__ volatile("" : : : "memory");
    if (differs(own_)) set(own_);
  }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kStandard = 0x1f80;  // MXCSR: all exceptions masked
  static constexpr Word kFlags = 0x3f;       // of exceptions that have occurred: not a part of the mode
  static Word get() { return _mm_getcsr(); }
  static void set(Word w) { _mm_setcsr(w); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kStandard = 0;  // FPCR
  static constexpr Word kFlags = 0;     // they are in FPSR
  static Word get() {
    Word w;
    __asm__ volatile("mrs %0, fpcr" : "=r"(w));
    return w;
  }
  static void set(Word w) { __asm__ volatile("msr fpcr, %0" : : "r"(w) : "memory"); }
#else
#error "StandardFloats: how does this processor set its rounding mode?"
#endif
  static bool differs(Word w) { return (w & ~kFlags) != kStandard; }

  const Word own_;
};

}  // namespace ouro

// Bounds on measured time in tests. A bound is either kHang, in any test, or a guaranteed time, in a suite
// named Timed*. Used by all tests.
#pragma once
#include <chrono>

namespace ouro::test {

/// An upper limit for everything that ends at all, however slow or busy the processor is: anything longer is
/// a hang. Shorter than ctest's time limit of a test, so that the test itself can report what hangs.
inline constexpr std::chrono::seconds kHang{20};

}  // namespace ouro::test

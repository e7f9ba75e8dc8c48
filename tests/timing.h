// Bounds on measured time in tests. A bound is either kHang, in any test, or a promised time, in a suite
// named Timed*. Used by all tests.
#pragma once
#include <chrono>

namespace ouro::test {

/// Nothing that ends at all takes so long, however slow or busy the processor is: what does hangs. Shorter
/// than the time after which ctest ends a test, so that the test can say what hangs.
inline constexpr std::chrono::seconds kHang{20};

}  // namespace ouro::test

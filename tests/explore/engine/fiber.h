// Fibers: contexts that run on one thread and switch explicitly. Used by the machine.
#pragma once
#include <cstddef>

namespace explore {

/// A stack and the point at which it resumes. Its function never returns.
class Context {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;
  Context() = default;  ///< the context of the thread itself
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  /// Makes the next switch to this context call `f`. Frames that were on its stack are dropped, not unwound.
  void start(void (*f)());
  /// Resumes `to`; returns when some context switches back.
  void switch_to(Context& to);

 private:
  void* pointer_ = nullptr;  // stack pointer while the context does not run
  std::byte* stack_ = nullptr;
};

}  // namespace explore

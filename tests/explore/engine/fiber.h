// Fibers: contexts that run on one thread and hand the processor over by themselves. Used by the machine.
#pragma once
#include <cstddef>

namespace explore {

/// A stack and where it goes on. Its function never returns.
class Context {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;
  Context() = default;  ///< of the thread itself
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  /// The next switch to it calls `f`. What ran on its stack before is forgotten, not unwound.
  void start(void (*f)());
  /// Goes on with `to`; returns when somebody switches back.
  void switch_to(Context& to);

 private:
  void* pointer_ = nullptr;  // of the stack, when it does not run
  std::byte* stack_ = nullptr;
};

}  // namespace explore

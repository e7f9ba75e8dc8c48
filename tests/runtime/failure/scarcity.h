// Memory and threads that run out where a test says so. Used by the tests of scarcity.
#pragma once

namespace ouro::test {

/// From now on the n-th allocation of the calling thread throws std::bad_alloc, and those that follow
/// succeed; n from 0. Until allow_memory() on the same thread.
void refuse_memory(int n);
/// Whether an allocation has been refused.
bool allow_memory();
bool has_refused();  ///< the same, and it goes on

/// While it lives, the calling thread, or every one, can start no thread.
class NoThreads {
 public:
  enum class For { caller, all };
  explicit NoThreads(For = For::caller);
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  int refused() const;  ///< to the calling thread
};

}  // namespace ouro::test

// Makes memory or threads run out at a given point. Used by the tests of scarcity.
#pragma once

namespace ouro::test {

/// The n-th allocation of the calling thread from now on (n from 0) throws std::bad_alloc, and later ones
/// succeed. In force until allow_memory() on the same thread.
void refuse_memory(int n);
/// Ends refuse_memory(). Returns whether an allocation has been refused.
bool allow_memory();
bool has_refused();  ///< the same without ending it

/// During its lifetime, the calling thread, or every thread, cannot start threads.
class NoThreads {
 public:
  enum class For { caller, all };
  explicit NoThreads(For = For::caller);
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  int refused() const;  ///< number of threads refused to the calling thread
};

}  // namespace ouro::test

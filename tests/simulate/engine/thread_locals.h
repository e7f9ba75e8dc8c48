// Per-thread state of C++, for fibers that share one thread: each has its own copy, which is saved while it
// does not run.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace simulate {

/// The thread-local variables of this program (not those of libraries that it is linked to).
std::span<std::byte> thread_locals();
/// Their initial values in a new thread.
std::vector<std::byte> fresh_thread_locals();
/// The two words of the C++ library that record which exceptions this thread is handling.
void** exception_words();

}  // namespace simulate

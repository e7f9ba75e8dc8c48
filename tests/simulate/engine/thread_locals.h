// What a thread of C++ has of its own, for fibers that share one: each has its copy while it does not run.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace simulate {

/// The thread-local variables of this program (libraries that it links to are not among them).
std::span<std::byte> thread_locals();
/// As a new thread finds them.
std::vector<std::byte> fresh_thread_locals();
/// The two words of the C++ library that say which exceptions this thread handles.
void** exception_words();

}  // namespace simulate

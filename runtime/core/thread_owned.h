// Things that a thread owns through a pointer of its own, usable for as long as the thread runs at all, and
// how such pointers are found quickly. Used by kept plans, batches and the last error of the C interface.
#pragma once
#include <cxxabi.h>

#include <utility>

/// Before a thread_local that every call reads: it is found without a call (0 in place of about 3 ns), in
/// static thread-local storage. A library that holds CUDA's static run time cannot have that: the run time
/// brings a page of such storage that is aligned to a page, a library has one block of it for all, and dlopen
/// finds neither the room nor the alignment ("cannot allocate memory in static TLS block"; no tunable of the
/// loader raises the alignment). There it is found as any other. In programs that link the archive it makes
/// no difference.
#ifdef OURO_HOLDS_CUDART
#define OURO_STATIC_TLS
#else
#define OURO_STATIC_TLS [[gnu::tls_model("initial-exec")]]
#endif

namespace ouro {

/// Makes the T of the calling thread; `slot` is a thread_local pointer without a destructor, null until now.
/// The T goes with the other thread-locals of its thread, and `slot` is null again. Thus it differs from a
/// thread_local T: what runs after that (destructors of thread-locals that were made earlier, on the main
/// thread atexit handlers and destructors of static objects) finds null, and makes another. One that the main
/// thread makes so late stays until the process ends.
template <class T>
T* make_for_thread(T*& slot) {
  static const char here = 0;  // in the library that must stay until the destructor has run
  slot = new T;
  // Unlike a thread_local's own registration this can be made again, also while such destructors run.
  abi::__cxa_thread_atexit([](void* at) noexcept { delete std::exchange(*static_cast<T**>(at), nullptr); },
                           &slot, const_cast<char*>(&here));
  return slot;
}

}  // namespace ouro

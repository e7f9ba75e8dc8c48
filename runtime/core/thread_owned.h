// Objects that a thread owns through a thread_local pointer and can use until it ends, and fast access to
// such pointers. Used by kept plans, batches and the last error of the C interface.
#pragma once
#include <cxxabi.h>

#include <utility>

/// Attribute of a thread_local that every call reads. It places the variable in static thread-local storage
/// (TLS), where access needs no function call (0 instead of about 3 ns). A library that contains CUDA's
/// static runtime cannot use it: the runtime brings a page of TLS that is aligned to a page, a library has a
/// single TLS block, and dlopen finds neither the room nor the alignment ("cannot allocate memory in static
/// TLS block"; no tunable of the loader raises the alignment). In such a library the variable is accessed
/// like any other thread_local. In programs that link the archive the attribute makes no difference.
#ifdef OURO_HOLDS_CUDART
#define OURO_STATIC_TLS
#else
#define OURO_STATIC_TLS [[gnu::tls_model("initial-exec")]]
#endif

namespace ouro {

/// Makes the T of the calling thread. `slot` is a thread_local pointer without a destructor, null until now.
/// The T is destroyed with the other thread-locals of its thread, and `slot` is null again. Unlike with a
/// thread_local T, code that runs after that (destructors of thread-locals that were made earlier; on the
/// main thread atexit handlers and destructors of static objects) finds null and makes another T. One that
/// the main thread makes so late lives until the process ends.
template <class T>
T* make_for_thread(T*& slot) {
  static const char here = 0;  // an address in the library, which must be loaded until the destructor has run
  slot = new T;
  // Unlike the registration of a thread_local, this one can be repeated, even while such destructors run.
  abi::__cxa_thread_atexit([](void* at) noexcept { delete std::exchange(*static_cast<T**>(at), nullptr); },
                           &slot, const_cast<char*>(&here));
  return slot;
}

}  // namespace ouro

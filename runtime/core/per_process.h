// State of a process that works in forked children, too: a child that is forked while another thread of its
// parent is in the library finds locks that are held for ever and values that nobody finishes.
#pragma once
#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/core/fork.h"

namespace ouro {

/// One T for each process, made by its default constructor at the first use and never destroyed: threads may
/// use it while the program ends. A forked child has another than its parent, whose is left alone. Several
/// threads may each make one at the first use; one of them stays.
template <class T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  T& get() {
    Made* newest = newest_.load(std::memory_order_acquire);
    if (newest != nullptr && newest->forks == forks()) return newest->value;
    auto* const own = new Made(newest);
    if (newest_.compare_exchange_strong(newest, own, std::memory_order_acq_rel)) return own->value;
    delete own;  // another thread was faster
    return newest->value;
  }
  T& operator*() { return get(); }
  T* operator->() { return &get(); }

 private:
  struct Made {
    explicit Made(Made* parents) : before(parents) {}
    unsigned forks = ouro::forks();
    T value{};
    Made* before;  // the parent's, kept in sight of leak checkers
  };
  std::atomic<Made*> newest_{nullptr};
};

/// A value that is made once, at the first use, and never destroyed. A forked child keeps the value that its
/// parent had finished and makes one that was not finished anew.
template <class T>
class MadeOnce {
 public:
  constexpr MadeOnce() = default;
  MadeOnce(const MadeOnce&) = delete;
  MadeOnce& operator=(const MadeOnce&) = delete;

  /// `make` runs in one thread while others wait; if it throws, the next call runs it again.
  template <class Make>
  T& get(Make&& make) {
    if (T* const made = made_.load(std::memory_order_acquire)) return *made;
    const std::lock_guard lock(making_.get());
    T* made = made_.load(std::memory_order_acquire);
    if (made == nullptr) {
      made = new T(std::forward<Make>(make)());
      made_.store(made, std::memory_order_release);
    }
    return *made;
  }

 private:
  std::atomic<T*> made_{nullptr};
  PerProcess<std::mutex> making_;
};

}  // namespace ouro

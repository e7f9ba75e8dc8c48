// Process-wide state that stays usable in forked children. If a child is forked while another thread of its
// parent is in the library, the child's copy has locks that are never released and values that are never
// finished. Used for all global state with a lock.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/core/fork.h"

namespace ouro {

/// One T per process, made by its default constructor at the first use and never destroyed, because threads
/// may use it while the program ends. A forked child gets a T of its own; its copy of the parent's T is not
/// touched. At the first use several threads may each make a T; one of them is kept.
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
    Made* before;  // the parent's, kept reachable for leak checkers
  };
  std::atomic<Made*> newest_{nullptr};
};

/// A value that is made once, at the first use, and never destroyed. A forked child keeps a value that its
/// parent had finished making, and makes an unfinished one anew.
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

/// A value that is read without a lock and replaced as a whole. Replaced versions are never freed, as other
/// threads may still read them; only for values that change a few times in the life of a process. A forked
/// child keeps its parent's value.
template <class T>
class CopyOnWrite {
 public:
  constexpr CopyOnWrite() = default;
  CopyOnWrite(const CopyOnWrite&) = delete;
  CopyOnWrite& operator=(const CopyOnWrite&) = delete;

  /// The current value; nullptr before the first change. The pointer is valid for the rest of the
  /// process's life.
  const T* get() const {
    const Version* const newest = newest_.load(std::memory_order_acquire);
    return newest == nullptr ? nullptr : &newest->value;
  }
  /// Copies the value, calls `change(copy)` and publishes the copy. Starts again if another thread
  /// was faster.
  template <class Change>
  const T& change(Change&& change) {
    const Version* before = newest_.load(std::memory_order_acquire);
    for (;;) {
      auto next = std::make_unique<Version>(Version{before == nullptr ? T() : before->value, before});
      change(next->value);
      if (newest_.compare_exchange_weak(before, next.get(), std::memory_order_acq_rel))
        return next.release()->value;
    }
  }

 private:
  struct Version {
    T value;
    const Version* before;  // kept reachable for leak checkers
  };
  std::atomic<const Version*> newest_{nullptr};
};

}  // namespace ouro

// MessagesInFlight: counts the submissions of messages of a group that have not ended; while there are any,
// the objects that they need stay. Used by Group and Mailbox.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>

namespace ouro::rt {

class MessagesInFlight {
 public:
  /// One submission, until end() or the end of this object. Converts to false if it followed close().
  class One {
   public:
    explicit One(MessagesInFlight& all) : all_(all.begin() ? &all : nullptr) {}
    One(const One&) = delete;
    One& operator=(const One&) = delete;
    ~One() { end(); }
    explicit operator bool() const { return all_ != nullptr; }
    /// The group may be destroyed afterwards.
    void end() {
      if (MessagesInFlight* const all = std::exchange(all_, nullptr)) all->end();
    }

   private:
    MessagesInFlight* all_;
  };

  bool any() const { return count() > 0; }
  std::uint64_t count() const { return word_.load(std::memory_order_acquire) / kOne; }
  bool closed() const { return (word_.load(std::memory_order_acquire) & kClosed) != 0; }
  /// No submission may begin from now on.
  void close() { word_.fetch_or(kClosed, std::memory_order_acq_rel); }

 private:
  bool begin() {
    if ((word_.fetch_add(kOne, std::memory_order_acquire) & kClosed) == 0) return true;
    end();
    return false;
  }
  void end() { word_.fetch_sub(kOne, std::memory_order_release); }

  // One word, so that each submission is ordered before close() or after it.
  static constexpr std::uint64_t kClosed = 1, kOne = 2;
  std::atomic<std::uint64_t> word_{0};
};

}  // namespace ouro::rt

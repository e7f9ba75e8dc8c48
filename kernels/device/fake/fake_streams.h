// The streams of a FakeGpu in one process. Used by its parts that enqueue or wait.
#pragma once
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kernels/device/fake/fake_queue.h"

namespace ouro::gpu::fake {

inline bool is_legacy(const void* handle) { return handle == nullptr || handle == kLegacyStream; }

/// Makes and ends streams, puts work onto them or into their captures, and waits for them. Its lock also
/// guards captures, events and graphs.
class Streams {
 public:
  Streams(const FakeOptions&, std::shared_ptr<Control>, Handles&);
  ~Streams();  ///< ends all waits, drops what is enqueued, and joins all threads
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  /// `blocking`: what is on it and what is on the legacy stream of its device follow each other.
  Result<Stream> create(int device, int priority, bool blocking = false);
  Status destroy(Stream);
  Status synchronize(Stream);
  Result<bool> query(Stream);
  Status enqueue(Stream, FakeOp kind, Work);
  /// Waits for all work of a device, however long that takes; breaks captures on it.
  Status synchronize_device(int device);
  /// Waits for all work of a device (negative: of all devices), with a limit. `why`: what waits.
  Status quiesce(int device, const char* why = "releasing memory");
  /// Holds something until all work that is enqueued on a device has ended.
  void keep_until_idle(int device, const std::shared_ptr<const void>&);
  int count();

  std::mutex& lock() { return mutex_; }
  // With the lock held.
  Result<std::shared_ptr<Queue>> find(Stream);
  /// Onto a stream, or into its capture; there, only work has to be joined.
  Status push(Queue&, Op, bool is_work = true);
  void end_capture(const std::shared_ptr<Capture>&);  ///< its streams are in none from now on

 private:
  std::vector<std::shared_ptr<Queue>> queues(int device);
  std::shared_ptr<Queue> of_thread(int device);
  /// The order between the legacy stream and blocking ones, before something is pushed onto one of them.
  Status keep_legacy_order(Queue&);
  static Status follow(Queue& later, Queue& first);
  std::shared_ptr<Queue> make(int device, std::string name, bool blocking);

  const FakeHarsh harsh_;
  const std::shared_ptr<Control> control_;
  Handles& handles_;
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<Queue>> streams_;
  std::vector<std::shared_ptr<Queue>> defaults_;  ///< the legacy stream of each device
  std::map<std::pair<std::thread::id, int>, std::shared_ptr<Queue>> of_threads_;  ///< their default streams
  int blocking_ = 0;                             ///< streams in order with the legacy ones; they are few
  std::vector<std::shared_ptr<Queue>> retired_;  ///< destroyed, perhaps still with work
  /// Of each device, as many as streams share; and streams that have been made there.
  std::vector<std::vector<std::shared_ptr<Connection>>> connections_;
  std::vector<std::size_t> made_;
};

}  // namespace ouro::gpu::fake

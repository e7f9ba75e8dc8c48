// The streams of a FakeGpu in one process. Used by its parts that enqueue or wait.
#pragma once
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kernels/device/fake/fake_queue.h"

namespace ouro::gpu::fake {

inline bool is_legacy(const void* handle) { return handle == nullptr || handle == kLegacyStream; }

/// Makes and ends streams, enqueues work on them or in their captures, and waits for them. Its lock also
/// guards captures, events and graphs.
class Streams {
 public:
  Streams(const FakeOptions&, std::shared_ptr<Control>, Handles&);
  ~Streams();  ///< ends all waits, drops enqueued work, and joins all threads
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  /// `blocking`: its work and that of the legacy stream of its device run one after the other.
  Result<Stream> create(int device, int priority, bool blocking = false);
  Result<Stream> create_foreign(int device);
  Status check_context(Stream);
  Status destroy(Stream);
  Status synchronize(Stream);
  Result<bool> query(Stream);
  Status enqueue(Stream, FakeOp kind, Work);
  /// Waits for all work of a device, however long that takes; breaks captures on it.
  Status synchronize_device(int device);
  /// Waits for all work of a device (negative: of all devices), with a limit. `why` names the caller
  /// in the error.
  Status quiesce(int device, const char* why = "releasing memory");
  /// Keeps an object until all work that is enqueued on a device has ended.
  void keep_until_idle(int device, const std::shared_ptr<const void>&);
  int count();

  std::mutex& lock() { return mutex_; }
  // Called with the lock held.
  Result<std::shared_ptr<Queue>> find(Stream);
  /// Adds an operation to a stream, or to its capture; in a capture, only work has to be joined.
  Status push(Queue&, Op, bool is_work = true);
  void end_capture(const std::shared_ptr<Capture>&);  ///< its streams are in no capture from now on

 private:
  std::vector<std::shared_ptr<Queue>> queues(int device);
  std::shared_ptr<Queue> of_thread(int device);
  /// Orders the legacy stream and blocking ones before an operation is added to one of them.
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
  std::set<void*> foreign_;                      ///< handles of streams of another context
  int blocking_ = 0;                             ///< streams in order with the legacy ones; they are few
  std::vector<std::shared_ptr<Queue>> retired_;  ///< destroyed, perhaps still with work
  /// The hardware queues of each device, which its streams share; and the number of streams that have been
  /// made there.
  std::vector<std::vector<std::shared_ptr<Connection>>> connections_;
  std::vector<std::size_t> made_;
};

}  // namespace ouro::gpu::fake

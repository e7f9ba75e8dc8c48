// GpuStream: a stream of a GPU, ours or the user's, as the rest of the library sees streams; and marks in it.
// Used by groups and, through the public handles, by users.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kernels/device/gpu.h"
#include "kernels/gpu/await_host.h"
#include "runtime/stream/device_pools.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

class GpuStream final : public Stream, public std::enable_shared_from_this<GpuStream> {
 public:
  /// A stream of our own. Priority: -1 low, 0 normal, 1 high.
  static Result<std::shared_ptr<GpuStream>> create(int device, int priority);
  /// The user's. It may be destroyed before this, but not before the last call on this. The default stream of
  /// a thread (cudaStreamPerThread) is that of the thread that wraps it.
  static Result<std::shared_ptr<GpuStream>> wrap(int device, void* handle);
  ~GpuStream() override;

  /// For work that is enqueued next: ends_with() is forgotten. On a stream that two threads use it is not
  /// trusted: one may enqueue work that it took the handle for earlier.
  const gpu::Stream& get() const {
    const auto me = std::this_thread::get_id();
    std::thread::id user;
    if (!user_.compare_exchange_strong(user, me, std::memory_order_relaxed) && user != me)
      several_users_.store(true, std::memory_order_relaxed);
    given_.fetch_add(1, std::memory_order_relaxed);
    return stream_;
  }
  /// For queries.
  const gpu::Stream& peek() const { return stream_; }
  /// get() for the program, which may enqueue work at any time from now on.
  const gpu::Stream& lend() {
    lent_.store(true, std::memory_order_relaxed);
    return get();
  }
  /// All that the stream has been given by now has ended when `end` is passed. last() then needs no event.
  void ends_with(const std::shared_ptr<Mark>& end);
  int device() const { return stream_.device; }
  GpuStream* gpu() override { return this; }
  /// Two objects of one stream have the same; no two streams of a process have.
  std::uint64_t identity() const { return identity_; }
  bool is(const GpuStream& other) const { return device() == other.device() && identity_ == other.identity_; }
  /// Whether the calling thread may use it. Errors: invalid, for the default stream of another thread, which
  /// CUDA would take for that of this one; those of usable().
  Status check_thread() const;

  /// Runs f in stream order: work that follows on the stream starts after f has returned. While the stream is
  /// capturing, f becomes part of the graph and runs at each replay (and lives as long as this stream; on a
  /// user's stream, for ever, because CUDA does not report the end of a graph); the WorkState then ends
  /// with the first.
  std::shared_ptr<WorkState> enqueue(std::function<Status()> f) override;
  /// The same, and then these copies, which begin when f has returned. Work of other streams is not held up
  /// by them where await_in_kernels() applies. *work is that of f. Errors: those of a copy; f runs all the
  /// same. `ended`, if given, is a number to write after all that; if a kernel writes it, it names no word
  /// any more, else the caller enqueues that.
  Status enqueue(std::function<Status()> f, std::span<const gpu::HostCopy> then,
                 std::shared_ptr<WorkState>* work, gpu::NumberedWord* ended = nullptr);
  std::shared_ptr<WorkState> last() override;
  std::shared_ptr<WorkState> drained() override;
  void after(std::shared_ptr<WorkState> mark) override;
  /// From now on functions on streams of this device run in the call that enqueues them, once the stream has
  /// finished its work: a stream that waited for the host would hold up others that share its hardware queue,
  /// which the host may need. Captured ones run as before.
  static void run_in_calls(int device);
  /// From now on streams of this device do not wait for functions: a kernel does, which leaves their hardware
  /// queue when it begins. The copies that follow a function are part of that kernel. run_in_calls() takes
  /// precedence.
  static void await_in_kernels(int device);
  /// Reports the status of a call on the device. If the device is lost, functions that wait in its streams
  /// are released, soon and on another thread. Functions that have not begun by then never run, and end with
  /// this status.
  void heed(const Status& of_device);
  /// The thread on which functions of this stream run; and one that waits for marks in it, and so cannot
  /// be the same.
  HostStream& helper() { return thread_of(helper_, "ouro-gpu-host"); }
  HostStream& watcher() { return thread_of(watcher_, "ouro-gpu-mark"); }

 private:
  struct Task;
  GpuStream(gpu::Stream, bool owned);
  /// What ends_with() was given, with `any` also before later work; nullptr: it is not known any more.
  std::shared_ptr<Mark> known_end(bool any);
  /// Removes the copies that it makes itself from `then`, and the word that it writes.
  Status launch(const std::shared_ptr<Task>&, std::span<const gpu::HostCopy>* then, gpu::NumberedWord* ended);
  Status copy(std::span<const gpu::HostCopy>) const;
  /// Made at first.
  Result<std::uint32_t*> own_word();
  static Status call(const std::function<Status()>&);
  HostStream& thread_of(std::unique_ptr<HostStream>&, const char* name);

  gpu::Stream stream_;
  bool owned_;
  std::thread::id of_thread_;  // whose default stream it is, or none
  std::uint64_t identity_;
  mutable std::atomic<std::uint64_t> given_{0};  // times that work may have been enqueued
  mutable std::atomic<std::thread::id> user_;    // the first that did
  mutable std::atomic<bool> several_users_{false};
  std::atomic<bool> lent_;  // the program has the handle
  std::mutex mutex_;
  std::weak_ptr<Mark> end_;  // of what was given at ended_at_; weak, since marks hold their stream
  std::uint64_t ended_at_ = 0;
  std::unique_ptr<HostStream> helper_, watcher_;
  std::uint32_t* word_ = nullptr;       // pinned: the stream waits for 1, and clears it, while the host works
  std::shared_ptr<PooledEvent> clear_;  // of the user's stream: reached when the stream has cleared word_
  std::vector<std::shared_ptr<Task>> kept_;  // of captured functions
};

/// Marks what is enqueued on a stream so far.
Result<std::shared_ptr<WorkState>> mark_now(const std::shared_ptr<GpuStream>&);

}  // namespace ouro::rt

/// Streams, events and the work that is enqueued on them. For users, who include ouro/ouro.hpp.
/// @file
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

#define OURO_API __attribute__((visibility("default")))    ///< part of the interface: exported
#define OURO_HIDDEN __attribute__((visibility("hidden")))  ///< not for users: a public class's hidden member

/// The interface: contexts, groups, streams, operations, and the types they use.
namespace ouro {

namespace rt {  // the implementation; opaque here
struct WorkState;
class Stream;
struct EventState;
}  // namespace rt

using Milliseconds = std::chrono::milliseconds;  ///< the unit of all deadlines

/// @defgroup streams Streams and work
/// @{

/// Handle of an operation in flight. Copies share one operation; all copies may be destroyed before it ends.
class OURO_API Work {
 public:
  Work();  ///< already complete, with success
  /// Blocks until the operation has ended or `deadline` has passed (then returns timeout, and the operation
  /// continues). May be called any number of times, from any thread. Negative: only the group's own
  /// deadline applies.
  Status wait(Milliseconds deadline = Milliseconds(-1)) const;
  bool test() const;      ///< whether it has ended (successfully or not); never blocks
  Status status() const;  ///< ok while in flight; its outcome afterwards
  /// Runs `f(outcome)` once the operation has ended: immediately in this thread if it already has, else in
  /// the stream's thread. A function that runs there may destroy groups and contexts (operations queued
  /// behind f then end as `revoked`), but must not wait for anything that is queued behind it.
  void then(std::function<void(const Status&)> f) const;
  explicit Work(std::shared_ptr<rt::WorkState> s) : state_(std::move(s)) {}  ///< for the library
  const std::shared_ptr<rt::WorkState>& impl() const { return state_; }      ///< for the library

 private:
  std::shared_ptr<rt::WorkState> state_;
};

/// Urgency of a stream relative to other streams of its device.
enum class Priority { low /**< less */, normal /**< the default */, high /**< more */ };

/// An ordered queue of operations, either on the host, where the stream's own thread runs them, or on a GPU.
/// A default-made Stream is "no stream": operations on it run in the calling thread. Copies name the same
/// queue; destroying the last copy drains and ends it (but not a stream of the user's).
class OURO_API Stream {
 public:
  Stream() = default;
  /// Creates a host stream. Errors: resource (no thread).
  static Result<Stream> create(Priority = Priority::normal, std::string name = "");
  /// Creates a stream of that device; `name` is used on the host only. Errors: invalid (no such
  /// device), device.
  static Result<Stream> create(Device, Priority = Priority::normal, std::string name = "");
  /// Wraps the user's own cudaStream_t (nullptr: the legacy default stream), which must outlive all copies of
  /// this. Operations on it may be captured into a graph together with the stream if all ranks do so. Errors:
  /// invalid (no such device).
  static Result<Stream> cuda(void* cuda_stream, int device);
  bool valid() const { return impl_ != nullptr; }  ///< false: "no stream"
  Device device() const;                           ///< its GPU, or the host
  void* cuda_handle() const;                       ///< the cudaStream_t; nullptr for host streams
  /// Enqueues an arbitrary host function, in order with operations.
  Work run(std::function<Status()> f) const;
  /// Waits for everything enqueued so far. Returns the first failure of anything that ran here since
  /// synchronize() last returned a failure or ok, even if a Work has already reported it; a `timeout`
  /// consumes no failure. The failure of a GPU operation may become known a moment after the stream has
  /// passed it; its Work waits until it is known.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  const std::shared_ptr<rt::Stream>& impl() const { return impl_; }  ///< for the library
  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  explicit Stream(std::shared_ptr<rt::Stream> i) : impl_(std::move(i)) {}
  std::shared_ptr<rt::Stream> impl_;
};

/// A mark in a stream. record() places it after everything enqueued so far; a later record() replaces it. "No
/// stream" never has anything enqueued, so a mark recorded on it is passed immediately, and wait_on() "no
/// stream" blocks the caller.
class OURO_API Event {
 public:
  Event();
  void record(const Stream&);         ///< sets the mark; replaces the previous one
  void record(const Work&);           ///< sets the mark at the end of one operation
  void wait_on(const Stream&) const;  ///< work enqueued on the stream from now on waits for the mark
  /// Waits, and returns the outcome of the operation before the mark, as Work::wait does.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  bool query() const;  ///< whether the mark has been passed; true if nothing was recorded

 private:
  std::shared_ptr<rt::EventState> state_;
};

/// A fixed set of streams for reuse.
class OURO_API StreamPool {
 public:
  static constexpr int kDefaultSize = 4;  ///< default number of streams in a pool
  /// Creates 1 to 256 streams. Errors: invalid (size, no such device), resource, device.
  static Result<StreamPool> create(int size = kDefaultSize, Priority = Priority::normal, Device = {});
  Stream next();  ///< round-robin; "no stream" if the pool is default-made and therefore empty
  Stream by_key(std::uint64_t key) const;                         ///< the same stream for the same key
  int size() const { return static_cast<int>(streams_.size()); }  ///< number of streams
  void after(const Stream& s) const;   ///< all pool streams wait for everything enqueued on `s` so far
  void before(const Stream& s) const;  ///< `s` waits for everything enqueued on all pool streams so far
  Status synchronize() const;  ///< waits for all streams; returns the failure of the first one that has one

 private:
  std::vector<Stream> streams_;
  std::size_t turn_ = 0;
};

/// @}

}  // namespace ouro

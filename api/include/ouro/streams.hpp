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
#define OURO_HIDDEN __attribute__((visibility("hidden")))  ///< of a public class, what is not for users

/// The interface: contexts, groups, streams, operations, and what they are made of.
namespace ouro {

namespace rt {  // the implementation; opaque here
struct WorkState;
class Stream;
struct EventState;
}  // namespace rt

using Milliseconds = std::chrono::milliseconds;  ///< the unit of all deadlines

/// @defgroup streams Streams and work
/// @{

/// Handle of an operation in flight. Copies share one operation; the last copy may go before it ends.
class OURO_API Work {
 public:
  Work();  ///< already complete, successfully
  /// Blocks until the operation has ended or `deadline` has passed (then: timeout, and the operation goes
  /// on). May be called any number of times, from any thread. Negative: the group's own deadline governs.
  Status wait(Milliseconds deadline = Milliseconds(-1)) const;
  bool test() const;      ///< has it ended (well or not)? Never blocks.
  Status status() const;  ///< ok while in flight; the outcome afterwards
  /// Runs `f(outcome)` once it has ended: at once in this thread if it already has, else in the stream's
  /// thread. There f may destroy groups and contexts (what is queued behind it then ends as `revoked`), but
  /// must not wait for anything that is queued behind it.
  void then(std::function<void(const Status&)> f) const;
  explicit Work(std::shared_ptr<rt::WorkState> s) : state_(std::move(s)) {}  ///< for the library
  const std::shared_ptr<rt::WorkState>& impl() const { return state_; }      ///< for the library

 private:
  std::shared_ptr<rt::WorkState> state_;
};

/// Urgency of a stream, relative to others of its device.
enum class Priority { low /**< less */, normal /**< the default */, high /**< more */ };

/// An ordered queue of operations: of the host, run by one thread of its own, or of a GPU. A default-made
/// Stream is "no stream": operations on it run in the caller. Copies name the same queue; the last one drains
/// and ends it (but not a stream of the user's).
class OURO_API Stream {
 public:
  Stream() = default;
  /// A stream of the host. Errors: resource (no thread).
  static Result<Stream> create(Priority = Priority::normal, std::string name = "");
  /// A new stream of that device; `name` is of use on the host only. Errors: invalid (no such device),
  /// device.
  static Result<Stream> create(Device, Priority = Priority::normal, std::string name = "");
  /// The user's own cudaStream_t (nullptr: the legacy default stream), which outlives all copies of this.
  /// Operations on it may be captured into a graph where the stream is: on all ranks alike. Errors: invalid
  /// (no such device).
  static Result<Stream> cuda(void* cuda_stream, int device);
  bool valid() const { return impl_ != nullptr; }  ///< false: "no stream"
  Device device() const;                           ///< its GPU, or the host
  void* cuda_handle() const;                       ///< the cudaStream_t; nullptr for streams of the host
  /// Enqueues any function of the host's; order with operations is kept.
  Work run(std::function<Status()> f) const;
  /// Waits for what is enqueued now. The first failure of anything that ran here since synchronize() last
  /// returned one or ok, whether or not a Work told it before; `timeout` takes none away. What an operation
  /// of a GPU failed with may become known a moment after the stream has passed it; its Work waits for that.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  const std::shared_ptr<rt::Stream>& impl() const { return impl_; }  ///< for the library
  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  explicit Stream(std::shared_ptr<rt::Stream> i) : impl_(std::move(i)) {}
  std::shared_ptr<rt::Stream> impl_;
};

/// A mark in a stream. record() takes the point after all that is enqueued now; a later record replaces it.
/// "No stream" has nothing enqueued, so its mark has been passed at once; who waits "on" it is the caller.
class OURO_API Event {
 public:
  Event();
  void record(const Stream&);         ///< sets the mark; replaces the one before
  void record(const Work&);           ///< the same, at the end of one operation
  void wait_on(const Stream&) const;  ///< work enqueued on the stream from now on starts after the mark
  /// The outcome of the operation before the mark, as Work::wait has it.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  bool query() const;  ///< has the mark been passed? True if nothing was recorded.

 private:
  std::shared_ptr<rt::EventState> state_;
};

/// Streams that are made once and handed out again and again.
class OURO_API StreamPool {
 public:
  static constexpr int kDefaultSize = 4;  ///< streams of a pool
  /// 1 to 256 streams. Errors: invalid (size, no such device), resource, device.
  static Result<StreamPool> create(int size = kDefaultSize, Priority = Priority::normal, Device = {});
  Stream next();  ///< round-robin; of a default-made pool, which is empty: "no stream"
  Stream by_key(std::uint64_t key) const;                         ///< the same key, the same stream
  int size() const { return static_cast<int>(streams_.size()); }  ///< number of streams
  void after(const Stream& s) const;   ///< all pool streams go on only after what is enqueued on `s` now
  void before(const Stream& s) const;  ///< `s` goes on only after what is enqueued on all pool streams now
  Status synchronize() const;          ///< of all of them, the first one's failure

 private:
  std::vector<Stream> streams_;
  std::size_t turn_ = 0;
};

/// @}

}  // namespace ouro

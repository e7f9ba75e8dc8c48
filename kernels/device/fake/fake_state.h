// What one process has of a FakeGpu. Used by the fake_*.cc files that implement it.
#pragma once
#include <unordered_map>

#include "kernels/device/fake/fake_stream.h"

namespace ouro::gpu {

namespace fake {
inline constexpr int kMaxThreads = 1024;  // of a block
inline constexpr int kHighPriority = -5, kLowPriority = 0;
}  // namespace fake

struct FakeGpu::State {
  State(const FakeOptions&, const State* inherited);
  ~State();

  struct EventState {
    int device = -1;
    bool timing = false;
    std::shared_ptr<fake::Mark> mark;  ///< of the last record; nullptr if there was none, or in a capture
    // Of the last record, if that was captured.
    std::shared_ptr<fake::Capture> capture;
    std::size_t capture_mark = 0;
    std::vector<std::size_t> clock;
  };

  /// First of each call: is it allowed on this thread, does the device exist and work, is a failure injected?
  Status admit(FakeOp kind, int device);
  /// The same without a device of its own; an injected fault hits `victim`.
  Status admit_anywhere(FakeOp kind, int victim = 0);
  Status allowed_here() const;
  Status check(int device) const;
  /// Whether `device` may touch this memory.
  Status check_access(int device, const fake::Block&);

  // With the lock held.
  Result<std::shared_ptr<fake::Queue>> find(Stream);
  Result<EventState*> find(Event);
  /// The last record of an event for a caller who asks for it (nullptr: none), and the event's device.
  Result<std::shared_ptr<fake::Mark>> mark_of(Event, int* device);
  Status unknown(const char* what, const void* handle) const;
  void* new_handle();
  /// Onto a stream, or into its capture; there, only work has to be joined.
  Status push(fake::Queue&, fake::Op, bool is_work = true);
  /// Breaks the capture for good; the text is also the error.
  static Status break_capture(fake::Capture&, std::string why);

  Status enqueue(Stream, FakeOp kind, fake::Work);  ///< takes the lock
  /// Waits for all work of a device (negative: of all devices), with a limit.
  Status quiesce(int device);
  /// Regions (`at_once`) go without a wait; work that is enqueued keeps their pages until it has ended.
  Status release(fake::Origin, void* base, bool at_once = false);
  std::vector<std::shared_ptr<fake::Queue>> queues(int device);

  bool reaches(int device, int peer) const {
    return device == peer || !options.peer || options.peer(device, peer);
  }
  int resident(int threads) const;

  const FakeOptions& options;
  const int pid, parent;  ///< parent: whose handles this process may have inherited, or 0
  const std::shared_ptr<fake::Control> control;
  fake::Memory memory;

  std::mutex mutex;
  std::uint64_t next = 1;
  std::unordered_map<void*, std::shared_ptr<fake::Queue>> streams;
  std::vector<std::shared_ptr<fake::Queue>> defaults;  ///< the legacy stream of each device
  std::vector<std::shared_ptr<fake::Queue>> retired;   ///< destroyed, perhaps still with work
  std::unordered_map<void*, EventState> events;
  struct GraphState {
    std::shared_ptr<const fake::Recording> recording;
    std::shared_ptr<fake::Mark> last;  ///< launch: a graph runs once at a time, wherever it is launched
  };
  std::unordered_map<void*, GraphState> graphs;
  std::vector<bool> peers;  ///< [device * devices + peer]
};

}  // namespace ouro::gpu

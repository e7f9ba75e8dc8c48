// The events of a FakeGpu in one process. Used by fake_gpu.cc.
#pragma once
#include "kernels/device/fake/fake_streams.h"

namespace ouro::gpu::fake {

/// Events: the point that the last record of each marks, in a stream or in a capture, and the waits for it.
class Events {
 public:
  Events(std::shared_ptr<Control> control, Handles& handles, Streams& streams)
      : control_(std::move(control)), handles_(handles), streams_(streams) {}

  Result<Event> create(int device, bool timing);
  Status destroy(Event);
  Status record(Event, Stream);
  Status wait(Stream, Event);
  Status synchronize(Event);
  Result<bool> query(Event);
  Result<float> elapsed_ms(Event from, Event to);
  int count();

 private:
  struct State {
    int device = -1;
    bool timing = false;
    std::shared_ptr<Mark> mark;  ///< of the last record; nullptr if there was none, or in a capture
    // The capture of the last record, if that was captured.
    std::shared_ptr<Capture> capture;
    std::size_t capture_mark = 0;
    std::vector<std::size_t> clock;
  };
  // Called with the lock of the streams held.
  Result<State*> find(Event);
  /// The last record of an event (nullptr: none), for callers that query or wait, and the event's device.
  Result<std::shared_ptr<Mark>> mark_of(Event, int* device);
  Status wait_in_capture(const State&, Queue&);

  const std::shared_ptr<Control> control_;
  Handles& handles_;
  Streams& streams_;
  std::unordered_map<void*, State> events_;
};

}  // namespace ouro::gpu::fake

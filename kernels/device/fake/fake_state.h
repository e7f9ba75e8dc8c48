// The state of a FakeGpu in one process. Used by fake_gpu.cc.
#pragma once
#include "kernels/device/fake/fake_allocator.h"
#include "kernels/device/fake/fake_events.h"
#include "kernels/device/fake/fake_graphs.h"
#include "kernels/device/fake/fake_multicast.h"
#include "kernels/device/fake/fake_submitter.h"

namespace ouro::gpu {

/// The parts of a FakeGpu in one process; each uses only those before it.
struct FakeGpu::State {
  State(const FakeOptions& options, const State* inherited)
      : control(inherited == nullptr ? std::make_shared<fake::Control>(options.devices)
                                     : std::make_shared<fake::Control>(options.devices, *inherited->control)),
        handles(inherited == nullptr ? 0 : inherited->handles.pid()),
        memory(options.devices, options.memory_bytes, options.first),
        peers(options),
        streams(options, control, handles),
        events(control, handles, streams),
        graphs(control, handles, streams),
        allocator(options, *control, memory, peers, streams),
        multicasts(options, *control, memory),
        submitter(options, *control, memory, peers, streams) {}

  const std::shared_ptr<fake::Control> control;
  fake::Handles handles;
  fake::Memory memory;
  fake::Peers peers;
  fake::Streams streams;
  fake::Events events;
  fake::Graphs graphs;
  fake::Allocator allocator;
  fake::Multicasts multicasts;
  fake::Submitter submitter;
};

}  // namespace ouro::gpu

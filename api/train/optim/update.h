// One update of one run of parameters, checked, on its way to the host's loops or a device's kernel.
// Used by the optimiser functions (optim.cc) and by the optimisers that own their state (optimizer.cc).
#pragma once
#include <functional>

#include "kernels/device/gpu.h"
#include "kernels/gpu/optim.h"
#include "kernels/host/optim.h"
#include "ouro/train/optim.hpp"

namespace ouro::train {

/// What a step does to one run. Pointers are of `device`; the recipe's step is not used.
struct Update {
  gpu::Family family = gpu::Family::adam;
  arith::Recipe recipe;
  bool lazy_zero = true;
  Device device;
  kernels::Parameters run;
  void* state[3] = {};
  arith::GradientScale scale;
  bool mixes = false;
  kernels::Exchange exchange;
};

/// f64 for f64, else f32: the type of states and arithmetic.
constexpr DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
/// `view`, named `what`, must have this count, type and device, and memory.
Status check_like(const char* what, const CView& view, std::size_t count, DType, Device);
/// p itself, its gradient and its master.
Status check_run(const View& p, const CView& g, const std::optional<View>& master);
/// keep = 1 - a + a * self, take = a.
Result<kernels::Exchange> exchange_of(const View& p, const Row&, const CView& neighbours, double adaptive,
                                      const View& next_message);

/// On the host, in the caller: takes step `*step` + 1 and counts it.
Status update_host(const Update&, std::int64_t* step);
/// Enqueues a launch that takes and counts the step of `control`, with the rate that stands there.
Status update_device(const Update&, gpu::Control* control, gpu::Stream);
/// What update_device would refuse, without a control.
Status check_device(const Update&);
Status write_rate(gpu::Control*, double lr, gpu::Stream);
Status write_steps(gpu::Control*, std::int64_t steps, gpu::Stream);
/// A mix and its message.
Status mix_host(const Update&);
Status mix_device(const Update&, gpu::Control*, gpu::Stream);

/// The parts of the two calls on devices above: what their kernel reads, of which `list` may be set, and its
/// launch. `rests`: no update, but the mix and its message.
gpu::Tensor tensor_of(const Update&);
gpu::UpdateArgs args_of(const Update&, gpu::Control*);
Status launch_update(gpu::UpdateArgs, bool rests, gpu::Stream);

/// Pinned memory from which a stream copies, and the event after its last copy. None is freed: a driver may
/// wait for all work to do that.
struct Upload {
  std::byte* staging = nullptr;
  std::size_t bytes = 0;
  gpu::Event copied;
};
/// Of at least that many bytes; its event may be still to come.
Result<Upload> take_upload(int device, std::size_t bytes);
void give_upload(int device, const Upload&);

/// Runs f in the caller, or enqueues it.
Status on_host(const Stream&, std::function<Status()> f);
/// `invalid`: a stream of another device than the parameters'.
Status check_stream(Device, const Stream&);
/// Which queue a stream is: streams that wrap one CUDA stream are one, and "no stream" is one too.
struct Queue {
  Device device;
  const void* handle = nullptr;
  friend bool operator==(const Queue&, const Queue&) = default;
};
Queue queue_of(const Stream&);
/// What all launches on a device need is made, so that none fails for want of it. Errors: resource, device.
Status make_ready(Device);
/// f(stream) with a stream of `device`: the given one; else one of the library's own, which is then waited
/// for, in the caller or on the host's stream.
Status on_device(Device, const Stream&, std::function<Status(gpu::Stream)> f);

/// The Control that belongs to a step (or a run) at this address: launches of it follow each other in a
/// stream.
Result<gpu::Control*> control_of(int device, const void* address);

Result<kernels::Survey> survey_host(std::span<const CView>, double inverse);
/// Waits for it.
Result<kernels::Survey> survey_device(std::span<const CView>, double inverse, gpu::Stream);

/// Zeroed memory of the host or a device, at a multiple of 64 bytes, freed with this.
class ZeroedBytes {
 public:
  ZeroedBytes() = default;
  ZeroedBytes(ZeroedBytes&& o) noexcept { *this = std::move(o); }
  ZeroedBytes& operator=(ZeroedBytes&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(device_, o.device_);
    return *this;
  }
  ~ZeroedBytes();
  /// Errors: resource, device.
  static Result<ZeroedBytes> make(Device, std::size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::byte* release() { return static_cast<std::byte*>(std::exchange(data_, nullptr)); }

 private:
  void* data_ = nullptr;
  Device device_;
};
/// Copies and waits; either side may be memory of `device`.
Status copy_and_wait(int device, void* to, const void* from, std::size_t bytes);
/// Copies between views, or a view and bytes, wherever the views are. Waits.
Status copy_view(const View& to, const CView& from);
Status read_view(const CView& from, std::span<std::byte> to);
Status write_view(const View& to, CBytes from);
Status zero_view(const View&);

}  // namespace ouro::train

// One checked update of one run of parameters, and the functions that pass it to the host's loops or a
// device's kernel. Used by the optimiser functions (optim.cc) and by the optimisers that own their
// state (optimizer.cc).
#pragma once
#include <functional>

#include "kernels/device/gpu.h"
#include "kernels/gpu/optim.h"
#include "kernels/host/optim.h"
#include "ouro/train/optim.hpp"

namespace ouro::train {

/// The work of a step on one run. Pointers refer to memory of `device`; the recipe's step is not used.
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

/// The type of states and arithmetic: f64 for f64, else f32.
constexpr DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
/// Checks that `view`, called `what` in errors, has this count, type and device, and is not null.
Status check_like(const char* what, const CView& view, std::size_t count, DType, Device);
/// Checks p itself, its gradient and its master copy.
Status check_run(const View& p, const CView& g, const std::optional<View>& master);
/// keep = 1 - a + a * self, take = a.
Result<kernels::Exchange> exchange_of(const View& p, const Row&, const CView& neighbours, double adaptive,
                                      const View& next_message);

/// On the host, in the calling thread: takes step `*step` + 1 and increments `*step`.
Status update_host(const Update&, std::int64_t* step);
/// Enqueues a launch that takes and counts the step of `control`, with the learning rate stored there.
Status update_device(const Update&, gpu::Control* control, gpu::Stream);
/// The errors of update_device, checked without a control.
Status check_device(const Update&);
Status write_rate(gpu::Control*, double lr, gpu::Stream);
Status write_steps(gpu::Control*, std::int64_t steps, gpu::Stream);
/// Runs or enqueues only a mix and its message.
Status mix_host(const Update&);
Status mix_device(const Update&, gpu::Control*, gpu::Stream);

/// Parts of the two device calls above: the tensor that their kernel reads; its arguments, whose `list` may
/// be set; and its launch. `rests`: no update, only the mix and its message.
gpu::Tensor tensor_of(const Update&);
gpu::UpdateArgs args_of(const Update&, gpu::Control*);
Status launch_update(gpu::UpdateArgs, bool rests, gpu::Stream);

/// Pinned memory from which a stream copies, and the event after its last copy. Never freed, because a driver
/// may wait for all work to do so.
struct Upload {
  std::byte* staging = nullptr;
  std::size_t bytes = 0;
  gpu::Event copied;
};
/// Returns an upload of at least that many bytes; its event may not have passed yet.
Result<Upload> take_upload(int device, std::size_t bytes);
void give_upload(int device, const Upload&);

/// Runs f in the calling thread, or enqueues it.
Status on_host(const Stream&, std::function<Status()> f);
/// `invalid` if the stream belongs to another device than the parameters.
Status check_stream(Device, const Stream&);
/// The identity of a stream's queue: streams that wrap one CUDA stream are equal, and so are all
/// "no streams".
struct Queue {
  Device device;
  const void* handle = nullptr;
  friend bool operator==(const Queue&, const Queue&) = default;
};
Queue queue_of(const Stream&);
/// Creates everything that all launches on a device need, so that none fails for lack of it. Errors:
/// resource, device.
Status make_ready(Device);
/// Calls f(stream) with a stream of `device`: the given one, or else one of the library's own, which is then
/// waited for, in the calling thread or on the given host stream.
Status on_device(Device, const Stream&, std::function<Status(gpu::Stream)> f);

/// The Control that belongs to a step (or a run) at this address; launches with it must follow each other
/// in a stream.
Result<gpu::Control*> control_of(int device, const void* address);

Result<kernels::Survey> survey_host(std::span<const CView>, double inverse);
/// Waits for the result.
Result<kernels::Survey> survey_device(std::span<const CView>, double inverse, gpu::Stream);

/// Zeroed memory on the host or a device, aligned to 64 bytes, freed by the destructor.
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
/// Copies and waits; either side may be in memory of `device`.
Status copy_and_wait(int device, void* to, const void* from, std::size_t bytes);
/// Copy between views, or between a view and bytes, wherever the views are. They wait for completion.
Status copy_view(const View& to, const CView& from);
Status read_view(const CView& from, std::span<std::byte> to);
Status write_view(const View& to, CBytes from);
Status zero_view(const View&);

}  // namespace ouro::train

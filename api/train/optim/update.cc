// Checks updates and passes them to the host's loops or to a device's kernel. See update.h.
#include "api/train/optim/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace ouro::train {
namespace {

std::string words(Device d) {
  return d.kind == Device::Kind::host ? "the host" : fmt::format("GPU {}", d.index);
}

/// The state that updates of a device need in addition to the parameters. Lives as long as the process,
/// because graphs may replay launches that refer to it.
struct DeviceScratch {
  int multiprocessors = 1;
  gpu::Stream stream;             // for calls without one of this device
  std::uint32_t* skip = nullptr;  // the word holds 1
  std::map<const void*, gpu::Control*> controls;
  gpu::Control* free = nullptr;  // next free control of the newest slab
  std::size_t left = 0;
  std::mutex survey_mutex;
  ZeroedBytes survey;  // state and list of the current survey
  std::size_t survey_bytes = 0;
  std::vector<Upload> uploads;  // currently unused
};
constexpr std::size_t kSlab = 2048;  // number of controls

Status make_scratch(int device, DeviceScratch& scratch) {
  OURO_ASSIGN(auto properties, gpu::gpu().properties(device));
  OURO_ASSIGN(auto stream, gpu::gpu().create_stream(device, properties.high_priority));
  OURO_ASSIGN(auto word, gpu::gpu().alloc(device, sizeof *scratch.skip));
  const std::uint32_t one = 1;
  OURO_TRY(gpu::gpu().copy(word, &one, sizeof one, stream));
  OURO_TRY(gpu::gpu().synchronize(stream));
  scratch.multiprocessors = properties.multiprocessors;
  scratch.stream = stream;
  scratch.skip = static_cast<std::uint32_t*>(word);
  return {};
}

std::mutex& scratch_mutex() {
  static std::mutex mutex;
  return mutex;
}
Result<DeviceScratch*> scratch_of(int device) {
  static auto* scratches =
      new std::map<int, std::unique_ptr<DeviceScratch>>;  // never freed, see DeviceScratch
  std::lock_guard lock(scratch_mutex());
  auto& scratch = (*scratches)[device];
  if (!scratch) {
    auto made = std::make_unique<DeviceScratch>();
    OURO_TRY(make_scratch(device, *made));
    scratch = std::move(made);
  }
  return scratch.get();
}

/// Writes two words by value, the low one first, so that nothing has to outlive the call and a graph keeps
/// its own copy.
template <class T>
Status write_words(T* to, T value, gpu::Stream s) {
  const auto half = std::bit_cast<std::array<std::uint32_t, 2>>(value);
  auto* at = reinterpret_cast<std::uint32_t*>(to);
  const gpu::MemOp ops[] = {{gpu::MemOp::Kind::write, half[0], at},
                            {gpu::MemOp::Kind::write, half[1], at + 1}};
  return gpu::gpu().enqueue(ops, s);
}

}  // namespace

Status check_like(const char* what, const CView& v, std::size_t count, DType dtype, Device device) {
  if (v.count != count) return invalid(fmt::format("{} has {} elements, expected {}", what, v.count, count));
  if (v.dtype != dtype)
    return invalid(fmt::format("{} is of type {}, expected {}", what, name(v.dtype), name(dtype)));
  if (v.device != device)
    return invalid(fmt::format("{} is on {}, expected {}", what, words(v.device), words(device)));
  if (v.data == nullptr && count > 0) return invalid(fmt::format("{} is a null pointer", what));
  return {};
}

Status check_run(const View& p, const CView& g, const std::optional<View>& master) {
  if (p.dtype != DType::f64 && p.dtype != DType::f32 && p.dtype != DType::bf16 && p.dtype != DType::f16)
    return invalid(fmt::format("optimisers take double, float, bfloat16 and half, not {}", name(p.dtype)));
  OURO_TRY(check_like("the parameter", p, p.count, p.dtype, p.device));
  OURO_TRY(check_like("the gradient", g, p.count, p.dtype, p.device));
  if (!master) return {};
  if (size_of(p.dtype) != 2)
    return invalid(fmt::format("a master copy belongs to 16-bit parameters, not to {}", name(p.dtype)));
  return check_like("the master copy", *master, p.count, DType::f32, p.device);
}

Result<kernels::Exchange> exchange_of(const View& p, const Row& row, const CView& neighbours, double adaptive,
                                      const View& next_message) {
  if (!(adaptive >= 0 && adaptive <= 1))
    return invalid(fmt::format("adaptive factor {}; expected 0 to 1", adaptive));
  OURO_TRY(check_like("the neighbours' sum", neighbours, p.count, p.dtype, p.device));
  OURO_TRY(check_like("the next message", next_message, p.count, p.dtype, p.device));
  return kernels::Exchange{neighbours.data,
                           next_message.data,
                           {.keep = 1 - adaptive + adaptive * row.self, .take = adaptive, .send = 1}};
}

Status update_host(const Update& u, std::int64_t* step) {
  const kernels::Fused fused{u.scale, u.mixes ? &u.exchange : nullptr};
  const std::int64_t next = *step + 1;
  const auto run = [&]() -> Result<kernels::Report> {
    switch (u.family) {
      case gpu::Family::sgd:
        return kernels::sgd(u.run, u.state[0], u.recipe.sgd, next, fused);
      case gpu::Family::adam:
        return kernels::adam(u.run, u.state[0], u.state[1], u.recipe.adam, next, fused);
      case gpu::Family::accum_adam:
        return kernels::accum_adam(u.run, u.state[0], u.state[1], u.state[2],
                                   {u.recipe.adam, u.recipe.accum_iter, u.lazy_zero}, next, fused);
    }
    return invalid("no such optimiser");
  };
  OURO_TRY(run().status());
  *step = next;
  return {};
}

gpu::Tensor tensor_of(const Update& u) {
  return {.value = u.run.value,
          .gradient = u.run.gradient,
          .master = u.run.master,
          .state = {u.state[0], u.state[1], u.state[2]},
          .neighbours = u.exchange.neighbours,
          .message = u.exchange.message,
          .count = u.run.count};
}
gpu::UpdateArgs args_of(const Update& u, gpu::Control* control) {
  gpu::UpdateArgs args{.family = u.family,
                       .form = u.mixes ? gpu::Form::exchange : gpu::Form::plain,
                       .dtype = u.run.dtype,
                       .master = u.run.master != nullptr,
                       .lazy_zero = u.lazy_zero,
                       .recipe = u.recipe,
                       .control = control};
  args.scale[0] = u.scale;
  args.weights = u.exchange.weights;
  args.one[0] = tensor_of(u);
  return args;
}
Status launch_update(gpu::UpdateArgs args, bool rests, gpu::Stream s) {
  OURO_ASSIGN(auto scratch, scratch_of(s.device));
  if (rests) args.skip = scratch->skip;
  OURO_ASSIGN(auto made, gpu::update(args, scratch->multiprocessors));
  return gpu::gpu().launch(*made.kernel, made.shape, &args, s);
}

Status update_device(const Update& u, gpu::Control* control, gpu::Stream s) {
  return launch_update(args_of(u, control), false, s);
}
Status check_device(const Update& u) {
  gpu::Control unused;
  return gpu::update(args_of(u, &unused), 1).status();
}
Status write_rate(gpu::Control* control, double lr, gpu::Stream s) {
  return write_words(&control->lr, lr, s);
}
Status write_steps(gpu::Control* control, std::int64_t steps, gpu::Stream s) {
  return write_words(&control->step, steps, s);
}

Status mix_host(const Update& u) {
  OURO_TRY(kernels::mix(u.run, u.exchange));
  return kernels::pack(u.run, u.exchange);
}
Status mix_device(const Update& u, gpu::Control* control, gpu::Stream s) {
  return launch_update(args_of(u, control), true, s);
}

Status on_host(const Stream& stream, std::function<Status()> f) {
  if (!stream.valid()) return f();
  // The arguments have been checked already; Stream::synchronize reports later failures, and so does the
  // log line here.
  (void)stream.run([f = std::move(f)] {
    Status s = f();
    if (!s.ok()) log_warning("an optimiser step on a stream failed: " + s.message());
    return s;
  });
  return {};
}

Status check_stream(Device device, const Stream& stream) {
  if (!stream.valid() || stream.device() == device || stream.device().kind == Device::Kind::host) return {};
  return invalid(
      fmt::format("the stream is of {}, the parameters are on {}", words(stream.device()), words(device)));
}

Queue queue_of(const Stream& s) {
  if (!s.valid()) return {};
  return {s.device(), s.device().kind == Device::Kind::host ? s.impl().get() : s.cuda_handle()};
}

Status make_ready(Device device) { return scratch_of(device.index).status(); }

Status on_device(Device device, const Stream& stream, std::function<Status(gpu::Stream)> f) {
  if (stream.valid() && stream.device() == device) return f({device.index, stream.cuda_handle()});
  OURO_TRY(check_stream(device, stream));
  OURO_ASSIGN(auto scratch, scratch_of(device.index));
  return on_host(stream, [f = std::move(f), own = scratch->stream] {
    OURO_TRY(f(own));
    return gpu::gpu().synchronize(own);
  });
}

Result<gpu::Control*> control_of(int device, const void* address) {
  OURO_ASSIGN(auto found, scratch_of(device));
  DeviceScratch& scratch = *found;
  std::lock_guard lock(scratch_mutex());
  gpu::Control*& control = scratch.controls[address];
  if (control != nullptr) return control;
  if (scratch.left == 0) {
    OURO_ASSIGN(auto slab, ZeroedBytes::make({Device::Kind::cuda, device}, kSlab * sizeof(gpu::Control)));
    scratch.free = reinterpret_cast<gpu::Control*>(slab.release());
    scratch.left = kSlab;
  }
  --scratch.left;
  return control = scratch.free++;
}

Result<Upload> take_upload(int device, std::size_t bytes) {
  OURO_ASSIGN(auto scratch, scratch_of(device));
  {
    std::lock_guard lock(scratch_mutex());
    auto& free = scratch->uploads;
    const auto fits =
        std::find_if(free.begin(), free.end(), [&](const Upload& u) { return u.bytes >= bytes; });
    if (fits != free.end()) {
      const Upload found = *fits;
      free.erase(fits);
      return found;
    }
  }
  Upload made{.bytes = std::bit_ceil(std::max<std::size_t>(bytes, 4096))};
  OURO_ASSIGN(made.copied, gpu::gpu().create_event(device, false));
  OURO_ASSIGN(auto memory, gpu::gpu().alloc_pinned(made.bytes));
  made.staging = static_cast<std::byte*>(memory);
  return made;
}
void give_upload(int device, const Upload& u) {
  if (u.staging == nullptr) return;
  auto scratch = scratch_of(device);
  if (!scratch.ok()) return;
  std::lock_guard lock(scratch_mutex());
  (*scratch)->uploads.push_back(u);
}

Result<kernels::Survey> survey_host(std::span<const CView> gradients, double inverse) {
  std::vector<kernels::Gradient> list;
  for (const CView& g : gradients) list.push_back({g.data, g.count});
  return kernels::survey(gradients[0].dtype, list, {.inverse = inverse});
}

Result<kernels::Survey> survey_device(std::span<const CView> gradients, double inverse, gpu::Stream s) {
  OURO_ASSIGN(auto found, scratch_of(s.device));
  DeviceScratch& scratch = *found;
  std::vector<gpu::Tensor> tensors;
  for (const CView& g : gradients)
    tensors.push_back({.value = const_cast<void*>(g.data), .gradient = g.data, .count = g.count});
  constexpr std::size_t kListAt = (sizeof(gpu::SurveyState) + 15) / 16 * 16;
  const std::size_t bytes = kListAt + gpu::list_bytes(tensors);
  std::lock_guard lock(scratch.survey_mutex);
  if (scratch.survey_bytes < bytes) {
    OURO_ASSIGN(scratch.survey, ZeroedBytes::make({Device::Kind::cuda, s.device}, bytes));
    scratch.survey_bytes = bytes;
  }
  std::vector<gpu::Tensor> staging(bytes / sizeof(gpu::Tensor) + 1);  // vector of tensors for the alignment
  auto* const copy = reinterpret_cast<std::byte*>(staging.data());
  const gpu::SurveyState clean;
  std::memcpy(copy, &clean, sizeof clean);
  OURO_ASSIGN(auto list, gpu::lay_out({.family = gpu::Family::sgd, .dtype = gradients[0].dtype}, tensors,
                                      copy + kListAt, scratch.survey.data() + kListAt));
  auto* const state = reinterpret_cast<gpu::SurveyState*>(scratch.survey.data());
  const gpu::SurveyArgs args{.dtype = gradients[0].dtype, .inverse = inverse, .state = state, .list = list};
  OURO_ASSIGN(auto launch, gpu::survey(args));
  OURO_TRY(gpu::gpu().copy(state, copy, bytes, s));
  OURO_TRY(gpu::gpu().launch(*launch.kernel, launch.shape, &args, s));
  gpu::SurveyState result;
  OURO_TRY(gpu::gpu().copy(&result, state, sizeof result, s));
  OURO_TRY(gpu::gpu().synchronize(s));
  return kernels::Survey{result.nonfinite == 0, result.squares};
}

namespace {
constexpr std::align_val_t kAlign{64};
}

Result<ZeroedBytes> ZeroedBytes::make(Device device, std::size_t bytes) {
  ZeroedBytes made;
  made.device_ = device;
  if (device.kind == Device::Kind::host) {
    made.data_ = ::operator new(bytes, kAlign, std::nothrow);
    if (made.data_ == nullptr) return Status(Reason::resource, fmt::format("no memory for {} bytes", bytes));
    std::memset(made.data_, 0, bytes);
    return made;
  }
  OURO_ASSIGN(made.data_, gpu::gpu().alloc(device.index, bytes));
  auto stream = gpu::gpu().create_stream(device.index, 0);
  OURO_TRY(stream.status());
  Status s = gpu::gpu().set(made.data_, 0, bytes, *stream);
  if (s.ok()) s = gpu::gpu().synchronize(*stream);
  (void)gpu::gpu().destroy_stream(*stream).ok();
  OURO_TRY(s);
  return made;
}
ZeroedBytes::~ZeroedBytes() {
  if (device_.kind == Device::Kind::host)
    ::operator delete(data_, kAlign);
  else if (data_ != nullptr)
    (void)gpu::gpu().free(data_).ok();
}

Status copy_and_wait(int device, void* to, const void* from, std::size_t bytes) {
  OURO_ASSIGN(auto scratch, scratch_of(device));
  OURO_TRY(gpu::gpu().copy(to, from, bytes, scratch->stream));
  return gpu::gpu().synchronize(scratch->stream);
}

Status copy_view(const View& to, const CView& from) {
  if (to.count == 0) return {};
  if (to.device.kind == Device::Kind::cuda)
    return copy_and_wait(to.device.index, to.data, from.data, to.bytes());
  std::memcpy(to.data, from.data, to.bytes());
  return {};
}
Status read_view(const CView& from, std::span<std::byte> to) {
  if (from.count == 0) return {};
  if (from.device.kind == Device::Kind::cuda)
    return copy_and_wait(from.device.index, to.data(), from.data, from.bytes());
  std::memcpy(to.data(), from.data, from.bytes());
  return {};
}
Status write_view(const View& to, CBytes from) { return copy_view(to, {from.data(), to.count, to.dtype}); }
Status zero_view(const View& v) {
  if (v.device.kind == Device::Kind::cuda) return write_view(v, Bytes(v.bytes()));
  if (v.count > 0) std::memset(v.data, 0, v.bytes());
  return {};
}

}  // namespace ouro::train

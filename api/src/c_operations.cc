// The C interface on top of the C++ one: collectives, messages, batches of operations. Used by C programs and
// other languages through ouro.h.
#include <numeric>

#include "api/src/c_api.h"
#include "kernels/device/gpu.h"
#include "runtime/context/context.h"
#include "runtime/core/collectives.h"
#include "runtime/group/group.h"

using namespace ouro;
using namespace ouro::c;

namespace {

/// The arguments that all operations share, checked, and the views made from them.
class Call {
 public:
  Call(const char* name, ouro_group_t group, int dtype, const ouro_call_options_t* options,
       ouro_stream_t stream)
      : name_(name) {
    status_ = prepare(group, dtype, options, stream);
  }
  /// Must be ok before anything else is used.
  const Status& status() const { return status_; }
  Group& group() const { return *group_; }
  std::size_t size() const { return static_cast<std::size_t>(group_->size()); }
  const CallOptions& options() const { return options_; }

  /// A view of `count` elements at `data`; null is an error unless `count` is 0.
  Result<View> view(void* data, std::size_t count, const char* what) const {
    if (!data && count > 0) return need(data, name_, what);
    const Result<Device> device = device_of(count > 0 ? data : nullptr);
    if (!device) return device.status();
    return View(data, count, dtype_, *device);
  }
  /// Input and output of a collective. An ignored or empty buffer takes the device of the other one.
  struct Buffers {
    CView in;
    View out;
  };
  Result<Buffers> buffers(const void* in, std::size_t in_count, void* out, std::size_t out_count) const {
    Result<View> i = view(const_cast<void*>(in), in_count, "in");
    if (!i) return i.status();
    Result<View> o = view(out, out_count, "out");
    if (!o) return o.status();
    if (in_count == 0 && out_count > 0) i->device = o->device;
    if (out_count == 0 && in_count > 0) o->device = i->device;
    return Buffers{*i, *o};
  }
  /// The same for a collective whose regions or blocks have `count` elements.
  Result<Buffers> buffers(Collective collective, const void* in, void* out, std::size_t count,
                          int root = 0) const {
    const CollectiveTraits traits = traits_of(collective);
    if (traits.blocks()) OURO_TRY(check_all_blocks(count));
    const auto elements = [&](CollectiveTraits::Side side) {
      return side.counts(group_->rank(), root) ? side.elements(count, group_->size()) : 0;
    };
    return buffers(in, elements(traits.in), out, elements(traits.out));
  }
  Result<std::span<const std::size_t>> counts(const std::size_t* data, const char* what) const {
    OURO_TRY(need(data, name_, what));
    return std::span<const std::size_t>(data, size());
  }

 private:
  /// Checks that memory can hold one block per rank.
  Status check_all_blocks(std::size_t count) const {
    std::size_t elements = 0, bytes = 0;
    if (__builtin_mul_overflow(count, size(), &elements) ||
        __builtin_mul_overflow(elements, size_of(dtype_), &bytes))
      return invalid(
          fmt::format("{}: count {} times {} ranks is more than memory can hold", name_, count, size()));
    return {};
  }

  /// The device of an address. For a null address, the stream's device: a rank with nothing to send or
  /// receive must still join the others' operation.
  Result<Device> device_of(const void* data) const {
    if (gpu_ < 0 || memory_ == OURO_MEMORY_HOST) return Device{};
    if (memory_ == OURO_MEMORY_DEVICE) return Device{Device::Kind::cuda, gpu_};
    if (!data) return none_;
    const Result<gpu::PointerInfo> found = gpu::gpu().pointer(data);
    if (!found) return found.status();
    return found->kind == gpu::MemoryKind::device ? Device{Device::Kind::cuda, found->device} : Device{};
  }

  Status prepare(ouro_group_t group, int dtype, const ouro_call_options_t* options, ouro_stream_t stream) {
    OURO_TRY(need(group, name_, "group"));
    group_ = &group->get();
    const Result<DType> type = dtype_of(dtype, name_);
    if (!type) return type.status();
    dtype_ = *type;
    const Result<ouro_call_options_t> o = options_of<ouro_call_options_t>(options, OURO_CALL_OPTIONS, name_);
    if (!o) return o.status();
    const Result<Numerics> numerics = numerics_of(o->numerics, name_);
    if (!numerics) return numerics.status();
    options_ = {.numerics = *numerics, .algorithm = o->algorithm ? o->algorithm : ""};
    if (group_->valid()) gpu_ = group_->impl()->context()->spec().gpu;
    if (stream) none_ = stream->stream.device();
    memory_ = o->memory;
    if (memory_ < OURO_MEMORY_ANY || memory_ > OURO_MEMORY_DEVICE)
      return invalid(fmt::format("{}: memory {} is not one of ouro_memory_t", name_, memory_));
    if (memory_ == OURO_MEMORY_DEVICE && gpu_ < 0)
      return invalid(fmt::format("{}: buffers on a GPU, and this rank has none", name_));
    return {};
  }

  const char* name_;
  Group* group_ = nullptr;
  DType dtype_ = DType::f32;
  CallOptions options_;
  int gpu_ = -1;  ///< this rank's GPU; -1: none
  ouro_memory_t memory_ = OURO_MEMORY_ANY;
  Device none_;
  Status status_;
};

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Starts an operation on a stream, or on no stream, and hands out its work handle. Without a stream, returns
/// the operation's outcome.
template <class Start>
Status issue(ouro_stream_t stream, ouro_work_t* work, Start&& start) {
  std::unique_ptr<ouro_work> handle =
      work ? std::make_unique<ouro_work>() : nullptr;  // allocated before anything starts
  const Result<Work> started = start(stream ? stream->stream : Stream());
  if (!started) return started.status();
  if (!stream) OURO_TRY(started->status());
  if (handle) {
    handle->work = *started;
    *work = handle.release();
  }
  return {};
}

/// The first failure among results, or ok.
template <class... R>
Status first_error(const R&... results) {
  Status first;
  ((first.ok() && !results.ok() ? void(first = results.status()) : void()), ...);
  return first;
}

}  // namespace

int ouro_all_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                    ouro_op_t op, const ouro_call_options_t* options, ouro_stream_t stream,
                    ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("all_reduce", group, dtype, options, stream);
    OURO_TRY(c.status());
    const auto b = c.buffers(Collective::all_reduce, in, out, count);
    const auto reduction = reduction_of(op, "all_reduce");
    OURO_TRY(first_error(b, reduction));
    return issue(stream, work, [&](const Stream& s) {
      return all_reduce(c.group(), b->in, b->out, *reduction, s, c.options());
    });
  });
}

int ouro_reduce(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype, ouro_op_t op,
                int root, const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("reduce", group, dtype, options, stream);
    OURO_TRY(c.status());
    const auto b = c.buffers(Collective::reduce, in, out, count, root);
    const auto reduction = reduction_of(op, "reduce");
    OURO_TRY(first_error(b, reduction));
    return issue(stream, work, [&](const Stream& s) {
      return reduce(c.group(), b->in, b->out, *reduction, root, s, c.options());
    });
  });
}

int ouro_reduce_scatter(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                        ouro_op_t op, const ouro_call_options_t* options, ouro_stream_t stream,
                        ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("reduce_scatter", group, dtype, options, stream);
    OURO_TRY(c.status());
    const auto b = c.buffers(Collective::reduce_scatter, in, out, count);
    const auto reduction = reduction_of(op, "reduce_scatter");
    OURO_TRY(first_error(b, reduction));
    return issue(stream, work, [&](const Stream& s) {
      return reduce_scatter(c.group(), b->in, b->out, *reduction, s, c.options());
    });
  });
}

int ouro_reduce_scatter_v(ouro_group_t group, const void* in, void* out, const size_t* counts,
                          ouro_dtype_t dtype, ouro_op_t op, const ouro_call_options_t* options,
                          ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("reduce_scatter_v", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto n, c.counts(counts, "counts"));
    const auto b = c.buffers(in, total(n), out, counts[c.group().rank()]);
    const auto reduction = reduction_of(op, "reduce_scatter_v");
    OURO_TRY(first_error(b, reduction));
    return issue(stream, work, [&](const Stream& s) {
      return reduce_scatter_v(c.group(), b->in, b->out, n, *reduction, s, c.options());
    });
  });
}

int ouro_all_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                    const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("all_gather", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto b, c.buffers(Collective::all_gather, in, out, count));
    return issue(stream, work,
                 [&](const Stream& s) { return all_gather(c.group(), b.in, b.out, s, c.options()); });
  });
}

int ouro_all_gather_v(ouro_group_t group, const void* in, void* out, const size_t* counts, ouro_dtype_t dtype,
                      const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("all_gather_v", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto n, c.counts(counts, "counts"));
    OURO_ASSIGN(const auto b, c.buffers(in, counts[c.group().rank()], out, total(n)));
    return issue(stream, work,
                 [&](const Stream& s) { return all_gather_v(c.group(), b.in, b.out, n, s, c.options()); });
  });
}

int ouro_broadcast(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype, int root,
                   const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("broadcast", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto b, c.buffers(Collective::broadcast, in, out, count, root));
    return issue(stream, work,
                 [&](const Stream& s) { return broadcast(c.group(), b.in, b.out, root, s, c.options()); });
  });
}

int ouro_gather(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype, int root,
                const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("gather", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto b, c.buffers(Collective::gather, in, out, count, root));
    return issue(stream, work,
                 [&](const Stream& s) { return gather(c.group(), b.in, b.out, root, s, c.options()); });
  });
}

int ouro_scatter(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype, int root,
                 const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("scatter", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto b, c.buffers(Collective::scatter, in, out, count, root));
    return issue(stream, work,
                 [&](const Stream& s) { return scatter(c.group(), b.in, b.out, root, s, c.options()); });
  });
}

int ouro_all_to_all(ouro_group_t group, const void* in, void* out, size_t count, ouro_dtype_t dtype,
                    const ouro_call_options_t* options, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("all_to_all", group, dtype, options, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto b, c.buffers(Collective::all_to_all, in, out, count));
    return issue(stream, work,
                 [&](const Stream& s) { return all_to_all(c.group(), b.in, b.out, s, c.options()); });
  });
}

int ouro_all_to_all_v(ouro_group_t group, const void* in, void* out, const size_t* send_counts,
                      const size_t* recv_counts, ouro_dtype_t dtype, const ouro_call_options_t* options,
                      ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("all_to_all_v", group, dtype, options, stream);
    OURO_TRY(c.status());
    const auto sent = c.counts(send_counts, "send_counts");
    const auto received = c.counts(recv_counts, "recv_counts");
    OURO_TRY(first_error(sent, received));
    OURO_ASSIGN(const auto b, c.buffers(in, total(*sent), out, total(*received)));
    return issue(stream, work, [&](const Stream& s) {
      return all_to_all_v(c.group(), b.in, b.out, *sent, *received, s, c.options());
    });
  });
}

int ouro_barrier(ouro_group_t group, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "barrier", "group"));
    return issue(stream, work, [&](const Stream& s) { return barrier(group->get(), s); });
  });
}

int ouro_send(ouro_group_t group, const void* data, size_t count, ouro_dtype_t dtype, int dst, int tag,
              ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("send", group, dtype, nullptr, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto view, c.view(const_cast<void*>(data), count, "data"));
    return issue(stream, work, [&](const Stream& s) { return send(c.group(), view, dst, tag, s); });
  });
}

int ouro_recv(ouro_group_t group, void* data, size_t count, ouro_dtype_t dtype, int src, int tag,
              int64_t deadline_ms, ouro_received_t* received, ouro_stream_t stream, ouro_work_t* work) {
  return guarded([&]() -> Status {
    const Call c("recv", group, dtype, nullptr, stream);
    OURO_TRY(c.status());
    OURO_ASSIGN(const auto view, c.view(data, count, "data"));
    if (deadline_ms < 0) return invalid("recv: deadline_ms is negative");
    if (stream || in_batch()) {  // the call returns before the message arrives
      const char* const later = stream ? "with a stream" : "between group_start and group_end";
      if (received) return invalid(fmt::format("recv: received must be null {}", later));
      if (deadline_ms)
        return invalid(
            fmt::format("recv: deadline_ms must be 0 {}; wait for the work with a deadline", later));
      return issue(stream, work, [&](const Stream& s) { return recv(c.group(), view, src, tag, s); });
    }
    std::unique_ptr<ouro_work> handle = work ? std::make_unique<ouro_work>() : nullptr;  // already complete
    const Result<Received> got = recv(c.group(), view, src, tag, Milliseconds(deadline_ms));
    if (!got) return got.status();
    if (received) *received = {got->source, got->tag, got->bytes};
    if (work) *work = handle.release();
    return {};
  });
}

int ouro_exchange(ouro_group_t group, const ouro_transfer_t* transfers, size_t n, ouro_stream_t stream,
                  ouro_work_t* work) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "exchange", "group"));
    if (n > 0) OURO_TRY(need(transfers, "exchange", "transfers"));
    std::vector<Transfer> all;
    all.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const ouro_transfer_t& t = transfers[i];
      const Call c("exchange", group, t.dtype, nullptr, stream);
      OURO_TRY(c.status());
      OURO_ASSIGN(const View view, c.view(t.data, t.count, "data"));
      all.push_back({t.peer, t.sends != 0, view});
    }
    return issue(stream, work, [&](const Stream& s) { return exchange(group->get(), all, s); });
  });
}

int ouro_probe(ouro_group_t group, int src, int tag, int* found, ouro_received_t* received) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "probe", "group"));
    OURO_TRY(need(found, "probe", "found"));
    OURO_TRY(need(received, "probe", "received"));
    const Result<std::optional<Received>> next = probe(group->get(), src, tag);
    if (!next) return next.status();
    *found = next->has_value() ? 1 : 0;
    if (*found) *received = {(*next)->source, (*next)->tag, (*next)->bytes};
    return {};
  });
}

int ouro_group_start(void) {
  return guarded([]() -> Status {
    group_start();
    return {};
  });
}

int ouro_group_end(void) {
  return guarded([] { return group_end(); });
}

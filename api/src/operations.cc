// The operations of the C++ interface: each builds an Operation and passes it to Group::submit, or to the
// open batch.
#include "ouro/ouro.hpp"

#include <exception>
#include <limits>

#include "api/src/not_in_batch.h"
#include "runtime/core/no_memory.h"
#include "runtime/group/batch.h"
#include "runtime/group/group.h"
#include "runtime/group/matched_message.h"
#include "runtime/group/message_set.h"

namespace ouro {
namespace {

using rt::Operation;
using Counts = std::span<const std::size_t>;

Operation make(Collective c, CView in, View out, const CallOptions& o, ReduceOp op = {}, int root = 0) {
  return {c, in, out, op, root, o.numerics, o.algorithm};
}
Operation make_v(Collective c, CView in, View out, Counts in_counts, Counts out_counts, const CallOptions& o,
                 ReduceOp op = {}) {
  Operation x = make(c, in, out, o, op);
  x.uneven = true;
  x.in_counts = in_counts;
  x.out_counts = out_counts;
  return x;
}

Result<Operation> make_mix(CView in, View out, double self,
                           std::span<const std::pair<int, double>> in_neighbours,
                           std::span<const int> out_neighbours) {
  if (in.device.kind != Device::Kind::host || out.device.kind != Device::Kind::host)
    return unsupported(
        "mix: its vectors are on a GPU; expected them on the host: only hosts sum up neighbours so far");
  Operation o = make(Collective::mix, in, out, {}, ReduceOp::premul(self));
  o.in_neighbours = in_neighbours;
  o.out_neighbours = out_neighbours;
  return o;
}

Status run(Group& g, const Operation& o) {
  if (!g.valid()) return empty_group();
  if (auto* batch = rt::Batch::current()) {
    std::shared_ptr<rt::WorkState> work;
    return batch->defer(g.impl(), o, nullptr, &work);
  }
  return g.impl()->submit(o, nullptr, nullptr);
}

Result<Work> enqueue(Group& g, const Operation& o, const Stream& s) {
  if (!g.valid()) return empty_group();
  std::shared_ptr<rt::WorkState> work;
  auto* batch = rt::Batch::current();
  Status status =
      batch ? batch->defer(g.impl(), o, s.impl(), &work) : g.impl()->submit(o, s.impl().get(), &work);
  if (!status.ok()) return status;
  return Work(std::move(work));
}

}  // namespace

Status all_reduce(Group& g, CView in, View out, ReduceOp op, const CallOptions& o) {
  return run(g, make(Collective::all_reduce, in, out, o, op));
}
Result<Work> all_reduce(Group& g, CView in, View out, ReduceOp op, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::all_reduce, in, out, o, op), s);
}
Status reduce(Group& g, CView in, View out, ReduceOp op, int root, const CallOptions& o) {
  return run(g, make(Collective::reduce, in, out, o, op, root));
}
Result<Work> reduce(Group& g, CView in, View out, ReduceOp op, int root, const Stream& s,
                    const CallOptions& o) {
  return enqueue(g, make(Collective::reduce, in, out, o, op, root), s);
}
Status reduce_scatter(Group& g, CView in, View out, ReduceOp op, const CallOptions& o) {
  return run(g, make(Collective::reduce_scatter, in, out, o, op));
}
Result<Work> reduce_scatter(Group& g, CView in, View out, ReduceOp op, const Stream& s,
                            const CallOptions& o) {
  return enqueue(g, make(Collective::reduce_scatter, in, out, o, op), s);
}
Status reduce_scatter_v(Group& g, CView in, View out, Counts counts, ReduceOp op, const CallOptions& o) {
  return run(g, make_v(Collective::reduce_scatter, in, out, counts, {}, o, op));
}
Result<Work> reduce_scatter_v(Group& g, CView in, View out, Counts counts, ReduceOp op, const Stream& s,
                              const CallOptions& o) {
  return enqueue(g, make_v(Collective::reduce_scatter, in, out, counts, {}, o, op), s);
}
Status all_gather(Group& g, CView in, View out, const CallOptions& o) {
  return run(g, make(Collective::all_gather, in, out, o));
}
Result<Work> all_gather(Group& g, CView in, View out, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::all_gather, in, out, o), s);
}
Status all_gather_v(Group& g, CView in, View out, Counts counts, const CallOptions& o) {
  return run(g, make_v(Collective::all_gather, in, out, {}, counts, o));
}
Result<Work> all_gather_v(Group& g, CView in, View out, Counts counts, const Stream& s,
                          const CallOptions& o) {
  return enqueue(g, make_v(Collective::all_gather, in, out, {}, counts, o), s);
}
Status broadcast(Group& g, CView in, View out, int root, const CallOptions& o) {
  return run(g, make(Collective::broadcast, in, out, o, {}, root));
}
Result<Work> broadcast(Group& g, CView in, View out, int root, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::broadcast, in, out, o, {}, root), s);
}
Status gather(Group& g, CView in, View out, int root, const CallOptions& o) {
  return run(g, make(Collective::gather, in, out, o, {}, root));
}
Result<Work> gather(Group& g, CView in, View out, int root, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::gather, in, out, o, {}, root), s);
}
Status scatter(Group& g, CView in, View out, int root, const CallOptions& o) {
  return run(g, make(Collective::scatter, in, out, o, {}, root));
}
Result<Work> scatter(Group& g, CView in, View out, int root, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::scatter, in, out, o, {}, root), s);
}
Status all_to_all(Group& g, CView in, View out, const CallOptions& o) {
  return run(g, make(Collective::all_to_all, in, out, o));
}
Result<Work> all_to_all(Group& g, CView in, View out, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::all_to_all, in, out, o), s);
}
Status all_to_all_v(Group& g, CView in, View out, Counts send_counts, Counts recv_counts,
                    const CallOptions& o) {
  return run(g, make_v(Collective::all_to_all, in, out, send_counts, recv_counts, o));
}
Result<Work> all_to_all_v(Group& g, CView in, View out, Counts send_counts, Counts recv_counts,
                          const Stream& s, const CallOptions& o) {
  return enqueue(g, make_v(Collective::all_to_all, in, out, send_counts, recv_counts, o), s);
}
Status barrier(Group& g, const CallOptions& o) { return run(g, make(Collective::barrier, {}, {}, o)); }
Result<Work> barrier(Group& g, const Stream& s, const CallOptions& o) {
  return enqueue(g, make(Collective::barrier, {}, {}, o), s);
}

Status mix(Group& g, CView in, View out, double self, std::span<const std::pair<int, double>> in_neighbours,
           std::span<const int> out_neighbours) {
  OURO_ASSIGN(const Operation o, make_mix(in, out, self, in_neighbours, out_neighbours));
  return run(g, o);
}
Result<Work> mix(Group& g, CView in, View out, double self,
                 std::span<const std::pair<int, double>> in_neighbours, std::span<const int> out_neighbours,
                 const Stream& s) {
  OURO_ASSIGN(const Operation o, make_mix(in, out, self, in_neighbours, out_neighbours));
  return enqueue(g, o, s);
}

// ---- messages -------------------------------------------------------------------------------------

namespace {

Result<std::unique_ptr<rt::Message>> message(const Group& g, bool sends, const void* data, std::size_t count,
                                             DType t, Device device, int peer, int tag) try {
  if (!g.valid()) return empty_group();
  if (static_cast<int>(t) >= kDTypes) return invalid("message: the element type does not exist");
  const int gpu = g.impl()->context()->spec().gpu;
  if (device.kind != Device::Kind::host && device.index != gpu)
    return invalid("message: a buffer on GPU " + std::to_string(device.index) + "; this rank " +
                   (gpu < 0 ? "has no GPU" : "has GPU " + std::to_string(gpu)));
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size_of(t), &bytes))
    bytes = std::numeric_limits<std::size_t>::max();  // refused
  const rt::MessageRequest request{.sends = sends, .peer = peer, .tag = tag, .bytes = bytes, .dtype = t};
  void* const memory = const_cast<void*>(data);
  return device.kind == Device::Kind::host
             ? std::make_unique<rt::Message>(request, static_cast<std::byte*>(memory))
             : std::make_unique<rt::Message>(rt::Message::on_device(request, memory));
} catch (const std::exception&) {
  return no_memory();
}

/// If memory runs out, nothing has been posted.
Status run(Group& g, Result<std::unique_ptr<rt::Message>> m, Milliseconds deadline, Received* received) try {
  if (!g.valid()) return empty_group();
  if (!m.ok()) return m.status();
  auto* const batch = rt::Batch::current();
  const Status wrong = deadline.count() < 0 ? invalid("recv: the deadline is negative")
                       : batch && deadline.count() > 0
                           ? invalid(
                                 "recv: a deadline of its own between group_start and group_end, where the "
                                 "group's holds; expected 0, or a wait for the work with a deadline")
                           : Status();
  if (!wrong.ok()) return batch ? batch->refuse(wrong) : wrong;
  if (batch) {
    std::shared_ptr<rt::WorkState> work;
    return batch->defer(g.impl(), std::move(*m), nullptr, &work);
  }
  if ((*m)->device_memory) {
    std::shared_ptr<rt::Message> shared = std::move(*m);
    OURO_ASSIGN(auto stream, g.impl()->own_gpu_stream());
    OURO_ASSIGN(auto work, g.impl()->run_on_gpu({shared}, stream, deadline));
    work->wait();
    if (received) *received = {shared->envelope.source, shared->envelope.tag, shared->envelope.bytes};
    return work->outcome();
  }
  const std::vector<rt::Message*> one{m->get()};
  OURO_TRY(g.impl()->exchange(one, deadline));
  if (received) *received = {(*m)->envelope.source, (*m)->envelope.tag, (*m)->envelope.bytes};
  return {};
} catch (const std::exception&) {
  return no_memory();
}

Result<Work> enqueue(Group& g, Result<std::unique_ptr<rt::Message>> m, const Stream& s) try {
  if (!g.valid()) return empty_group();
  if (!m.ok()) return m.status();
  if (auto* batch = rt::Batch::current()) {
    std::shared_ptr<rt::WorkState> work;
    OURO_TRY(batch->defer(g.impl(), std::move(*m), s.impl(), &work));
    return Work(std::move(work));
  }
  std::shared_ptr<rt::Message> shared = std::move(*m);
  if (shared->device_memory) {
    std::shared_ptr<rt::GpuStream> stream;
    if (s.valid() && s.impl()->gpu()) {
      stream = s.impl()->gpu()->shared_from_this();
    } else {
      OURO_ASSIGN(stream, g.impl()->own_gpu_stream());
    }
    if (!s.valid() || s.impl()->gpu()) {
      auto work = g.impl()->run_on_gpu({shared}, stream);
      if (!work.ok()) return work.status();
      if (!s.valid()) (*work)->wait();
      return Work(std::move(*work));
    }
    return s.run([group = g.impl(), shared, stream]() -> Status {
      OURO_ASSIGN(auto work, group->run_on_gpu({shared}, stream));
      work->wait();
      return work->outcome();
    });
  }
  return s.run(g.impl()->submit({std::move(shared)}, s.impl().get()));
} catch (const std::exception&) {
  return no_memory();
}

}  // namespace

Status send(Group& g, CView data, int dst, int tag) {
  return run(g, message(g, true, data.data, data.count, data.dtype, data.device, dst, tag), Milliseconds(0),
             nullptr);
}
Result<Work> send(Group& g, CView data, int dst, int tag, const Stream& s) {
  return enqueue(g, message(g, true, data.data, data.count, data.dtype, data.device, dst, tag), s);
}
namespace {
Result<std::unique_ptr<rt::Message>> receive(const Group& g, View out, int src, int tag, bool exact) {
  auto m = message(g, false, out.data, out.count, out.dtype, out.device, src, tag);
  if (m.ok()) (*m)->request.exact = exact;
  return m;
}
}  // namespace
Result<Received> recv(Group& g, View out, int src, int tag, Milliseconds deadline) {
  return recv(g, out, src, tag, RecvOptions{.deadline = deadline});
}
Result<Received> recv(Group& g, View out, int src, int tag, const RecvOptions& o) {
  Received received;
  OURO_TRY(run(g, receive(g, out, src, tag, o.exact), o.deadline, &received));
  return received;
}
Result<Work> recv(Group& g, View out, int src, int tag, const Stream& s) {
  return recv(g, out, src, tag, s, RecvOptions{});
}
Result<Work> recv(Group& g, View out, int src, int tag, const Stream& s, const RecvOptions& o) {
  if (o.deadline.count() != 0) {
    const Status wrong = invalid(
        "recv: a deadline of its own on a stream; expected 0, or a wait for the work with a deadline");
    auto* const batch = rt::Batch::current();
    return batch ? batch->refuse(wrong) : wrong;
  }
  return enqueue(g, receive(g, out, src, tag, o.exact), s);
}
Result<std::optional<Received>> probe(Group& g, int src, int tag) try {
  if (!g.valid()) return empty_group();
  OURO_ASSIGN(auto e, g.impl()->probe(src, tag));
  if (!e) return std::optional<Received>();
  return std::optional<Received>(Received{e->source, e->tag, e->bytes});
} catch (const std::exception&) {
  return no_memory();
}

Result<std::optional<Matched>> match(Group& g, int src, int tag) try {
  if (!g.valid()) return empty_group();
  // Made first: its destructor undoes the match.
  const auto handle = std::make_shared<rt::MatchedMessage>(g.impl());
  OURO_ASSIGN(const auto found, g.impl()->match(src, tag));
  if (!found) return std::optional<Matched>();
  const auto& [e, key] = *found;
  handle->hold(key);
  return std::optional<Matched>({{e.source, e.tag, e.bytes}, handle});
} catch (const std::exception&) {
  return no_memory();
}
Result<Received> recv(Group& g, const Matched& matched, View out, Milliseconds deadline) {
  if (!matched) return invalid("recv: the matched message is an empty handle");
  OURO_TRY(not_in_batch("recv of a matched message"));
  if (!matched.impl()->is_of(g.impl())) return invalid("recv: the message was matched in another group");
  auto m = message(g, false, out.data, out.count, out.dtype, out.device, matched.about().source,
                   matched.about().tag);
  if (m.ok()) (*m)->request.matched = matched.impl()->key();
  Received received;
  OURO_TRY(run(g, std::move(m), deadline, &received));
  return received;
}

Result<MessageSet> MessageSet::create(const Group& g) try {
  if (!g.valid()) return empty_group();
  MessageSet made;
  made.impl_ = std::make_shared<rt::MessageSet>(g.impl());
  return made;
} catch (const std::exception& e) {
  return Status(Reason::resource, std::string("no thread for a message set: ") + e.what());
}

namespace {
Status add(rt::MessageSet* set, Result<std::unique_ptr<rt::Message>> m, MessageSet::Then then) try {
  OURO_TRY(not_in_batch("a message set"));
  if (!m.ok()) return m.status();
  if ((*m)->device_memory) return invalid("message set: a buffer on a GPU; expected memory of the host");
  return set->add(**m, [then = std::move(then)](const Status& s, const rt::Envelope& e) {
    then(s.ok() ? Result<Received>(Received{e.source, e.tag, e.bytes}) : Result<Received>(s));
  });
} catch (const std::exception&) {
  return no_memory();
}
}  // namespace
Status MessageSet::send(CView data, int dst, int tag, Then then) {
  if (!impl_) return invalid("message set: an empty handle");
  return add(impl_.get(),
             message(Group(impl_->group()), true, data.data, data.count, data.dtype, data.device, dst, tag),
             std::move(then));
}
Status MessageSet::recv(View out, int src, int tag, const RecvOptions& o, Then then) {
  if (!impl_) return invalid("message set: an empty handle");
  if (o.deadline.count() != 0)
    return invalid("recv: a deadline of its own in a message set; expected 0, the group's");
  return add(impl_.get(), receive(Group(impl_->group()), out, src, tag, o.exact), std::move(then));
}
void MessageSet::close() {
  if (impl_) impl_->close();
}

bool in_batch() { return rt::Batch::current() != nullptr; }
void group_start() { rt::Batch::start(); }
Status group_end() { return rt::Batch::end(); }

}  // namespace ouro

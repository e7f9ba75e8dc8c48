// Calls by kind, with and without a stream, and the buffers.
// Used by the measuring loop and by the rank program.
#include "tools/perf/operation.h"

#include <fmt/format.h>

#include <cstdlib>

#include "kernels/device/gpu.h"
#include "tools/perf/device.h"

namespace ouro::perf {
namespace {

Status to_status(Status s) { return s; }
template <class T>
Status to_status(const Result<T>& r) {
  return r.status();
}

/// `stream` is empty or one valid stream; the overloads of the API differ only in it.
template <class... S>
Status issue_one(Group& g, const Call& c, const S&... stream) {
  const CView in(c.in, c.shape.in, c.dtype, c.device);
  const View out(c.out, c.shape.out, c.dtype, c.device);
  switch (c.kind) {
    case Kind::all_reduce:
      return to_status(all_reduce(g, in, out, c.op, stream...));
    case Kind::reduce:
      return to_status(reduce(g, in, out, c.op, c.root, stream...));
    case Kind::reduce_scatter:
      return to_status(reduce_scatter(g, in, out, c.op, stream...));
    case Kind::all_gather:
      return to_status(all_gather(g, in, out, stream...));
    case Kind::broadcast:
      return to_status(broadcast(g, in, out, c.root, stream...));
    case Kind::gather:
      return to_status(gather(g, in, out, c.root, stream...));
    case Kind::scatter:
      return to_status(scatter(g, in, out, c.root, stream...));
    case Kind::alltoall:
      return to_status(all_to_all(g, in, out, stream...));
    case Kind::sendrecv: {
      const int n = g.size(), next = (g.rank() + 1) % n, previous = (g.rank() + n - 1) % n;
      if (c.device.kind != Device::Kind::host) {
        const Transfer both[] = {Transfer::send_to(next, in), Transfer::receive_from(previous, out)};
        return to_status(exchange(g, both, stream...));
      }
      group_start();
      const Status sent = to_status(send(g, in, next, 0, stream...));
      const Status received = to_status(recv(g, out, previous, 0, stream...));
      const Status ended = group_end();
      return !sent ? sent : !received ? received : ended;
    }
  }
  return invalid("no such collective");
}

constexpr std::size_t kPage = 4096;

}  // namespace

Status issue(Group& g, const Call& c, int times, const Stream& stream) {
  const auto one = [&] { return stream.valid() ? issue_one(g, c, stream) : issue_one(g, c); };
  if (times == 1) return one();
  group_start();
  Status first;
  for (int i = 0; i < times && first; ++i) first = one();
  const Status ended = group_end();
  return first ? ended : first;
}

rt::Operation operation_of(const Call& c) {
  rt::Operation o;
  o.collective = info(c.kind).collective;
  o.in = CView(c.in, c.shape.in, c.dtype, c.device);
  o.out = View(c.out, c.shape.out, c.dtype, c.device);
  o.op = c.op;
  o.root = c.root;
  return o;
}

bool has_in_place(Kind k) { return k != Kind::sendrecv; }

Result<Buffer> Buffer::make(Context& context, std::size_t bytes, bool registered, Device device) {
  const bool on_device = device.kind != Device::Kind::host;
  Buffer b;
  b.bytes_ = (bytes + kPage - 1) / kPage * kPage + kPage;
  if (registered) {
    auto memory = context.alloc(b.bytes_, device);
    if (!memory) return memory.status();
    b.registered_ = std::move(*memory);
    b.data_ = static_cast<std::byte*>(b.registered_.data());
  } else {
    void* made = nullptr;
    if (on_device) {
      const auto memory = gpu::gpu().alloc(device.index, b.bytes_);
      if (!memory) return memory.status();
      made = *memory;
    } else {
      made = std::aligned_alloc(kPage, b.bytes_);
      if (!made) return Status(Reason::resource, fmt::format("no memory for a buffer of {} bytes", b.bytes_));
    }
    b.private_ = std::unique_ptr<void, Free>(made, Free{on_device});
    b.data_ = static_cast<std::byte*>(made);
  }
  const auto mover = Mover::make(device);
  if (!mover) return mover.status();
  OURO_TRY(mover->set(b.data_, 0, b.bytes_));
  return b;
}

void Buffer::Free::operator()(void* p) const {
  if (on_device)
    (void)gpu::gpu().free(p).ok();
  else
    std::free(p);
}

}  // namespace ouro::perf

// Messages with descriptors, and the second process. See peer.h.
#include "bench/gpu_floor/peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "bench/gpu_floor/kernels.h"
#include "bench/gpu_floor/session.h"

namespace ouro::bench {
namespace {

constexpr int kMessageMs = 10'000;

Status broken(const char* what) {
  return {Reason::peer_dead, fmt::format("{} the other process: {}", what, std::strerror(errno))};
}

/// The second process. It has its own context on the same device.
class Peer {
 public:
  Peer(gpu::Gpu& g, int device) : g_(g), device_(device) {}

  Status answer(const Request& r, const Fd& fd, int socket, Reply* reply) {
    Clock::time_point begin = Clock::now();
    switch (r.kind) {
      case Request::Kind::open_ipc: {
        OURO_ASSIGN(void* const data, g_.ipc_open(device_, r.handle));
        reply->map_us = us_since(begin);
        begin = Clock::now();
        OURO_TRY(g_.ipc_close(device_, data));
        reply->unmap_us = us_since(begin);
        return {};
      }
      case Request::Kind::import_fd: {
        OURO_ASSIGN(const gpu::Region region, g_.import_fd(device_, fd, r.bytes));
        reply->map_us = us_since(begin);
        begin = Clock::now();
        OURO_TRY(g_.free_region(region));
        reply->unmap_us = us_since(begin);
        return {};
      }
      case Request::Kind::keep: {
        OURO_ASSIGN(kept_, g_.import_fd(device_, fd, r.bytes));
        OURO_ASSIGN(stream_, g_.create_stream(device_, 0));
        OURO_TRY(launch_small(g_, stream_));  // a kernel is not loaded while a stream of the process waits
        return g_.synchronize(stream_);
      }
      case Request::Kind::hops:
        break;
    }
    auto* const words = static_cast<std::byte*>(kept_.data);
    for (std::uint32_t t = r.turn + 1; t <= r.turn + r.count; ++t) {
      const gpu::MemOp wait{gpu::MemOp::Kind::wait_at_least, t, words + kPing};
      const gpu::MemOp write{gpu::MemOp::Kind::write, t, words + kPong};
      OURO_TRY(g_.enqueue({&wait, 1}, stream_));
      if (r.launches) OURO_TRY(launch_small(g_, stream_));
      OURO_TRY(g_.enqueue({&write, 1}, stream_));
    }
    reply->good = true;
    OURO_TRY(send_message(socket, reply, sizeof *reply));
    return Session::await([&] {
      std::this_thread::yield();
      return g_.query(stream_);
    });
  }

 private:
  gpu::Gpu& g_;
  const int device_;
  gpu::Region kept_;
  gpu::Stream stream_;
};

}  // namespace

Status launch_small(gpu::Gpu& g, gpu::Stream s) {
  const Unused<kSmallArgs> args{};
  return g.launch(floor_kernel(FloorKernel::empty_small), {1, 32}, &args, s);
}

Status send_message(int socket, const void* data, std::size_t bytes, int fd) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control, message.msg_controllen = sizeof control;
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
    return broken("cannot send to");
  return {};
}

Status receive_message(int socket, void* data, std::size_t bytes, Fd* fd) {
  pollfd p{socket, POLLIN, 0};
  if (::poll(&p, 1, kMessageMs) == 0)
    return {Reason::deadline, "the other process did not answer within 10 s"};
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(bytes))
    return broken("cannot receive from");
  const cmsghdr* const c = CMSG_FIRSTHDR(&message);
  if (fd && c && c->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(c), sizeof received);
    *fd = Fd(received);
  }
  return {};
}

int serve_process_rows(int socket, int device) {
  Peer peer(gpu::gpu(), device);
  for (;;) {
    Request request;
    Fd fd;
    const Status received = receive_message(socket, &request, sizeof request, &fd);
    if (received.reason() == Reason::deadline) continue;  // it measures something else; alarm() ends this
    if (!received.ok()) ::_exit(0);                       // without waiting for streams, which may be blocked
    Reply reply;
    const Status done = peer.answer(request, fd, socket, &reply);
    reply.good = done.ok();
    std::snprintf(reply.why, sizeof reply.why, "%s", done.message().c_str());
    if (!send_message(socket, &reply, sizeof reply)) ::_exit(1);
  }
}

}  // namespace ouro::bench

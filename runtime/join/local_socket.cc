// Local control sockets. See local_socket.h.
#include "runtime/join/local_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/fork.h"
#include "runtime/join/descriptors.h"

namespace ouro::rt {
namespace {

socklen_t fill(sockaddr_un& at, const std::string& name) {
  at.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof at.sun_path - 1);
  std::memcpy(at.sun_path + 1, name.data(), n);  // sun_path[0] == 0: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

int remaining_ms(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1000));
}

}  // namespace

Result<Fd> listen_local(const std::string& name) {
  sockaddr_un at{};
  const socklen_t length = fill(at, name);
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Status(Reason::resource, fmt::format("no local socket: {}", std::strerror(errno)));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0)
    return Status(errno == EADDRINUSE ? Reason::refused : Reason::resource,
                  fmt::format("cannot bind the local name '@{}': {}", name, std::strerror(errno)));
  if (listen(fd.get(), 4096) != 0)
    return Status(Reason::resource, fmt::format("cannot listen on '@{}': {}", name, std::strerror(errno)));
  close_in_children(fd.get());
  return fd;
}

Fd connect_local(const std::string& name) {
  sockaddr_un at{};
  const socklen_t length = fill(at, name);
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (fd && connect(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0) {
    const int why = errno;
    fd.reset();
    errno = why;
  }
  close_in_children(fd.get());
  return fd;
}

Credentials credentials(int fd) {
  ucred c{};
  socklen_t length = sizeof c;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &length) != 0) return {0, ~0u};
  return {c.pid, c.uid};
}

Status check_peer(int fd) {
  if (const Credentials c = credentials(fd); c.uid != geteuid())
    return {Reason::refused,
            fmt::format("the peer (pid {}) runs as user {}; expected user {}", c.pid, c.uid, geteuid())};
  return {};
}

Status send_frame(int fd, const wire::Frame& frame, const std::vector<int>& fds) {
  const wire::Bytes bytes = wire::encode(frame);
  iovec part{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  for (;;) {
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != ETOOMANYREFS) || Clock::now() > deadline)
      return {Reason::peer_dead, fmt::format("cannot send to the peer: {}", std::strerror(errno))};
    pollfd p{fd, POLLOUT, 0};
    if (errno == ETOOMANYREFS)
      usleep(1000);  // too many descriptors in flight in this job: wait until readers catch up
    else
      poll(&p, 1, remaining_ms(deadline));
  }
}

Result<Incoming> recv_frame(int fd, Clock::time_point deadline) {
  std::uint8_t bytes[wire::kMaxFrame + 1];
  iovec part{bytes, sizeof bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  ssize_t n = 0;
  for (;;) {
    message = {};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n >= 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN)
      return Status(Reason::peer_dead, fmt::format("the peer hung up: {}", std::strerror(errno)));
    if (Clock::now() >= deadline) return Status(Reason::deadline, "the peer did not answer in time");
    pollfd p{fd, POLLIN, 0};
    poll(&p, 1, remaining_ms(deadline));
  }
  std::vector<Fd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c) + i * sizeof(int), sizeof received);
      fds.emplace_back(received);
    }
  }
  if (n == 0) return Status(Reason::peer_dead, "the peer hung up");
  // Descriptors were cut off: there was no room for more, or no more could be opened.
  if ((message.msg_flags & MSG_CTRUNC) && fds.size() < kMaxFds)
    return no_descriptor("taking what a peer has passed");
  if (message.msg_flags & MSG_CTRUNC)
    return Status(Reason::refused, "the peer passed more descriptors than expected");
  auto frame = wire::decode({bytes, static_cast<std::size_t>(n)});
  if (!frame.ok()) return frame.status();
  return Incoming{std::move(*frame), std::move(fds)};
}

}  // namespace ouro::rt

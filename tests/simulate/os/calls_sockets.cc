// Calls about sockets and other descriptors that the library makes. See real.h.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <utility>

#include "tests/simulate/os/real.h"

OURO_REAL(int, socket, int, int, int);
OURO_REAL(int, bind, int, const sockaddr*, socklen_t);
OURO_REAL(int, listen, int, int);
OURO_REAL(int, accept4, int, sockaddr*, socklen_t*, int);
OURO_REAL(int, connect, int, const sockaddr*, socklen_t);
OURO_REAL(int, getsockname, int, sockaddr*, socklen_t*);
OURO_REAL(int, getpeername, int, sockaddr*, socklen_t*);
OURO_REAL(int, setsockopt, int, int, int, const void*, socklen_t);
OURO_REAL(int, getsockopt, int, int, int, void*, socklen_t*);
OURO_REAL(ssize_t, send, int, const void*, size_t, int);
OURO_REAL(ssize_t, recv, int, void*, size_t, int);
OURO_REAL(ssize_t, sendmsg, int, const msghdr*, int);
OURO_REAL(ssize_t, read, int, void*, size_t);
OURO_REAL(ssize_t, readv, int, const iovec*, int);
OURO_REAL(ssize_t, write, int, const void*, size_t);
OURO_REAL(int, shutdown, int, int);
OURO_REAL(int, close, int);
OURO_REAL(int, ioctl, int, unsigned long, ...);
OURO_REAL(int, fcntl, int, int, ...);
OURO_REAL(int, eventfd, unsigned, int);
OURO_REAL(int, timerfd_create, int, int);
OURO_REAL(int, timerfd_settime, int, int, const itimerspec*, itimerspec*);
OURO_REAL(int, getifaddrs, ifaddrs**);
OURO_REAL(void, freeifaddrs, ifaddrs*);
OURO_REAL(int, gethostname, char*, size_t);
OURO_REAL(pid_t, getpid);
OURO_REAL(std::uint64_t, _ZN4ouro14process_numberEv);

namespace simulate {
namespace {

/// A socket of another family: local to a host, whose only rank has nobody to ask, or for finding a route.
class OtherSocket final : public File {
 public:
  explicit OtherSocket(int host) : own{host, 1} {}
  Address own;
};

constexpr std::uint32_t kNet = 10u << 24;

sockaddr_in written(Address a) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(a.port));
  in.sin_addr.s_addr = htonl(kNet + 1 + static_cast<std::uint32_t>(a.host));
  return in;
}
Address address_in(const sockaddr* from) {
  sockaddr_in in;
  std::memcpy(&in, from, sizeof in);
  return {static_cast<int>(ntohl(in.sin_addr.s_addr) - kNet) - 1, ntohs(in.sin_port)};
}
void write_to(sockaddr* to, socklen_t* length, Address a) {
  const sockaddr_in in = written(a);
  std::memcpy(to, &in, std::min<std::size_t>(*length, sizeof in));
  *length = sizeof in;
}
std::shared_ptr<TcpSocket> tcp(int fd) { return files->find_as<TcpSocket>(fd); }

/// Whether the call concerns the simulation; if so, the process may die at it.
bool ours(int fd) {
  if (!simulated() || fd < Files::kFirst) return false;
  world->step();
  return true;
}

}  // namespace
}  // namespace simulate

using namespace simulate;

extern "C" {

int __wrap_socket(int domain, int type, int protocol) {
  if (!simulated()) return __real_socket(domain, type, protocol);
  if (domain != AF_INET || (type & SOCK_STREAM) == 0)
    return files->open(self(), std::make_shared<OtherSocket>(self().host));
  auto s = std::make_shared<TcpSocket>();
  s->own.host = self().host;
  return files->open(self(), std::move(s));
}

int __wrap_bind(int fd, const sockaddr* to, socklen_t length) {
  if (!ours(fd)) return __real_bind(fd, to, length);
  const auto s = tcp(fd);
  if (!s) return 0;
  s->own = address_in(to);
  if (s->own.port == 0) s->own.port = network->next_port++;
  return told(network->listeners.contains(s->own) ? -EADDRINUSE : 0);
}

int __wrap_listen(int fd, int backlog) {
  if (!ours(fd)) return __real_listen(fd, backlog);
  const auto s = tcp(fd);
  if (!s) return 0;
  s->state = TcpSocket::State::listening;
  s->backlog = static_cast<std::size_t>(backlog);
  network->listeners[s->own] = s.get();
  return 0;
}

int __wrap_accept4(int fd, sockaddr* from, socklen_t* length, int flags) {
  if (!ours(fd)) return __real_accept4(fd, from, length, flags);
  const auto s = tcp(fd);
  if (!s || s->accepted.empty()) return told(-EAGAIN);
  const auto taken = s->accepted.front();
  s->accepted.pop_front();
  if (from) write_to(from, length, taken->connection->ends[0].at);
  return files->open(self(), taken);
}

int __wrap_connect(int fd, const sockaddr* to, socklen_t length) {
  if (!ours(fd)) return __real_connect(fd, to, length);
  if (const auto s = tcp(fd)) return told(-s->connect(address_in(to)));
  return told(to->sa_family == AF_INET ? 0 : -ECONNREFUSED);
}

int __wrap_getsockname(int fd, sockaddr* to, socklen_t* length) {
  if (!ours(fd)) return __real_getsockname(fd, to, length);
  const auto s = tcp(fd);
  write_to(to, length, s ? s->own : Address{self().host, 1});
  return 0;
}

int __wrap_getpeername(int fd, sockaddr* to, socklen_t* length) {
  if (!ours(fd)) return __real_getpeername(fd, to, length);
  const auto s = tcp(fd);
  if (!s || s->state != TcpSocket::State::connected) return told(-ENOTCONN);
  write_to(to, length, s->connection->ends[1 - s->side].at);
  return 0;
}

int __wrap_setsockopt(int fd, int level, int option, const void* value, socklen_t length) {
  if (!ours(fd)) return __real_setsockopt(fd, level, option, value, length);
  const auto s = tcp(fd);
  if (!s || level != IPPROTO_TCP || s->state != TcpSocket::State::connected) return 0;
  int number = 0;
  std::memcpy(&number, value, std::min<std::size_t>(length, sizeof number));
  if (option == TCP_KEEPIDLE) s->end().keep_idle = number * kSecond;
  if (option == TCP_KEEPCNT) s->end().keep_for = number * kSecond;
  if (option == TCP_USER_TIMEOUT) s->end().user_timeout = number * kMilli;
  return 0;
}

int __wrap_getsockopt(int fd, int level, int option, void* value, socklen_t* length) {
  if (!ours(fd)) return __real_getsockopt(fd, level, option, value, length);
  const auto s = tcp(fd);
  if (!s) return told(-ENOPROTOOPT);
  if (level == SOL_SOCKET && option == SO_ERROR) {
    int error = std::exchange(s->connect_error, 0);
    if (s->state == TcpSocket::State::connected) error = std::exchange(s->end().error, 0);
    std::memcpy(value, &error, sizeof error);
    return 0;
  }
  if (level != IPPROTO_TCP || option != TCP_INFO || s->state != TcpSocket::State::connected)
    return told(-ENOPROTOOPT);
  tcp_info info{};
  const Path& there = network->path(s->own.host, s->connection->ends[1 - s->side].at.host);
  info.tcpi_rtt = static_cast<std::uint32_t>((2 * there.delay + there.jitter) / kMicro);
  std::memcpy(value, &info, std::min<std::size_t>(*length, sizeof info));
  return 0;
}

ssize_t __wrap_send(int fd, const void* data, size_t bytes, int flags) {
  if (!ours(fd)) return __real_send(fd, data, bytes, flags);
  const auto s = tcp(fd);
  return told(s ? s->send(data, bytes) : -ENOTCONN);
}

ssize_t __wrap_sendmsg(int fd, const msghdr* m, int flags) {
  if (!ours(fd)) return __real_sendmsg(fd, m, flags);
  const auto s = tcp(fd);
  if (!s) return told<ssize_t>(-ENOTCONN);
  ssize_t sent = 0;
  for (std::size_t i = 0; i < m->msg_iovlen; ++i) {
    const iovec& part = m->msg_iov[i];
    if (part.iov_len == 0) continue;
    const long n = s->send(part.iov_base, part.iov_len);
    if (n < 0) return sent > 0 ? sent : told<ssize_t>(n);
    sent += n;
    if (static_cast<std::size_t>(n) < part.iov_len) break;
  }
  return sent;
}

ssize_t __wrap_recv(int fd, void* data, size_t bytes, int flags) {
  if (!ours(fd)) return __real_recv(fd, data, bytes, flags);
  const auto s = tcp(fd);
  return told(s ? s->receive(data, bytes) : -ENOTCONN);
}

ssize_t __wrap_read(int fd, void* data, size_t bytes) {
  if (!ours(fd)) return __real_read(fd, data, bytes);
  if (const auto s = tcp(fd)) return told(s->receive(data, bytes));
  const auto e = files->find_as<EventFd>(fd);
  if (!e || e->count == 0) return told<ssize_t>(-EAGAIN);
  std::memcpy(data, &e->count, sizeof e->count);
  e->count = 0;
  return sizeof e->count;
}

ssize_t __wrap_readv(int fd, const iovec* parts, int count) {
  if (!ours(fd)) return __real_readv(fd, parts, count);
  const auto s = tcp(fd);
  if (!s) return told<ssize_t>(-EBADF);
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len == 0) continue;
    if (all > 0 && s->end().unread() == 0) break;
    const long n = s->receive(parts[i].iov_base, parts[i].iov_len);
    if (n < 0) return all > 0 ? all : told<ssize_t>(n);
    all += n;
    if (static_cast<std::size_t>(n) < parts[i].iov_len) break;
  }
  return all;
}

ssize_t __wrap_write(int fd, const void* data, size_t bytes) {
  if (!ours(fd)) return __real_write(fd, data, bytes);
  if (const auto s = tcp(fd)) return told(s->send(data, bytes));
  const auto e = files->find_as<EventFd>(fd);
  std::uint64_t more = 0;
  if (!e || bytes != sizeof more) return told<ssize_t>(-EBADF);
  std::memcpy(&more, data, sizeof more);
  e->count += more;
  e->changed();
  return sizeof more;
}

int __wrap_eventfd_write(int fd, eventfd_t value) {
  return __wrap_write(fd, &value, sizeof value) == sizeof value ? 0 : -1;
}
int __wrap_eventfd_read(int fd, eventfd_t* value) {
  return __wrap_read(fd, value, sizeof *value) == sizeof *value ? 0 : -1;
}

int __wrap_shutdown(int fd, int how) {
  if (!ours(fd)) return __real_shutdown(fd, how);
  const auto s = tcp(fd);
  return told(s ? -s->finish() : 0);
}

int __wrap_close(int fd) {
  if (!ours(fd)) return __real_close(fd);
  return told(files->close(fd) ? 0 : -EBADF);
}

int __wrap_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (!ours(fd)) return __real_ioctl(fd, request, argument);
  if (request == SIOCGIFFLAGS) static_cast<ifreq*>(argument)->ifr_flags = IFF_UP | IFF_RUNNING;
  if (const auto s = tcp(fd); s && request == SIOCOUTQ) {
    int left = 0;
    if (s->state == TcpSocket::State::connected && !s->end().broken)
      left = static_cast<int>(s->end().out.queued.size() + s->end().out.under_way + s->end().out.unacked);
    std::memcpy(argument, &left, sizeof left);
  }
  return 0;
}

int __wrap_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return ours(fd) ? 0 : __real_fcntl(fd, command, argument);
}

int __wrap_eventfd(unsigned count, int flags) {
  if (!simulated()) return __real_eventfd(count, flags);
  return files->open(self(), std::make_shared<EventFd>(count));
}

int __wrap_timerfd_create(int clock, int flags) {
  if (!simulated()) return __real_timerfd_create(clock, flags);
  return files->open(self(), std::make_shared<TimerFd>());
}

int __wrap_timerfd_settime(int fd, int flags, const itimerspec* to, itimerspec* before) {
  if (!ours(fd)) return __real_timerfd_settime(fd, flags, to, before);
  // Asio sets an absolute time only if that time has passed.
  const Nanos t = to->it_value.tv_sec * kSecond + to->it_value.tv_nsec;
  const Nanos wait = t == 0 ? -1 : flags & TFD_TIMER_ABSTIME ? 0 : self().global(t);
  files->find_as<TimerFd>(fd)->set(wait);
  return 0;
}

int __wrap_getifaddrs(ifaddrs** list) {
  if (!simulated()) return __real_getifaddrs(list);
  struct One {
    ifaddrs entry;
    sockaddr_in address;
    char name[8];
  };
  auto* const one = new One{{}, written({self().host, 0}), "eth0"};
  one->entry.ifa_name = one->name;
  one->entry.ifa_flags = IFF_UP | IFF_RUNNING;
  one->entry.ifa_addr = reinterpret_cast<sockaddr*>(&one->address);
  *list = &one->entry;
  return 0;
}

void __wrap_freeifaddrs(ifaddrs* list) {
  // Otherwise it is a few bytes, which the run's process releases at its end.
  if (!simulated()) __real_freeifaddrs(list);
}

int __wrap_gethostname(char* name, size_t length) {
  if (!simulated()) return __real_gethostname(name, length);
  std::snprintf(name, length, "host%d", self().host);
  return 0;
}

pid_t __wrap_getpid() { return simulated() ? self().pid : __real_getpid(); }
std::uint64_t __wrap__ZN4ouro14process_numberEv() {  // ouro::process_number()
  return simulated() ? static_cast<std::uint64_t>(self().pid) : __real__ZN4ouro14process_numberEv();
}

}  // extern "C"

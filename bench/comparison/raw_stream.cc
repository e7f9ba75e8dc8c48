// compare_raw_stream: the rate of two processes over one bare TCP connection on the loopback, in both
// directions at once. The limit in bench/compare --transport. Arguments: CORE CORE BYTES SECONDS.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/comparison/harness.h"
#include "tools/measure/figures.h"

namespace {

constexpr std::size_t kPiece = 128 << 10;  // a piece stays in the second cache

void need(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::_Exit(1);
}

/// Sends and receives `bytes`; called by the process at each end.
void both_ways(int fd, std::size_t bytes) {
  std::vector<char> out(kPiece, 1), in(kPiece);
  std::size_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    bool moved = false;
    if (sent < bytes) {
      const ssize_t n = send(fd, out.data(), std::min(kPiece, bytes - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n), moved = true;
      need(n > 0 || errno == EAGAIN, "send");
    }
    if (got < bytes) {
      const ssize_t n = recv(fd, in.data(), std::min(kPiece, bytes - got), MSG_DONTWAIT);
      if (n > 0) got += static_cast<std::size_t>(n), moved = true;
      need(n > 0 || (n < 0 && errno == EAGAIN), "recv");
    }
    if (moved) continue;
    pollfd p{fd, static_cast<short>(POLLIN | (sent < bytes ? POLLOUT : 0)), 0};
    need(poll(&p, 1, 5000) > 0, "poll");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: CORE CORE BYTES SECONDS\n"), 2;
  const std::size_t bytes = std::strtoull(argv[3], nullptr, 10);
  ouro::compare::die_with_parent(static_cast<unsigned>(std::atoi(argv[4])));
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  need(bind(listener, reinterpret_cast<sockaddr*>(&at), length) == 0 && listen(listener, 1) == 0, "listen");
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length);
  const pid_t child = fork();
  need(child >= 0, "fork");
  int fd = -1;
  if (child == 0) {
    ouro::compare::die_with_parent(static_cast<unsigned>(std::atoi(argv[4])));
    ouro::measure::pin(std::atoi(argv[2]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(fd, reinterpret_cast<sockaddr*>(&at), length) == 0, "connect");
  } else {
    ouro::measure::pin(std::atoi(argv[1]));
    need((fd = accept(listener, nullptr, nullptr)) >= 0, "accept");
  }
  both_ways(fd, bytes / 4);  // buffers of the connection grow to their size
  const auto start = std::chrono::steady_clock::now();
  both_ways(fd, bytes);
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  if (child == 0) return 0;
  waitpid(child, nullptr, 0);
  std::printf("{\"what\": \"two_way\", \"bytes\": %zu, \"us\": %.1f}\n", bytes, us);
}

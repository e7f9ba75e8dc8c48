// Both ends of a stream socket, the keys of a line between them, and pseudo-random bytes. Used by tls_test
// and tcp_fabric_test.
#pragma once
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <random>
#include <vector>

#include "runtime/core/fd.h"
#include "transport/net/pipe.h"

namespace ouro::transport {

using Bytes = std::vector<std::byte>;
using Role = TlsEnd::Role;

struct Sockets {
  explicit Sockets(int buffer = 0) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    for (const int fd : fds)
      if (buffer > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    a = Fd(fds[0]), b = Fd(fds[1]);
  }
  Fd a, b;
};

inline TlsEnd end_of(Role role, std::uint8_t seed = 1) {
  wire::Key up, down;
  up.fill(seed), down.fill(static_cast<std::uint8_t>(seed + 100));
  return role == Role::client ? TlsEnd{.role = role, .keys = {.out = up, .in = down}}
                              : TlsEnd{.role = role, .keys = {.out = down, .in = up}};
}
inline Bytes noise(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes((n + 7) / 8 * 8);
  for (std::size_t i = 0; i < n; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  bytes.resize(n);
  return bytes;
}

}  // namespace ouro::transport

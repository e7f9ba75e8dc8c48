// Shared code of the network tests: identities, secrets, and running an io_context until a condition holds.
// Used by the tests of this folder.
#pragma once
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>

#include "runtime/network/net_line.h"
#include "tests/timing.h"

namespace ouro::rt {

using namespace std::chrono_literals;

inline wire::Secret secret(std::uint8_t seed = 1) {
  wire::Bytes bytes(32);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(seed + 7 * i);
  return *wire::Secret::from_bytes(bytes);
}

inline Identity who(int rank, int world = 4) {
  return {.job = {1, 2, 3},
          .generation = 0,
          .rank = rank,
          .world = world,
          .host = "node" + std::to_string(rank),
          .host_id = "id" + std::to_string(rank),
          .pid = 1000 + rank,
          .process = 0,
          .secret = secret()};
}

/// Closes a connection with a reset, as when a process dies.
inline void reset(Fd& socket) {
  const linger at_once{1, 0};
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket.reset();
}

/// Runs the context until `done` or for at most `limit`. Returns whether it was done.
inline bool run_until(asio::io_context& io, const std::function<bool()>& done,
                      std::chrono::milliseconds limit = test::kHang) {
  const auto end = Clock::now() + limit;
  while (!done() && Clock::now() < end) {
    io.restart();
    io.run_one_for(10ms);
  }
  return done();
}

}  // namespace ouro::rt

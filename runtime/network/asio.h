// The one way to include Boost.Asio: <utility> comes first (Boost 1.74 with g++ 12 misses std::exchange
// otherwise), and what everybody does with descriptors. Used by bootstrap, the watch and the network.
#pragma once
#include <utility>

#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/core/fd.h"

namespace ouro::rt {
namespace asio = boost::asio;
using boost::system::error_code;

/// What `io` waits for is `fd` from now on. Throws, and `fd` stays its owner's, where the system watches no
/// more descriptors.
inline asio::posix::stream_descriptor watched(asio::io_context& io, Fd& fd) {
  asio::posix::stream_descriptor d(io, fd.get());
  fd.release();
  return d;
}

/// Calls f(error) once `d` is readable or has hung up. The reactor can wake without that, for an earlier
/// owner of the same descriptor number, and nobody must be taken for dead or silent because of it. `d` lives
/// as long as f.
template <class F>
void when_readable(asio::posix::stream_descriptor& d, F f) {
  d.async_wait(asio::posix::stream_descriptor::wait_read, [&d, f = std::move(f)](error_code e) mutable {
    pollfd p{};
    if (!e) p = {d.native_handle(), POLLIN, 0};
    if (!e && poll(&p, 1, 0) == 0) return when_readable(d, std::move(f));
    f(e);
  });
}
}  // namespace ouro::rt

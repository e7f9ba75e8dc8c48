// The only way to include Boost.Asio: <utility> is included first (Boost 1.74 with g++ 12 misses
// std::exchange otherwise). It also has helpers for descriptors. Used by bootstrap, the watch and
// the network.
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

/// Makes a descriptor on which `io` can wait, and which takes ownership of `fd`. Throws, and leaves `fd` with
/// its owner, if the system cannot watch more descriptors.
inline asio::posix::stream_descriptor watched(asio::io_context& io, Fd& fd) {
  asio::posix::stream_descriptor d(io, fd.get());
  fd.release();
  return d;
}

/// Calls f(error) once `d` is readable or has hung up. The reactor can also wake for an earlier owner of the
/// same descriptor number, and no peer must be taken for dead or silent because of that: the descriptor is
/// polled before f is called. `d` must live as long as f.
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

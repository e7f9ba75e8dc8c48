// The one way to include Boost.Asio: <utility> comes first (Boost 1.74 with g++ 12 misses std::exchange
// otherwise). Used by bootstrap and the watch thread.
#pragma once
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

namespace ouro::rt {
namespace asio = boost::asio;
using boost::system::error_code;
}  // namespace ouro::rt

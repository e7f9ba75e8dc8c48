// Support for forked children: distinguishes them from their parents and closes the sockets that they must
// not keep open. Used by objects that own threads, locks or sockets.
#pragma once
#include <atomic>

namespace ouro {

namespace detail {
extern std::atomic<unsigned> g_forks;
}

/// The number of forks between the process that loaded this library and this process. An object that stores
/// the number at its creation can determine whether it is a copy in a child, where its threads do not run and
/// its locks may be held forever.
inline unsigned forks() { return detail::g_forks.load(std::memory_order_relaxed); }

/// Registers a socket that is to end with this process: each forked child closes its copy, which peers would
/// otherwise take for a sign of life. May be called again. A descriptor that has been closed and reused since
/// is left alone.
void close_in_children(int socket);

}  // namespace ouro

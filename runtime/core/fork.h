// What a forked child must know: that it is one, and which descriptors it must not hold open. Used by
// whatever owns threads or sockets.
#pragma once
#include <atomic>

namespace ouro {

namespace detail {
extern std::atomic<unsigned> g_forks;
}

/// How often ancestors of this process have forked since this library was loaded. An object that remembers
/// the number it was made at can tell that it is a copy in a child, where its threads do not run and its
/// locks may be held for ever.
inline unsigned forks() { return detail::g_forks.load(std::memory_order_relaxed); }

/// A socket that ends with this process: each child that it forks closes its copy, or peers would take the
/// child's for a sign of life. May be told again; a descriptor that was closed and used for something else
/// since is left alone.
void close_in_children(int socket);

}  // namespace ouro

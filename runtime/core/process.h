// Which process this is, and which host, for peers that watch it or tell it from an earlier one. Used where
// ranks join.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/fd.h"

namespace ouro {

/// When this process began, in ticks since the system did; 0 where /proc does not say.
std::uint64_t process_start();
/// A pidfd that this process passes around names this process, whatever PID namespace the receiver lives in.
Fd self_pidfd();
/// Whether the process behind a pidfd stands still (SIGSTOP, Ctrl-Z), as far as /proc of this process's own
/// namespace says; a debugger is no stop.
bool is_stopped(const Fd& pidfd);
/// What makes this host this one: processes that see the same can share memory. (The kernel's boot id and the
/// network namespace.)
std::string own_host_id();

}  // namespace ouro

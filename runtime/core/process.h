// Identity of this process and of its host, for peers that watch the process or distinguish it from an
// earlier one. Used where ranks join.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/fd.h"

namespace ouro {

/// A random number, never 0, which distinguishes this process from all others. A PID does not: it is reused,
/// and the first processes of two PID namespaces (containers) have the same. A forked child has a number
/// of its own.
std::uint64_t process_number();
/// The PID namespace of this process, by inode; 0 if /proc does not give it. PIDs of another namespace are
/// meaningless here.
std::uint64_t pid_namespace();
/// A pidfd of this process. A peer that receives it can watch this process from any PID namespace.
Fd self_pidfd();
/// Whether the process behind a pidfd is stopped (SIGSTOP, Ctrl-Z), as far as this process's /proc shows it;
/// false if it has ended, is in another namespace, or is held by a debugger.
bool is_stopped(const Fd& pidfd);
/// The identity of this host: the kernel's boot id (without /proc: the host's name) and the network
/// namespace. Processes with equal ids can share memory.
std::string own_host_id();

}  // namespace ouro

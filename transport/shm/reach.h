// Reach: reading the memory of another process of this host, and the kind of pages of a buffer. Used by the
// context and the host executor for pull flows.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::transport {

/// Copies `bytes` from address `from` of another process, `pid`, to which `pidfd` also refers. The pid of a
/// process that has ended may be reused: `pidfd` is checked after the read to rule this out. A pid of another
/// PID namespace names some other process here, or none: the caller rules this out. Errors: peer_dead (the
/// process has ended; the contents of `to` are undefined), resource (the system forbids it, or the memory is
/// not mapped), unsupported (no pidfd).
Status read_process(pid_t pid, int pidfd, std::uint64_t from, void* to, std::size_t bytes);

/// Opens the kernel's table of the calling process's pages; an empty Fd if that is not possible.
Fd open_pagemap();
/// Whether at least nine tenths of [p, p + bytes) are on huge pages; false if the kernel does not report it
/// (before 6.7). `pagemap`: from open_pagemap(), in this process.
bool on_huge_pages(int pagemap, const void* p, std::size_t bytes);

}  // namespace ouro::transport

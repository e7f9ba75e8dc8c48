// Reach: reading the memory of another process of this node, and what kind of pages a buffer lies on.
// Used by the context and the host executor for pull flows.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "runtime/core/status.h"

namespace ouro::device {

/// Copies `bytes` from address `from` of process `pid`, which `pidfd` names, too; of this process by memcpy.
/// The number of a process that has ended may soon be another's: `pidfd` says afterwards that it was not.
/// Errors: peer_dead (the process has ended; what is at `to` means nothing), resource (the system forbids it,
/// or the memory is not there), unsupported (no pidfd).
Status read_process(pid_t pid, int pidfd, std::uint64_t from, void* to, std::size_t bytes);

/// Whether at least nine tenths of [p, p + bytes) lie on huge pages; false where the kernel cannot say
/// (before 6.7).
bool on_huge_pages(const void* p, std::size_t bytes);

}  // namespace ouro::device

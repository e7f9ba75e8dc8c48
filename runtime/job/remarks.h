// Facts that a rank sends to ranks of other hosts when it joins, before the address of its fabric.
// Used by Context and JobMembers.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime/health/control_page.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

/// The processors that the rank may use (a count of words, u16, and that many words, little-endian),
/// and its GPU.
wire::Bytes remarks(const ControlPage&);
/// Writes them to a replica. Returns the number of bytes of `all` that they took; nullopt: malformed.
std::optional<std::size_t> read_remarks(const wire::Bytes& all, ControlPage*);

}  // namespace ouro::rt

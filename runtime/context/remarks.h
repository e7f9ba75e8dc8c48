// What a rank tells those of other hosts of itself when it joins, before the address of its fabric. Used by
// Context and JobMembers.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime/health/control_page.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

/// The processors that the rank may use (a count of words, u16, and so many words, little-endian), and its
/// GPU.
wire::Bytes remarks(const ControlPage&);
/// Fills them in on a replica. How many bytes of `all` they were; nullopt: they are none.
std::optional<std::size_t> read_remarks(const wire::Bytes& all, ControlPage*);

}  // namespace ouro::rt

/// ouro: collectives among ranks. The C++ interface: contexts, groups, streams, work and the operations.
/// For users; includes nothing but the standard library and small headers of the same kind: status.h (Status,
/// Result, and each reason of a failure), types.h (element types, reductions, views), and a header for each
/// part.
/// @file
#pragma once
#include <string_view>

#include "ouro/groups.hpp"
#include "ouro/messages.hpp"
#include "ouro/operations.hpp"
#include "ouro/streams.hpp"

namespace ouro {

OURO_API const char* version();  ///< of the library, "0.1.0"

/// Writes a line of level WARN into the library's log (OURO_DEBUG, OURO_DEBUG_FILE), as the library's own
/// warnings: for libraries on top of it, about what no call can return any more.
OURO_API void log_warning(std::string_view text);

}  // namespace ouro

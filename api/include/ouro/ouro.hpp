/// ouro: collectives among ranks. The C++ interface: contexts, groups, streams, work and the operations. The
/// header for users. It includes only the standard library and small headers of the same kind: status.h
/// (Status, Result and all failure reasons), types.h (element types, reductions, views) and one header
/// for each part.
/// @file
#pragma once
#include <string_view>

#include "ouro/groups.hpp"
#include "ouro/messages.hpp"
#include "ouro/operations.hpp"
#include "ouro/streams.hpp"

namespace ouro {

OURO_API const char* version();  ///< library version, "0.1.0"

/// Writes a line of level WARN to the library's log (OURO_DEBUG, OURO_DEBUG_FILE), like the library's own
/// warnings. For libraries built on top, to report what no call can return any more.
OURO_API void log_warning(std::string_view text);

}  // namespace ouro

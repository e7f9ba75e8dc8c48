// Files that programs read and write as a whole, by the names that users give. Used by all tools.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/core/status.h"

namespace ouro::tools {

/// Whether `path` leads to something that is there and is no regular file: a device, a pipe, a terminal; or
/// to a descriptor of this process, whatever is behind it (/dev/stdout, /dev/stderr, /dev/fd/N,
/// /proc/self/fd/N). It is written as it is: never renamed over, and no other name takes its place.
bool is_special(const std::string& path);

/// Makes `text` the content of the file, or, where it is special, writes it there. Errors: resource,
/// "PATH: cannot be written: WHY".
Status write_file(const std::string& path, std::string_view text);
/// The same, but a regular file changes at once or not at all: `text` goes to PATH.part, onto the medium, and
/// then takes the name. Nothing is left behind after an error.
Status replace_file(const std::string& path, std::string_view text);

/// Whether replace_file could begin; leaves nothing behind. Errors: as there.
Status try_replace(const std::string& path);

/// Whether write_file could begin: makes a regular file, empty, and only asks about a special one. Errors: as
/// there.
Status try_file(const std::string& path);

/// A name that no file had: `path`, or, where that exists, path.0, path.1, ..., now an empty file. A special
/// file keeps its name. Errors: resource, "cannot create PATH: WHY".
Result<std::string> reserve_file(const std::string& path);

/// The content of a file of at most `most` bytes. Errors: resource, "PATH: cannot be read: WHY"; a larger
/// file, or one without an end, is an error too.
Result<std::string> read_file(const std::string& path, std::size_t most);

}  // namespace ouro::tools

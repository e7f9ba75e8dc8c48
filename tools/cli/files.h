// Files that programs read and write, by the names that users give. Used by all tools.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::tools {

/// Whether `path` leads to something that is there and is no regular file: a device, a pipe, a terminal; or
/// to a descriptor of this process, whatever is behind it (/dev/stdout, /dev/stderr, /dev/fd/N,
/// /proc/self/fd/N). It is written as it is: never renamed over, and no other name takes its place.
bool is_special(const std::string& path);

/// What follows the name of a file that is being written, until it takes that name.
inline constexpr const char* kPart = ".part";

/// Makes `text` the content of the file, or, where it is special, writes it there. Errors: resource,
/// "PATH: cannot be written: WHY".
Status write_file(const std::string& path, std::string_view text);
/// The same, but a regular file changes at once or not at all: `text` goes to PATH.part (kPart), onto the
/// medium, and then takes the name. Nothing is left behind after an error.
Status replace_file(const std::string& path, std::string_view text);

/// Whether replace_file could begin; leaves nothing behind. Errors: as there.
Status try_replace(const std::string& path);

/// A file that grows line by line, in PATH.part, and takes its name at the end: what had the name before is
/// lost no sooner, and what was written is there however the program ends. A special file is written as it
/// is.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path) : path_(std::move(path)) {}
  /// Makes the file with the first text. After an error nothing more is written; finish() has it.
  void add(std::string_view text);
  /// Errors: those of add, and of taking the name; as those of write_file.
  Status finish();
  /// Where the text is until finish(); empty: there is none.
  std::string where() const;

 private:
  std::string name_of_part() const;

  std::string path_;
  Fd file_;
  bool special_ = false, any_ = false;
  int error_ = 0;  // errno of the first one
};

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

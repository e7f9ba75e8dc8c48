// Files that programs read and write, by the names that users give. Used by all tools.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::tools {

/// Whether `path` leads to an existing object that is not a regular file (a device, a pipe, a terminal), or
/// to a descriptor of this process, whatever is behind it (/dev/stdout, /dev/stderr, /dev/fd/N,
/// /proc/self/fd/N). A special file is written in place: it is never replaced by renaming, and no other name
/// is used instead of it.
bool is_special(const std::string& path);

/// Suffix of the name of a file that is being written, until it is renamed to its final name.
inline constexpr const char* kPart = ".part";

/// Replaces the content of the file by `text`, or writes `text` to a special file. Errors: resource, "PATH:
/// cannot be written: WHY".
Status write_file(const std::string& path, std::string_view text);
/// Like write_file, but a regular file changes atomically: `text` is written to PATH.part (kPart),
/// synchronised to the medium and then renamed. An error leaves no file behind.
Status replace_file(const std::string& path, std::string_view text);

/// Whether replace_file could start to write; leaves no file behind. Errors: those of replace_file.
Status try_replace(const std::string& path);

/// A file that grows line by line, as PATH.part, and is renamed to its final name at the end: a previous file
/// of that name is not lost before then, and the lines written so far remain however the program ends. A
/// special file is written in place.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path) : path_(std::move(path)) {}
  /// Creates the file with the first text. After an error nothing more is written; finish()
  /// returns the error.
  void add(std::string_view text);
  /// Errors: those of add and of renaming, in the form of write_file.
  Status finish();
  /// The name of the file that has the text until finish(); empty: there is none.
  std::string where() const;

 private:
  std::string name_of_part() const;

  std::string path_;
  Fd file_;
  bool special_ = false, any_ = false;
  int error_ = 0;  // errno of the first one
};

/// Whether write_file could start to write: creates a regular file, empty, and only checks a special one.
/// Errors: those of write_file.
Status try_file(const std::string& path);

/// Creates an empty file under a name that no file had, and returns the name: `path`, or, if that exists,
/// path.0, path.1, ... A special file keeps its name. Errors: resource, "cannot create PATH: WHY".
Result<std::string> reserve_file(const std::string& path);

/// The content of a file of at most `most` bytes. Errors: resource, "PATH: cannot be read: WHY"; this
/// includes larger files and files without an end.
Result<std::string> read_file(const std::string& path, std::size_t most);

}  // namespace ouro::tools

// Helpers shared by fuzz targets. Used only by the files of targets.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "transport/wire/keys.h"

namespace ouro::fuzz {

/// Checks a promise of a parser. Traps if it is broken, which libFuzzer reports as a crash.
inline void require(bool promise) {
  if (!promise) __builtin_trap();
}

inline std::string_view text_of(wire::View in) {
  return {reinterpret_cast<const char*>(in.data()), in.size()};
}

/// Removes the text before the next `end` from the input, with that `end`, and returns it.
inline std::string_view next(std::string_view* in, char end = '\n') {
  const std::size_t at = in->find(end);
  const std::string_view piece = in->substr(0, at);
  in->remove_prefix(at == in->npos ? in->size() : at + 1);
  return piece;
}

/// An anonymous file that has a path, for parsers that open their input themselves.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) { require(fd_ >= 0); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void fill(std::string_view text) const {
    require(::ftruncate(fd_, 0) == 0 &&
            ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }

 private:
  int fd_;
};

}  // namespace ouro::fuzz

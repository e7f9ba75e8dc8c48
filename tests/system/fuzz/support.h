// What several fuzz targets share. Used by the files of targets only.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "transport/wire/keys.h"

namespace ouro::fuzz {

/// A promise of a parser. Where it is broken the program ends, which is what libFuzzer sees.
inline void require(bool promise) {
  if (!promise) __builtin_trap();
}

inline std::string_view text_of(wire::View in) {
  return {reinterpret_cast<const char*>(in.data()), in.size()};
}

/// Takes what stands before the next `end` off the input.
inline std::string_view next(std::string_view* in, char end = '\n') {
  const std::size_t at = in->find(end);
  const std::string_view piece = in->substr(0, at);
  in->remove_prefix(at == in->npos ? in->size() : at + 1);
  return piece;
}

/// A file that has a path and no name: for parsers that open what they read.
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

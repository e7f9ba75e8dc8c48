// SharedSegment: sealed anonymous shared memory (memfd) that can be passed to other processes by descriptor.
// Used by the shared-memory transport, control pages and Context::alloc.
#pragma once
#include <cstddef>
#include <memory>

#include "runtime/core/fd.h"
#include "runtime/core/fork.h"
#include "runtime/core/status.h"

namespace ouro {

/// A mapped segment. A process maps a segment once, however often it receives the descriptor, so that ranks
/// that are threads share addresses and ThreadSanitizer sees their accesses; the last owner unmaps it. The
/// pages are not mapped in a forked child, where the last owner only closes the descriptor.
class SharedSegment {
 public:
  /// New zero-filled memory, sealed against resizing. Errors: resource (the text has the bytes needed
  /// and available).
  static Result<std::shared_ptr<SharedSegment>> create(std::size_t bytes, const char* what);
  /// Maps a segment that a peer passed, after checks of its seals, size and owner. Takes ownership of the
  /// descriptor. Errors: refused (a check failed), resource.
  static Result<std::shared_ptr<SharedSegment>> attach(Fd fd, std::size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// Has the system map all pages now, which takes a third of the time that it takes page by page. Does
  /// nothing on a system that does not support this (Linux before 5.14).
  void populate() const;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  SharedSegment() = default;
  static Result<std::shared_ptr<SharedSegment>> map(Fd fd, std::size_t bytes);
  const unsigned forks_ = forks();
  Fd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Bytes that can still be allocated before the tightest memory cgroup or the machine runs out of memory.
std::size_t available_memory();

}  // namespace ouro

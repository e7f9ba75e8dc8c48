// Calls about memory and files that do not affect what is simulated, and would take most of a run's time.
// See real.h.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/simulate/os/real.h"

OURO_REAL(int, posix_fallocate, int, off_t, off_t);

using namespace simulate;

extern "C" {

/// Does not reserve pages; they are allocated when they are touched.
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (!simulated()) return __real_posix_fallocate(fd, offset, bytes);
  return ftruncate(fd, offset + bytes) == 0 ? 0 : errno;
}

/// Replaces the C library's function, which C++ streams call: free memory and the configuration of this
/// machine must not affect a run.
[[gnu::visibility("default")]] FILE* fopen64(const char* path, const char* mode) {
  using Open = FILE* (*)(const char*, const char*);
  static const auto real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "fopen64"));
  const auto below = [&](const char* folder) { return std::strncmp(path, folder, std::strlen(folder)) == 0; };
  if (!simulated() || !(below("/proc/") || below("/sys/") || below("/etc/"))) return real(path, mode);
  errno = ENOENT;
  return nullptr;
}

}  // extern "C"

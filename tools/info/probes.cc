// Tries system calls and the CUDA driver in this process, without lasting effects. Used through probes.h.
#include "tools/info/probes.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"

namespace ouro::info {
namespace {

constexpr std::size_t kBytes = 64 * 1024;

Probe failed(const char* name, const char* call, int error) {
  return {name, false, fmt::format("{}: {}", call, file_error(error))};
}

Fd make_memfd() {
  return Fd(static_cast<int>(syscall(SYS_memfd_create, "ouro-info", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
}

}  // namespace

Probe probe_memfd() {
  const char* name = "memfd";
  const Fd fd = make_memfd();
  if (!fd) return failed(name, "memfd_create", errno);
  if (const int error = posix_fallocate(fd.get(), 0, kBytes)) return failed(name, "posix_fallocate", error);
  void* p = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED) return failed(name, "mmap", errno);
  std::memset(p, 1, kBytes);
  munmap(p, kBytes);
  return {name, true, ""};
}

Probe probe_seals() {
  const char* name = "seals";
  const Fd fd = make_memfd();
  if (!fd) return failed(name, "memfd_create", errno);
  if (ftruncate(fd.get(), kBytes) != 0) return failed(name, "ftruncate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed(name, "fcntl(F_ADD_SEALS)", errno);
  if (ftruncate(fd.get(), 2 * kBytes) == 0) return {name, false, "a sealed segment could still be resized"};
  return {name, true, ""};
}

Probe probe_pidfd() {
  const char* name = "pidfd";
  const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!fd) return failed(name, "pidfd_open", errno);
  pollfd alive{fd.get(), POLLIN, 0};  // readable would mean that the process has ended
  const int ready = poll(&alive, 1, 0);
  if (ready < 0) return failed(name, "poll", errno);
  if (ready > 0) return {name, false, "poll says that a living process has ended"};
  return {name, true, ""};
}

Probe probe_descriptors() {
  const char* name = "descriptor passing";
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return failed(name, "socketpair", errno);
  const Fd a(ends[0]), b(ends[1]);
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof(space);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int passed = a.get();
  std::memcpy(CMSG_DATA(header), &passed, sizeof(int));
  if (sendmsg(a.get(), &message, MSG_NOSIGNAL) != 1) return failed(name, "sendmsg(SCM_RIGHTS)", errno);
  message.msg_controllen = sizeof(space);
  if (recvmsg(b.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return failed(name, "recvmsg", errno);
  header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_type != SCM_RIGHTS) return {name, false, "the descriptor did not arrive"};
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof(int));
  const Fd owned(received);
  return {name, true, ""};
}

/// A child reads its parent: Yama's scope 1 lets a process read its descendants only.
Probe probe_pull() {
  const char* name = "memory of other processes";
  const std::uint64_t word = 0x6f75726f70756c6c;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return failed(name, "fork", errno);
  if (child == 0) {  // only system calls: another thread may have held any lock
    std::uint64_t seen = 0;
    const iovec into{&seen, sizeof seen}, from{const_cast<std::uint64_t*>(&word), sizeof word};
    const ssize_t moved = process_vm_readv(parent, &into, 1, &from, 1, 0);
    _exit(moved == ssize_t{sizeof seen} && seen == word ? 0 : errno > 0 && errno < 256 ? errno : 255);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return failed(name, "waitpid", errno);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {name, true, ""};
  // A filter may also end the child.
  Probe p = WIFEXITED(status) ? failed(name, "process_vm_readv", WEXITSTATUS(status))
                              : Probe{name, false, "process_vm_readv: a filter forbids it"};
  std::string scope;
  if (std::ifstream yama("/proc/sys/kernel/yama/ptrace_scope"); yama >> scope && scope != "0")
    p.detail += "; kernel.yama.ptrace_scope is " + scope;
  return p;
}

CudaDriver probe_cuda() {
  CudaDriver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // never closed: drivers do not support that
  if (!library) {
    const char* error = dlerror();
    const bool absent = !error || std::strstr(error, "No such file");
    driver.why =
        absent ? "no CUDA driver (libcuda.so.1 not found)" : fmt::format("no CUDA driver ({})", error);
    return driver;
  }
  driver.found = true;
  const auto function = [&]<class F>(const char* name, F*& f) {
    f = reinterpret_cast<F*>(dlsym(library, name));
    return f != nullptr;
  };
  int (*init)(unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  if (!function("cuInit", init) || !function("cuDriverGetVersion", version) ||
      !function("cuDeviceGetCount", device_count) || !function("cuDeviceGet", device_get) ||
      !function("cuDeviceGetName", device_name)) {
    driver.why = "libcuda.so.1 lacks functions of the CUDA driver";
    return driver;
  }
  constexpr int kNoDevice = 100;
  if (const int error = init(0); error != 0) {
    driver.why = error == kNoDevice ? "the CUDA driver finds no device"
                                    : fmt::format("cuInit fails with error {}", error);
    return driver;
  }
  version(&driver.version);
  int n = 0;
  if (const int error = device_count(&n); error != 0 || n == 0) {
    driver.why = "the CUDA driver finds no device";
    return driver;
  }
  for (int i = 0, device = 0; i < n; ++i) {
    char name[128] = "?";
    if (device_get(&device, i) == 0) device_name(name, sizeof(name), device);
    driver.devices.emplace_back(name);
  }
  return driver;
}

}  // namespace ouro::info

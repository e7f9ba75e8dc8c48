// Executes a program as on an old kernel (ENOSYS) or under the filter of an old container (EPERM): without
// pidfd_open and signalfd. Usage: old_system ENOSYS|EPERM PROGRAM... Used by the tests of this folder.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const unsigned error = std::string_view(argv[1]) == "EPERM" ? EPERM : ENOSYS;
  sock_filter lines[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 2, 0),
                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_signalfd4, 1, 0),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)};
  const sock_fprog filter{sizeof lines / sizeof lines[0], lines};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::perror("old_system: seccomp");
    return 99;
  }
  execvp(argv[2], argv + 2);
  std::perror("old_system: exec");
  return 98;
}

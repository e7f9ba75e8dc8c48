// See device_arena.h.
#include "tests/runtime/exec/gpu/device_arena.h"

#include <sys/wait.h>
#include <unistd.h>

#if OURO_TEST_TSAN
/// Fake devices live as long as the process, and so do their threads.
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }
#endif

namespace ouro::test {

bool has_gpu() {
  static const bool has = [] {
    if (std::getenv("OURO_FAKE_GPUS")) return true;
    const pid_t child = fork();
    if (child == 0) _exit(gpu::gpu().devices() > 0 ? 0 : 1);
    int state = 1;
    return child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0;
  }();
  return has;
}

}  // namespace ouro::test

// Device memory for tests. See device_arena.h.
#include "tests/runtime/exec/gpu/device_arena.h"

#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/gpu/resident.h"
#include "runtime/group/group.h"

#if OURO_TEST_TSAN
/// Fake devices, and their threads, live as long as the process.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif

namespace ouro::test {

namespace {

/// Asks in a child, because a process that has used CUDA cannot fork ranks.
int asked_in_a_child(int (*question)()) {
  const pid_t child = fork();
  if (child == 0) _exit(question());
  int state = 0;
  return child > 0 && waitpid(child, &state, 0) == child && WIFEXITED(state) ? WEXITSTATUS(state) : 0;
}

}  // namespace

Result<std::shared_ptr<CopyStream>> CopyStream::of_device(int device) {
  static std::mutex mutex;
  static std::map<std::pair<gpu::Gpu*, int>, std::weak_ptr<CopyStream>> streams;
  std::lock_guard lock(mutex);
  auto& known = streams[{&gpu::gpu(), device}];
  auto copies = known.lock();
  if (!copies) {
    copies = std::make_shared<CopyStream>();
    OURO_ASSIGN(copies->stream, gpu::gpu().create_stream(device, 0));
    known = copies;
  }
  return copies;
}

int gpus() {
  static const int many = [] {
    if (const char* emulated = std::getenv("OURO_FAKE_GPUS")) return std::atoi(emulated);
    return asked_in_a_child([] { return gpu::gpu().devices(); });
  }();
  return many;
}

int multicast_gpus() {
  static const int many = [] {
    if (std::getenv("OURO_FAKE_GPUS")) return 8;
    return asked_in_a_child([] {
      int able = 0;
      for (int d = 0; d < gpu::gpu().devices(); ++d) {
        const auto p = gpu::gpu().properties(d);
        able += p.ok() && p->multicast && gpu::compiled_for_switches(d);
      }
      return able;
    });
  }();
  return many;
}

bool has_gpu() { return gpus() > 0; }

std::string only_ran(Group& g, std::string_view path) {
  const std::string_view expected = g.size() == 1 && path != "staged" ? "alone" : path;
  std::string ran;
  bool right = true;
  for (int i = 0; i < rt::kGpuPaths; ++i) {
    const auto p = static_cast<rt::GpuPath>(i);
    const std::uint64_t times = g.impl()->gpu_ran(p);
    right &= (times > 0) == (rt::name(p) == expected);
    if (times > 0) ran += fmt::format(" {} x {}", times, rt::name(p));
  }
  return right ? "" : fmt::format("expected path {} alone, ran:{}", expected, ran.empty() ? " nothing" : ran);
}

}  // namespace ouro::test

// The best times of one GPU in this run, and the prices of its driver's calls. Run by hand or by gpu-check:
// bin/bench_gpu_floor [--quick] [DEVICE]; a line is "name value unit", and is written at once. On a card it
// takes less than 45 seconds: it ends then, whatever the driver does.
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string_view>

#include "bench/arguments.h"
#include "bench/gpu_floor/session.h"

namespace ouro::bench {
namespace {

constexpr std::string_view kServe = "--serve";  // SOCKET DEVICE: how the program starts its other process

void out_of_time(int) {
  constexpr char kText[] = "bench_gpu_floor: out of time; rows above are complete\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(1);
}

Status all_rows(gpu::Gpu& g, int device, bool quick) {
  OURO_ASSIGN(const gpu::Properties p, g.properties(device));
  Session s(g, device, p, quick);
  fmt::print("# {}: {}, {} multiprocessors, by {} ({}); medians of {} rounds\n", device, p.name,
             p.multiprocessors, g.name(), g.version(), s.rounds());
  std::fflush(stdout);
  // A part that fails does not take the others with it, unless the device is lost.
  Status first;
  for (Status (*const part)(Session&) : {&device_rows, &call_rows, &memory_rows, &process_rows}) {
    const Status failed = part(s);
    if (first.ok()) first = failed;
    if (failed.reason() == Reason::device) break;
  }
  return first;
}

int main_of(int argc, char** argv) {
  ::signal(SIGALRM, &out_of_time);
  ::alarm(kWallLimit);
  if (argc == 4 && argv[1] == kServe) {
    const std::optional<int> socket = number(argc, argv, 2, 0, 3, 1 << 20);
    const std::optional<int> device = number(argc, argv, 3, 0, 0, 1023);
    return socket && device ? serve_process_rows(*socket, *device) : 2;
  }
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const std::optional<int> device = number(argc, argv, quick ? 2 : 1, 0, 0, 1023);
  const bool right = device && argc <= (quick ? 3 : 2);
  if (const auto code = help_or_refuse(argc, argv, right, "bench_gpu_floor [--quick] [DEVICE]")) return *code;
  gpu::Gpu& g = gpu::gpu();
  if (g.devices() == 0) {
    fmt::print("SKIP: no CUDA device: {}\n", g.version());
    return 77;
  }
  const Status status = all_rows(g, *device, quick);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  std::fflush(stderr);
  ::_exit(1);  // without waiting for streams, which may be blocked
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) { return ouro::bench::main_of(argc, argv); }

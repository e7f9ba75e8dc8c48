// GB/s of the host loops (bytes read and written) by type, sources, size and instruction set.
// Run by hand: bin/bench_host_loops --benchmark_filter=float/2
#include <benchmark/benchmark.h>

#include <array>
#include <string>
#include <vector>

#include "kernels/host/host_job.h"
#include "kernels/host/host_loops.h"

namespace ouro::kernels {
namespace {

/// The inputs of all ranks have `bytes` bytes each; the page offset places the arrays in different cache
/// sets.
void fold_sources(benchmark::State& state, const char* isa, DType type, std::size_t n, std::size_t bytes) {
  if (!use_instruction_set(isa)) return state.SkipWithError("not on this processor");
  std::vector<std::vector<std::byte>> memory(n + 1, std::vector<std::byte>(bytes + 4096, std::byte{0}));
  std::vector<const void*> in;
  for (std::size_t k = 0; k < n; ++k) in.push_back(memory[k].data() + 192 * k);
  const Reduction sum{type, OpKind::sum, static_cast<int>(n), {}};
  for (auto _ : state) {
    fold(sum, memory[n].data() + 192 * n, in, {}, bytes / size_of(type));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * (n + 1) * bytes));
}

void register_all() {
  for (const char* isa : {"baseline", "avx2", "avx512"})
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const std::size_t n : {2, 4, 5, 8})
        for (const std::size_t kib : {4, 64, 1024, 64 * 1024, 256 * 1024}) {
          const std::string name = std::string("fold/") + ouro::name(type) + "/" + std::to_string(n) + "/" +
                                   std::to_string(kib) + "KiB/" + isa;
          benchmark::RegisterBenchmark(name.c_str(), fold_sources, isa, type, n, kib * 1024);
        }
}

}  // namespace
}  // namespace ouro::kernels

int main(int argc, char** argv) {
  ouro::kernels::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

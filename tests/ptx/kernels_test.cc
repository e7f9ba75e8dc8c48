// Runs the resident kernels as nvcc made them, and plants faults in them; reports on all that ran. Used by
// tools/gate ptx; OURO_PTX names the folder with the PTX, OURO_PTX_FIRST the seed of the order in which lanes
// run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "tests/kernels/gpu_resident_cases.h"
#include "tests/ptx/kernels.h"

namespace ptx {
namespace {

using namespace ouro;
using namespace ouro::gpu;

// ---- Resident kernels: ranks are streams of devices of their own, or of one.

struct ResidentRun {
  resident_test::Case c;
  int ranks, channels, threads, operations;
  bool one_device = false;
};
/// What was wrong, or nothing.
std::optional<std::string> run_resident(Module& module, const ResidentRun& run, std::uint64_t seed) {
  namespace rt = resident_test;
  rt::World w(run.ranks, run.channels, 2);
  std::vector<std::unique_ptr<rt::Operation>> all;
  std::vector<Stream> streams(static_cast<std::size_t>(run.ranks));
  for (int k = 0; k < run.operations; ++k) {
    all.push_back(rt::make(w, run.c, run.channels));
    if (all.back() == nullptr) return "the case is not one of resident kernels";
    const Function* f = entry_of(module, *all.back()->kernel);
    if (f == nullptr) return std::string("no entry for ") + all.back()->kernel->name;
    for (std::size_t r = 0; r < streams.size(); ++r) {
      all.back()->args[r].one_device = run.one_device;
      streams[r].device = run.one_device ? 0 : static_cast<int>(r);
      streams[r].launches.push_back({f, run.channels, run.threads, bytes_of(all.back()->args[r]), true});
    }
  }
  try {
    run_streams(
        seed, streams,
        [&](Memory& m) {
          for (int r = 0; r < run.ranks; ++r) {
            const std::string of = " of rank " + std::to_string(r);
            m.add(w.at(r).arena, w.layout.bytes(), Space::global, "the arena" + of);
            m.add(&w.at(r).abort, 4, Space::global, "the abort word" + of);
            m.add(&w.at(r).error, sizeof(ResidentError), Space::global, "the error record" + of);
            for (auto& o : all) {
              auto& b = o->ranks[static_cast<std::size_t>(r)];
              if (!b.in_storage.empty())
                m.add(b.in_storage.data(), b.in_storage.size(), Space::global, "the input" + of);
              if (!b.out_storage.empty())
                m.add(b.out_storage.data(), b.out_storage.size(), Space::global, "the output" + of);
            }
          }
        },
        60'000'000);
  } catch (const Violation& v) {
    return v.what();
  }
  for (auto& o : all)
    for (int r = 0; r < run.ranks; ++r) {
      const auto& b = o->ranks[static_cast<std::size_t>(r)];
      if (w.at(r).error.fault != ResidentFault::none) return "a rank has failed";
      if (!b.expected.empty() && std::memcmp(b.out, b.expected.data(), b.expected.size()) != 0) {
        std::size_t at = 0;
        while (b.out[at] == b.expected[at]) ++at;
        return "wrong bits of rank " + std::to_string(r) + " from byte " + std::to_string(at) + " on";
      }
      for (std::size_t i = 0; i < rt::kGuard; ++i)
        if (b.out_storage[i] != rt::kUntouched ||
            b.out_storage[b.out_storage.size() - 1 - i] != rt::kUntouched)
          return "bytes beside an output";
    }
  return std::nullopt;
}

resident_test::Case case_of(Collective c, flow::Algorithm a, DType t, std::size_t count,
                            bool packets = false) {
  resident_test::Case x{c, a, t, OpKind::sum, count};
  x.packets = packets;
  x.shift = count % 4;
  return x;
}
struct Flow {
  Collective collective;
  flow::Algorithm algorithm;
  bool packets = false;
};
constexpr Flow kFlows[] = {{Collective::all_reduce, flow::Algorithm::ring},
                           {Collective::reduce_scatter, flow::Algorithm::ring},
                           {Collective::all_reduce, flow::Algorithm::direct},
                           {Collective::all_reduce, flow::Algorithm::oneshot},
                           {Collective::all_gather, flow::Algorithm::ring},
                           {Collective::broadcast, flow::Algorithm::chain},
                           {Collective::all_reduce, flow::Algorithm::oneshot, true}};

TEST(PtxKernels, Resident) {
  std::string text = read_ptx("resident");
  if (text.empty()) GTEST_SKIP() << "no PTX: OURO_PTX names no folder with resident.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  for (const Flow& f : kFlows)
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      for (int n : {1, 2, 3, 5, 8})
        for (std::size_t count : {std::size_t{7}, n > 3 ? std::size_t{131} : std::size_t{901}}) {
          const ResidentRun run{case_of(f.collective, f.algorithm, t, count, f.packets),
                                n,
                                1 + n % 2,
                                n % 2 == 0 ? 64 : 96,
                                2,
                                seed % 2 == 0};
          const auto wrong = run_resident(module, run, seed);
          ASSERT_FALSE(wrong) << resident_test::describe(run.c) << ", " << n << " ranks, seed " << seed
                              << ": " << *wrong;
        }
}

// ---- Planted faults.

TEST(PtxKernels, PlantedFaultsAreFound) {
  const std::string text = read_ptx("resident");
  if (text.empty()) GTEST_SKIP() << "no PTX: OURO_PTX names no folder with resident.ptx";
  struct Planted {
    Flow flow;
    Fault fault;
  };
  const std::string ring = "resident_ring_all_reduce_f32", direct = "resident_direct_all_reduce_f32",
                    oneshot = "resident_oneshot_all_reduce_f32", gather = "resident_ring_all_gather",
                    packets = "resident_packets_f32", release = "st\\.release\\.sys\\.global\\.u64",
                    acquire = "ld\\.acquire\\.sys", barrier = "bar\\.sync \t0;";
  const Planted faults[] = {
      {kFlows[0], {"the scope of loads too narrow", ring, acquire, "ld.acquire.gpu"}},
      {kFlows[0], {"the scope of stores too narrow", ring, release, "st.release.gpu.global.u64"}},
      {kFlows[0], {"loads relaxed", ring, acquire, "ld.relaxed.sys"}},
      {kFlows[0], {"stores relaxed", ring, release, "st.relaxed.sys.global.u64"}},
      {kFlows[0], {"no barriers", ring, barrier, ""}},
      {kFlows[2], {"loads relaxed", direct, acquire, "ld.relaxed.sys"}},
      {kFlows[2], {"the scope of loads too narrow", direct, acquire, "ld.acquire.cta"}},
      {kFlows[3], {"stores relaxed", oneshot, release, "st.relaxed.sys.global.u64"}},
      {kFlows[3], {"no barriers", oneshot, barrier, ""}},
      {kFlows[4], {"flags are plain", gather, release, "st.global.u64"}},
      {kFlows[6],
       {"stores that are plain", packets, "st\\.volatile\\.global\\.v2\\.u64", "st.global.v2.u64"}},
      {kFlows[6],
       {"data and flag swapped", packets,
        "st\\.volatile\\.global\\.v2\\.u64 (\\S+) \\{(%rd\\d+), ?(%rd\\d+)\\}",
        "st.volatile.global.v2.u64 $1 {$3,$2}"}},
      {kFlows[6],
       {"a packet of four words", packets, "ld\\.volatile\\.global\\.v2\\.u64 \\{(%rd\\d+), ?(%rd\\d+)\\}",
        "ld.volatile.global.v2.u32 {$1,$2}"}},
  };
  for (const Planted& f : faults)
    expect_found(text, f.fault, [&](Module& module, std::uint64_t seed) {
      return run_resident(
          module,
          {case_of(f.flow.collective, f.flow.algorithm, DType::f32, 301, f.flow.packets), 3, 1, 64, 2}, seed);
    });
}

class Report : public testing::Environment {
 public:
  void SetUp() override { begin_ = std::chrono::steady_clock::now(); }
  void TearDown() override {
    const double minutes =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() / 60;
    const Totals& t = totals();
    std::printf(
        "%zu kernels, %d of %d planted faults found, %llu instructions, %llu strong accesses of which %llu "
        "read an old store, %.1f minutes\n",
        t.kernels.size(), t.found, t.planted, static_cast<unsigned long long>(t.instructions),
        static_cast<unsigned long long>(t.strong), static_cast<unsigned long long>(t.stale), minutes);
  }

 private:
  std::chrono::steady_clock::time_point begin_;
};
const auto* const report = testing::AddGlobalTestEnvironment(new Report);

}  // namespace
}  // namespace ptx

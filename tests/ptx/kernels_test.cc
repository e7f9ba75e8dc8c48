// Runs the resident kernels as compiled by nvcc, and plants faults in them; reports on everything that ran.
// Used by tools/gate ptx. OURO_PTX names the folder with the PTX, OURO_PTX_FIRST the seed of the order in
// which lanes run.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "runtime/core/collectives.h"
#include "tests/kernels/gpu_resident_cases.h"
#include "tests/ptx/kernels.h"

namespace ptx {
namespace {

using namespace ouro;
using namespace ouro::gpu;

// ---- Resident kernels: ranks are streams, each on its own device or all on one.

struct ResidentRun {
  resident_test::Case c;
  int ranks, channels, threads, operations;
  bool one_device = false;
};
/// Returns what was wrong, or nothing.
std::optional<std::string> run_resident(Module& module, const ResidentRun& run, std::uint64_t seed) {
  namespace rt = resident_test;
  rt::World w(run.ranks, run.channels, 2);
  if (run.c.algorithm == flow::Algorithm::nvls) w.with_switch();
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
            if (w.between) {
              const Multicast& part = w.between->part(r);
              m.add(part.region.data, part.region.bytes, Space::global, "the bound memory" + of);
              std::vector<std::uint64_t> all;
              for (int p = 0; p < run.ranks; ++p)
                all.push_back(reinterpret_cast<std::uint64_t>(w.between->part(p).region.data));
              m.add_multicast(reinterpret_cast<std::uint64_t>(part.data), part.bytes, all);
            }
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

struct Flow {
  Collective collective;
  flow::Algorithm algorithm;
  bool packets = false, pointers = false, uneven = false;
};
constexpr Flow kFlows[] = {{Collective::all_reduce, flow::Algorithm::ring},
                           {Collective::reduce_scatter, flow::Algorithm::ring},
                           {Collective::all_reduce, flow::Algorithm::direct},
                           {Collective::all_reduce, flow::Algorithm::oneshot},
                           {Collective::all_gather, flow::Algorithm::ring},
                           {Collective::broadcast, flow::Algorithm::chain},
                           {Collective::all_reduce, flow::Algorithm::oneshot, true}};

constexpr Flow kPointers[] = {{Collective::all_reduce, flow::Algorithm::direct, false, true},
                              {Collective::reduce_scatter, flow::Algorithm::direct, false, true},
                              {Collective::all_gather, flow::Algorithm::direct, false, true}};

constexpr Flow kUneven[] = {{Collective::all_to_all, flow::Algorithm::pairwise, false, true, true},
                            {Collective::all_gather, flow::Algorithm::direct, false, true, true},
                            {Collective::reduce_scatter, flow::Algorithm::direct, false, true, true}};

resident_test::Case case_of(const Flow& f, DType t, std::size_t count) {
  resident_test::Case x{f.collective, f.algorithm, t, OpKind::sum, count};
  x.packets = f.packets;
  x.pointers = f.pointers, x.uneven = f.uneven ? static_cast<unsigned>(count) + 1 : 0;
  x.shift = count % 4;
  return x;
}

/// Units of 16 bytes and single elements; through slots if one rank declines; in place.
TEST(PtxKernels, ByPointerMatchesTheReference) {
  std::string text = read_ptx("resident_pointer");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident_pointer.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  int turn = 0;
  for (const Flow& f : kPointers)
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      for (int n : {2, 3, 5, 8, 9})
        for (std::size_t count : {7, 132, n > 3 ? 131 : 901}) {
          resident_test::Case c = case_of(f, t, count);
          if (++turn % 4 == 0) c.declines = turn / 4 % n;
          if (turn % 3 == 0) c.aliasing = resident_test::Aliasing::exact;
          const ResidentRun run{c, n, 1 + n % 2, n % 2 == 0 ? 64 : 96, 2, seed % 2 == 0};
          const auto wrong = run_resident(module, run, seed);
          ASSERT_FALSE(wrong) << resident_test::describe(c) << ", " << n << " ranks, seed " << seed << ": "
                              << *wrong;
        }
}

/// Blocks of any lengths, some empty. If one rank declines, they go over slots, and long blocks take several.
TEST(PtxKernels, UnevenBlocksMatchTheReference) {
  std::string text = read_ptx("resident_pointer");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident_pointer.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  int turn = 0;
  for (const Flow& f : kUneven)
    for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::u8})
      for (int n : {2, 3, 5, 8})
        for (std::size_t count : {0, 19, n > 3 ? 131 : 701}) {
          if (t == DType::u8 && f.collective == Collective::reduce_scatter) continue;  // not in this file
          resident_test::Case c = case_of(f, t, count);
          if (++turn % 4 == 0) c.declines = turn / 4 % n;
          if (turn % 3 == 0 && f.collective != Collective::all_to_all)
            c.aliasing = resident_test::Aliasing::exact;
          const ResidentRun run{c, n, 1 + n % 2, n % 2 == 0 ? 64 : 96, 2, seed % 2 == 0};
          const auto wrong = run_resident(module, run, seed);
          ASSERT_FALSE(wrong) << resident_test::describe(c) << ", " << n << " ranks, seed " << seed << ": "
                              << *wrong;
        }
}

/// Through a switch: all types and reductions that it supports, and data movement; in place, with units that
/// end within 16 bytes, and with buffers at any alignment.
TEST(PtxKernels, SwitchedKernelsMatchTheReference) {
  std::string text = read_ptx("resident_switch");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident_switch.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  int turn = 0, ran = 0;
  for (const Collective of :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast})
    for (int t = 0; t < kDTypes; ++t)
      for (int k = 0; k < kOps; ++k) {
        const auto type = static_cast<DType>(t);
        const auto op = static_cast<OpKind>(k);
        if (!has_switched(of, type, op) || (!traits_of(of).reduces_all() && op != OpKind::sum)) continue;
        resident_test::Case c{of, flow::Algorithm::nvls, type, op, ++turn % 2 == 0 ? 133u : 901u};
        c.root = turn % 2;
        c.shift = static_cast<std::size_t>(turn % 4);
        if (turn % 3 == 0) c.aliasing = resident_test::Aliasing::exact;
        const int n = 2 + turn % 3;
        const auto wrong = run_resident(module, {c, n, 1 + n % 2, n % 2 == 0 ? 64 : 96, 2}, seed);
        ASSERT_FALSE(wrong) << resident_test::describe(c) << ", " << n << " ranks, seed " << seed << ": "
                            << *wrong;
        ++ran;
      }
  EXPECT_EQ(ran, 2 * 44 + 2 * kDTypes);
}

TEST(PtxKernels, ResidentKernelsMatchTheReference) {
  std::string text = read_ptx("resident");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  for (const Flow& f : kFlows)
    for (const DType t : {DType::f32, DType::f16, DType::bf16})
      for (int n : {1, 2, 3, 5, 8})
        for (std::size_t count : {std::size_t{7}, n > 3 ? std::size_t{131} : std::size_t{901}}) {
          const ResidentRun run{case_of(f, t, count), n, 1 + n % 2, n % 2 == 0 ? 64 : 96, 2, seed % 2 == 0};
          const auto wrong = run_resident(module, run, seed);
          ASSERT_FALSE(wrong) << resident_test::describe(run.c) << ", " << n << " ranks, seed " << seed
                              << ": " << *wrong;
        }
}

// ---- Planted faults.

TEST(PtxKernels, PlantedFaultsAreFound) {
  const std::string text = read_ptx("resident");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident.ptx";
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
  const auto look_for = [](const std::string& in, const Planted& f) {
    expect_found(in, f.fault, [&](Module& module, std::uint64_t seed) {
      return run_resident(module, {case_of(f.flow, DType::f32, 301), 3, 1, 64, 2}, seed);
    });
  };
  for (const Planted& f : faults) look_for(text, f);
  const std::string by_pointer = read_ptx("resident_pointer"), reduce = "resident_pointer_all_reduce_f32",
                    gathers = "resident_pointer_all_gather", pairs = "resident_uneven_all_to_all";
  if (by_pointer.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident_pointer.ptx";
  for (const Planted& f :
       {Planted{kPointers[0], {"loads relaxed", reduce, acquire, "ld.relaxed.sys"}},
        Planted{kPointers[0], {"stores relaxed", reduce, release, "st.relaxed.sys.global.u64"}},
        Planted{kPointers[0],
                {"the scope of stores too narrow", reduce, release, "st.release.gpu.global.u64"}},
        Planted{kPointers[0], {"no barriers", reduce, barrier, ""}},
        Planted{kPointers[2], {"loads relaxed", gathers, acquire, "ld.relaxed.sys"}},
        Planted{kPointers[2], {"stores relaxed", gathers, release, "st.relaxed.sys.global.u64"}},
        Planted{kUneven[0], {"loads relaxed", pairs, acquire, "ld.relaxed.sys"}},
        Planted{kUneven[0], {"stores relaxed", pairs, release, "st.relaxed.sys.global.u64"}},
        Planted{kUneven[0], {"no barriers", pairs, barrier, ""}}})
    look_for(by_pointer, f);
}

TEST(PtxKernels, FaultsPlantedInSwitchedAreFound) {
  const std::string text = read_ptx("resident_switch");
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with resident_switch.ptx";
  const std::string sums = "resident_switch_f32", moves = "resident_switch_moves",
                    release = "st\\.release\\.sys\\.global\\.u64", acquire = "ld\\.acquire\\.sys",
                    fence = "fence\\.proxy\\.alias;";
  constexpr Flow kReduces{Collective::all_reduce, flow::Algorithm::nvls},
      kScatters{Collective::reduce_scatter, flow::Algorithm::nvls},
      kGathers{Collective::all_gather, flow::Algorithm::nvls};
  struct Planted {
    Flow flow;
    Fault fault;
  };
  for (const Planted& f :
       {Planted{kReduces, {"loads relaxed", sums, acquire, "ld.relaxed.sys"}},
        Planted{kReduces, {"the scope of stores too narrow", sums, release, "st.release.gpu.global.u64"}},
        Planted{kReduces, {"no barriers", sums, "bar\\.sync \t0;", ""}},
        Planted{kReduces, {"no fences of aliases", sums, fence, ""}},
        Planted{kReduces,
                {"stores to this rank alone", sums, "multimem\\.st\\.relaxed\\.sys\\.global\\.v4\\.f32",
                 "st.global.v4.f32"}},
        Planted{kScatters, {"no fences of aliases", sums, fence, ""}},
        Planted{kGathers, {"no fences of aliases", moves, fence, ""}},
        Planted{kGathers, {"stores relaxed", moves, release, "st.relaxed.sys.global.u64"}}})
    expect_found(text, f.fault, [&](Module& module, std::uint64_t seed) {
      return run_resident(module, {case_of(f.flow, DType::f32, 301), 3, 1, 64, 2}, seed);
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

// Runs the project's kernels as nvcc made them, and plants faults in them. Used by tools/gate ptx; OURO_PTX
// names the folder with the PTX, OURO_PTX_FIRST the seed of the order in which lanes run.
#include <chrono>
#include <cstdio>
#include <optional>

#include "tests/kernels/gpu_optim.h"
#include "tests/kernels/gpu_resident_cases.h"
#include "tests/ptx/kernels.h"

namespace ptx {
namespace {

using namespace ouro;
using namespace ouro::gpu;

std::uint64_t first_seed() {
  const char* text = std::getenv("OURO_PTX_FIRST");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}
template <class Args>
std::vector<std::byte> bytes_of(const Args& args) {
  const auto* p = reinterpret_cast<const std::byte*>(&args);
  return {p, p + sizeof args};
}

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

// ---- Optimisers: all arrays must become what the host's half makes of them.

std::optional<std::string> run_update(Module& module, const kernels::optim::Call& call,
                                      kernels::optim::Layout layout, Form form, std::size_t count,
                                      std::size_t shift, std::uint64_t seed) {
  Arrays wanted(layout, count, shift, seed), got = wanted;
  Control controls[2] = {};
  gpu::Launch launch;
  const auto args_for = [&](Arrays& a, Control& c) {
    UpdateArgs args = args_of(call, layout, c);
    args.form = form;
    args.one[0] = tensor_of(a);
    args.weights = {.keep = 0.3, .take = 0.7, .send = 0.35};
    args.matrix[0][0] = 1;
    const Result<gpu::Launch> found = update(args, 3);
    if (found.ok()) launch = *found;
    return args;
  };
  const UpdateArgs host = args_for(wanted, controls[0]);
  for (int b = 0; b < launch.shape.blocks; ++b) launch.kernel->host(&host, b, launch.shape.blocks);
  const UpdateArgs device = args_for(got, controls[1]);
  const Function* f = entry_of(module, *launch.kernel);
  if (f == nullptr) return std::string("no entry for ") + launch.kernel->name;
  try {
    run_streams(seed, {{0, {{f, launch.shape.blocks, launch.shape.threads, bytes_of(device), false}}}},
                [&](Memory& m) {
                  m.add(&controls[1], sizeof(Control), Space::global, "control");
                  for (Bytes* b : {&got.value, &got.gradient, &got.master, &got.state[0], &got.state[1],
                                   &got.state[2], &got.neighbours, &got.message})
                    m.add(b->data(), b->size(), Space::global, "an array");
                });
  } catch (const Violation& v) {
    return v.what();
  }
  if (!(wanted == got)) return std::string("wrong bits of ") + launch.kernel->name;
  if (std::memcmp(&controls[0], &controls[1], sizeof(Control)) != 0) return "another control word";
  return std::nullopt;
}

TEST(PtxKernels, Updates) {
  std::string text = read_ptx("optim");
  if (text.empty()) GTEST_SKIP() << "no PTX: OURO_PTX names no folder with optim.ptx";
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  for (const auto& call : kernels::optim::all_calls())
    for (const auto& layout : kLayouts)
      for (Form form : {Form::plain, Form::exchange, Form::leader})
        for (std::size_t count : {std::size_t{1}, std::size_t{517}}) {
          const std::size_t shift = count % 2 * (layout.dtype == DType::f64 ? 8 : 4);
          const auto wrong = run_update(module, call, layout, form, count, count == 1 ? shift : 0, seed);
          ASSERT_FALSE(wrong) << call.name << ", " << kernels::optim::label(layout) << ", form "
                              << static_cast<int>(form) << ", count " << count << ": " << *wrong;
        }
}

// ---- Planted faults.

struct Fault {
  const char* what;
  const char* kernel;
  Edit edit;
  Flow flow;
};
TEST(PtxKernels, PlantedFaultsAreFound) {
  const std::string text = read_ptx("resident");
  if (text.empty()) GTEST_SKIP() << "no PTX: OURO_PTX names no folder with resident.ptx";
  const Fault faults[] = {
      {"ring: the scope of loads too narrow",
       "ring_all_reduce_f32",
       {"ld.acquire.sys", "ld.acquire.gpu"},
       kFlows[0]},
      {"ring: the scope of stores too narrow",
       "ring_all_reduce_f32",
       {"st.release.sys.global.u64", "st.release.gpu.global.u64"},
       kFlows[0]},
      {"ring: loads relaxed", "ring_all_reduce_f32", {"ld.acquire.sys", "ld.relaxed.sys"}, kFlows[0]},
      {"ring: stores relaxed",
       "ring_all_reduce_f32",
       {"st.release.sys.global.u64", "st.relaxed.sys.global.u64"},
       kFlows[0]},
      {"direct: loads relaxed", "direct_all_reduce_f32", {"ld.acquire.sys", "ld.relaxed.sys"}, kFlows[2]},
      {"oneshot: stores relaxed",
       "oneshot_all_reduce_f32",
       {"st.release.sys.global.u64", "st.relaxed.sys.global.u64"},
       kFlows[3]},
      {"ring: no barriers", "ring_all_reduce_f32", {"bar.sync \t0;", ""}, kFlows[0]},
      {"packets: stores that are plain",
       "packets_f32",
       {"st.volatile.global.v2.u64", "st.global.v2.u64"},
       kFlows[6]},
      {"oneshot: no barriers", "oneshot_all_reduce_f32", {"bar.sync \t0;", ""}, kFlows[3]},
      {"direct: the scope of loads too narrow",
       "direct_all_reduce_f32",
       {"ld.acquire.sys", "ld.acquire.cta"},
       kFlows[2]},
      {"gather: flags are plain",
       "ring_all_gather",
       {"st.release.sys.global.u64", "st.global.u64"},
       kFlows[4]},
  };
  int found = 0, planted = 0;
  for (const Fault& f : faults) {
    std::string changed = text;
    if (!edit(changed, f.kernel, f.edit)) {
      std::printf("not there: %s\n", f.what);
      continue;
    }
    ++planted;
    Module module(std::move(changed));
    std::optional<std::string> wrong;
    for (std::uint64_t seed = 1; seed <= 20 && !wrong; ++seed)
      wrong = run_resident(
          module,
          {case_of(f.flow.collective, f.flow.algorithm, DType::f32, 301, f.flow.packets), 3, 1, 64, 2}, seed);
    EXPECT_TRUE(wrong) << "not found: " << f.what;
    if (wrong) ++found, std::printf("found: %s: %s\n", f.what, wrong->substr(0, wrong->find('\n')).c_str());
  }
  std::printf("%d of %d planted faults found\n", found, planted);
}

class Report : public testing::Environment {
 public:
  void SetUp() override { begin_ = std::chrono::steady_clock::now(); }
  void TearDown() override {
    const double minutes =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() / 60;
    const Totals& t = totals();
    std::printf(
        "%zu kernels, %llu instructions, %llu strong accesses of which %llu read an old store, %.1f "
        "minutes\n",
        t.kernels.size(), static_cast<unsigned long long>(t.instructions),
        static_cast<unsigned long long>(t.strong), static_cast<unsigned long long>(t.stale), minutes);
  }

 private:
  std::chrono::steady_clock::time_point begin_;
};
const auto* const report = testing::AddGlobalTestEnvironment(new Report);

}  // namespace
}  // namespace ptx

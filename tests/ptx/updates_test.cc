// Runs the optimiser kernels and surveys as compiled by nvcc beside their host counterparts, and plants
// faults in them. Used by tools/gate ptx.
#include <map>
#include <set>
#include <tuple>

#include "tests/kernels/gpu_optim_world.h"
#include "tests/ptx/kernels.h"

namespace ptx {
namespace {

using namespace ouro;
using namespace ouro::gpu;
using kernels::optim::all_calls;

void name_memory(UpdateWorld& w, Memory& m) {
  m.add(&w.control, sizeof w.control, Space::global, "control");
  m.add(&w.skip, sizeof w.skip, Space::global, "the skip word");
  m.add(w.matrix, sizeof w.matrix, Space::global, "the matrix");
  m.add(w.scale, sizeof w.scale, Space::global, "scales");
  m.add(&w.weights, sizeof w.weights, Space::global, "weights");
  if (w.args.list.tensors != nullptr) {
    const auto* const end = w.args.list.blocks + w.args.list.block_count;
    m.add(const_cast<Tensor*>(w.args.list.tensors),
          static_cast<std::size_t>(reinterpret_cast<const std::byte*>(end) -
                                   reinterpret_cast<const std::byte*>(w.args.list.tensors)),
          Space::global, "a list");
  }
  for (Arrays& a : w.arrays)
    for (Bytes* b :
         {&a.value, &a.gradient, &a.master, &a.state[0], &a.state[1], &a.state[2], &a.neighbours, &a.message})
      m.add(b->data(), b->size(), Space::global, "an array");
}

/// Returns what was wrong, or nothing.
std::optional<std::string> run_update(Module& module, const UpdateCase& c, std::uint64_t seed) {
  UpdateWorld wanted(c, seed), got(c, seed);
  const Result<gpu::Launch> launch = update(got.args, 3);
  if (!launch.ok()) return launch.status().message();
  run(*launch, &wanted.args);
  const Function* f = entry_of(module, *launch->kernel);
  if (f == nullptr) return std::string("no entry for ") + launch->kernel->name;
  try {
    run_streams(seed, {{0, {{f, launch->shape.blocks, launch->shape.threads, bytes_of(got.args), false}}}},
                [&](Memory& m) { name_memory(got, m); });
  } catch (const Violation& v) {
    return v.what();
  }
  if (const auto wrong = got.differs(wanted)) return *wrong + " of " + launch->kernel->name;
  return std::nullopt;
}
#define OURO_NEEDS_PTX(text)            \
  std::string text = read_ptx("optim"); \
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with optim.ptx"

TEST(PtxUpdates, SingleUpdatesMatchTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  std::uint64_t turn = seed;
  for (const auto& call : all_calls())
    for (const auto& layout : kLayouts)
      for (Form form : {Form::plain, Form::exchange, Form::leader})
        for (std::size_t count : {std::size_t{1}, std::size_t{517}}) {
          ++turn;
          const UpdateCase c{.call = call,
                             .layout = layout,
                             .form = form,
                             .ranks = form == Form::leader ? 1 + turn % 8 : 1,
                             .counts = {count},
                             .shift = count == 1 ? std::size_t{8} : 0,
                             .skip = turn % 17 == 0,
                             .in_memory = turn % 2 == 0};
          const auto wrong = run_update(module, c, seed);
          ASSERT_FALSE(wrong) << text_of(c) << ": " << *wrong;
        }
}

/// Every kernel has several chunks and several blocks; leaders have few ranks and many.
TEST(PtxUpdates, ListsOfUpdatesMatchTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  const std::uint64_t seed = first_seed();
  const auto calls = all_calls();
  std::uint64_t turn = seed * 3;
  for (const auto& layout : kLayouts)
    for (Family family : {Family::sgd, Family::adam, Family::accum_adam}) {
      std::vector<Call> of;
      for (const Call& call : calls)
        if (gpu::family_of(call.update) == family) of.push_back(call);
      for (std::size_t ranks : {0, 1, 3, 6}) {  // 0: exchange
        const Call& call = of[static_cast<std::size_t>(++turn) % of.size()];
        const Form form = ranks == 0 ? Form::exchange : ranks == 1 ? Form::plain : Form::leader;
        const UpdateCase c{.call = call,
                           .layout = layout,
                           .form = form,
                           .ranks = std::max<std::size_t>(ranks, 1),
                           .counts = {33, 0, ranks > 3 ? std::size_t{1300} : std::size_t{2500}, 1, 260},
                           .shift = 8,
                           .in_memory = turn % 2 == 0};
        const auto wrong = run_update(module, c, seed + turn);
        ASSERT_FALSE(wrong) << text_of(c) << ": " << *wrong;
      }
    }
}

/// Each instruction by which the 32 lanes of a warp move data must fill all 32-byte sectors that it touches.
TEST(PtxUpdates, WarpsMoveWholeSectors) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  for (const Call& call : {all_calls()[5], all_calls()[8], all_calls()[10]})
    for (const auto& layout : kLayouts)
      for (Form form : {Form::plain, Form::exchange, Form::leader}) {
        const UpdateCase c{.call = call,
                           .layout = layout,
                           .form = form,
                           .ranks = form == Form::leader ? std::size_t{3} : 1,
                           .counts = {4096}};
        UpdateWorld w(c, 1);
        for (Arrays& a : w.arrays) ASSERT_EQ(reinterpret_cast<std::uintptr_t>(a.at(a.value)) % 16, 0u);
        const Result<gpu::Launch> launch = update(w.args, 1);
        ASSERT_TRUE(launch.ok());
        const Function* f = entry_of(module, *launch->kernel);
        ASSERT_NE(f, nullptr);
        // By instruction, warp, and the number of times the lane has executed it.
        std::map<std::tuple<const Instr*, int, int, int>, std::pair<std::set<std::uint64_t>, std::uint64_t>>
            seen;
        std::map<std::tuple<const Instr*, int, int>, int> times;
        run_streams(
            1, {{0, {{f, launch->shape.blocks, launch->shape.threads, bytes_of(w.args), false}}}},
            [&](Memory& m) { name_memory(w, m); }, 400'000'000,
            [&](const Lane& l, const Instr& i, std::uint64_t address) {
              const std::uint64_t bytes = std::uint64_t{i.access.bytes} * i.access.width;
              if (i.access.space != Space::global || bytes * 32 < 256)
                return;  // control words and single elements do not count
              auto& [sectors, moved] =
                  seen[{&i, l.block->index, l.thread / 32, times[{&i, l.block->index, l.thread}]++}];
              moved += bytes;
              for (std::uint64_t at = address / 32; at <= (address + bytes - 1) / 32; ++at)
                sectors.insert(at);
            });
        std::uint64_t touched = 0, moved = 0, requests = 0;
        for (const auto& [key, what] : seen) {
          if (what.second < 256) continue;  // moved by a single lane
          touched += 32 * what.first.size();
          moved += what.second;
          ++requests;
        }
        EXPECT_GT(requests, 0u) << launch->kernel->name;
        // An array is aligned to 16 bytes: half a sector more at each end of a request.
        EXPECT_LE(touched, moved + 32 * requests) << launch->kernel->name;
      }
}

// ---- Surveys.

std::optional<std::string> run_survey(Module& module, DType t, const std::vector<std::size_t>& counts,
                                      std::uint64_t seed) {
  const UpdateCase c{
      .call = all_calls()[8], .layout = {t, false}, .counts = counts, .odd = counts[0] % 4 == 1};
  UpdateWorld w(c, seed);
  SurveyState states[2];
  arith::GradientScale scales[2] = {{.inverse = 0.3}, {.inverse = 0.3}};
  SurveyArgs args[2];
  for (int k = 0; k < 2; ++k) {
    args[k] = {
        .dtype = t, .scale_at = &scales[k], .clip_norm = 0.5, .state = &states[k], .list = w.args.list};
    if (counts.size() == 1) args[k].gradient = w.args.one[0].gradient, args[k].count = counts[0];
  }
  const Result<gpu::Launch> launch = survey(args[0]);
  if (!launch.ok()) return launch.status().message();
  run(*launch, &args[0]);
  const Function* f = entry_of(module, *launch->kernel);
  if (f == nullptr) return std::string("no entry for ") + launch->kernel->name;
  try {
    run_streams(seed, {{0, {{f, launch->shape.blocks, launch->shape.threads, bytes_of(args[1]), false}}}},
                [&](Memory& m) {
                  name_memory(w, m);
                  m.add(&states[1], sizeof states[1], Space::global, "the survey's state");
                  m.add(&scales[1], sizeof scales[1], Space::global, "the survey's scale");
                });
  } catch (const Violation& v) {
    return v.what();
  }
  const double clip = scales[0].clip, other = scales[1].clip;  // the payload of a NaN is not guaranteed
  if (std::memcmp(&states[0], &states[1], offsetof(SurveyState, chain)) != 0 ||
      (clip != other && !(std::isnan(clip) && std::isnan(other))))
    return std::string("wrong bits of ") + launch->kernel->name;
  return std::nullopt;
}
TEST(PtxUpdates, SurveysMatchTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {0}, {1}, {63}, {65}, {4095}, {4097}, {40002}, {4, 1013, 0, 9000, 5000, 63, 8192}}) {
      const auto wrong = run_survey(module, t, counts, first_seed());
      ASSERT_FALSE(wrong) << name(t) << ", " << counts.size() << " tensors from " << counts[0]
                          << " on: " << *wrong;
    }
}

TEST(PtxUpdates, PlantedFaultsAreFound) {
  OURO_NEEDS_PTX(text);
  struct Planted {
    Fault fault;
    UpdateCase c;
  };
  const auto calls = all_calls();
  const UpdateCase adam{.call = calls[8], .layout = kLayouts[1], .counts = {33, 2500, 260}, .odd = false},
      leader{.call = calls[10],
             .layout = kLayouts[3],
             .form = Form::leader,
             .ranks = 6,
             .counts = {33, 1300},
             .odd = false},
      small{.call = calls[10],
            .layout = kLayouts[3],
            .form = Form::leader,
            .ranks = 6,
            .counts = {33, 1, 2, 3, 40, 5, 7, 9, 10, 11},
            .odd = false},
      sgd{.call = calls[4],
          .layout = kLayouts[4],
          .form = Form::exchange,
          .counts = {700, 900},
          .odd = false};
  const std::string fence = "membar\\.gl;", barrier = "bar\\.sync \t0;",
                    accum = "accum_adam bfloat16 master leader 8",
                    four = "\\{(%r\\d+), ?(%r\\d+), ?(%r\\d+), ?(%r\\d+)\\}";
  const Planted faults[] = {
      {{"the fence before the count dropped", "adam float", fence, "", 0}, adam},
      {{"the fence after the count dropped", "adam float", fence, "", 1}, adam},
      {{"the scope of fences too narrow", "adam float", fence, "membar.cta;"}, adam},
      {{"the count's scope too narrow", "adam float", "atom\\.global\\.add", "atom.cta.global.add"}, adam},
      {{"no barriers", "adam float", barrier, ""}, adam},
      {{"no barrier after the coefficients", "adam float", barrier, "", 0}, adam},
      {{"parameters by the read-only path", "adam float", "ld\\.global\\.L1::no_allocate",
        "ld.global.nc.L1::no_allocate"},
       adam},
      {{"two words of loads swapped", "adam float", "L1::no_allocate\\.v4\\.u32 " + four,
        "L1::no_allocate.v4.u32 {$2,$1,$3,$4}"},
       adam},
      {{"stores of two words", "adam float", "st\\.global\\.cs\\.v4\\.u32 (\\S+) " + four,
        "st.global.cs.v2.u32 $1 {$2,$3}"},
       adam},
      {{"the fence before the count dropped", accum, fence, "", 0}, small},
      {{"no barriers", accum, barrier, ""}, small},
      {{"no barrier before the next tensor", accum, barrier, "", 3}, small},
      {{"no barrier after the next tensor's records", accum, barrier, "", 4}, small},
      {{"two words of stores swapped", accum, "st\\.global\\.cs\\.v4\\.u32 (\\S+) " + four,
        "st.global.cs.v4.u32 $1 {$3,$2,$4,$5}"},
       leader},
      {{"the scope of fences too narrow", "sgd half exchange", fence, "membar.cta;"}, sgd},
      {{"no barrier after the coefficients", "sgd half exchange", barrier, "", 0}, sgd},
      {{"operands of conversions swapped", "sgd half exchange", "cvt\\.f32\\.f16 (%f\\d+), (%rs\\d+)",
        "cvt.f32.f16 $1, 0"},
       sgd},
  };
  // Only few orders of blocks reveal that one of several words is read too late: more seeds than elsewhere.
  for (const Planted& f : faults)
    expect_found(
        text, f.fault, [&](Module& module, std::uint64_t seed) { return run_update(module, f.c, seed); },
        200);

  const Fault surveys[] = {
      {"the fence before the count dropped", "survey float", fence, "", 0},
      {"the fence after the count dropped", "survey float", fence, "", 1},
      {"the scope of fences too narrow", "survey bfloat16", fence, "membar.cta;"},
      {"no barriers", "survey float", barrier, ""},
      {"no barrier in the last fold", "survey float", barrier, "", 12},
      {"operands of a sum exchanged", "survey double", "add\\.rn\\.f64 *\t(%fd\\d+), (%fd\\d+), (%fd\\d+)",
       "sub.rn.f64 \t$1, $3, $2"},
  };
  for (const Fault& f : surveys)
    expect_found(text, f, [&](Module& module, std::uint64_t seed) {
      const DType t = f.kernel.ends_with("double")  ? DType::f64
                      : f.kernel.ends_with("float") ? DType::f32
                                                    : DType::bf16;
      return run_survey(module, t, {20000}, seed);
    });
}

}  // namespace
}  // namespace ptx

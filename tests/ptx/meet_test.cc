// How ranks that share a GPU meet by kernels (MeetArgs, LaunchEnd), as compiled by nvcc: three streams, in
// each of which a copy writes the rank's input, the ranks meet for a sum by one launch, and a copy reads the
// output. Used by tools/gate ptx.
#include <gtest/gtest.h>

#include "tests/ptx/collect.h"

namespace ptx {
namespace {

constexpr int kRanks = 3, kTimes = 2, kCount = 100, kThreads = 32;  // three blocks of the sum

/// Returns what was wrong, or nothing.
std::optional<std::string> sums(Module& module, std::uint64_t seed) {
  using Floats = std::vector<float>;
  const auto arrays = [](float v) { return std::vector<Floats>(kRanks, Floats(kCount, v)); };
  constexpr int kLine = 16;
  struct Words {
    alignas(64) std::uint32_t come[kRanks * kLine] = {};
    std::uint32_t finished = 0, blocks = 0, stop = 0, late = 0, ended[kRanks] = {};
  } words;
  auto in = arrays(0), out = arrays(0);
  std::vector<std::vector<Floats>> given, result;
  const auto at = [](const Floats& f) { return reinterpret_cast<const std::byte*>(f.data()); };
  const auto to = [](Floats& f) { return reinterpret_cast<std::byte*>(f.data()); };
  std::vector<Stream> streams(kRanks);
  const Kernel& meet = *gpu::meet().kernel;
  for (std::uint32_t k = 1; k <= kTimes; ++k) {
    given.push_back(arrays(0)), result.push_back(arrays(0));
    for (int r = 0; r < kRanks; ++r)
      for (int i = 0; i < kCount; ++i) given.back()[r][i] = static_cast<float>(100 * r + 7 * i) + k;
  }
  for (std::uint32_t k = 1; k <= kTimes; ++k) {
    const int leader = static_cast<int>(k + seed) % kRanks;
    for (int r = 0; r < kRanks; ++r) {
      const auto add = [&](const Kernel& kernel, int blocks, int threads, const auto& args) {
        streams[r].launches.push_back(
            {entry_of(module, kernel), blocks, threads, bytes_of(args), kernel.spins});
      };
      const auto copy = [&](std::byte* to, const std::byte* from) {
        HopArgs a;
        a.dtype = DType::f32, a.count = kCount, a.mine = from, a.store = to;
        add(*hop(a, 2).kernel, 1, kThreads, a);
      };
      copy(to(in[r]), at(given[k - 1][r]));
      MeetArgs m;
      m.arrived = {&words.come[r * kLine], k};
      m.number = k, m.deadline_ns = UINT64_MAX, m.stop = &words.stop, m.late = &words.late;
      if (r == leader) {
        m.awaited = words.come, m.stride = kLine, m.words = kRanks, m.skip = r;
        add(meet, 1, kThreads, m);
        FusedArgs a;
        a.collective = Collective::all_reduce, a.dtype = DType::f32, a.ranks = kRanks, a.count = kCount;
        a.stop = &words.stop;
        for (int q = 0; q < kRanks; ++q) a.in[q] = at(in[q]), a.out[q] = to(out[q]);
        a.end = {.blocks = &words.blocks, .finished = {&words.finished, k}, .ended = {&words.ended[r], k}};
        add(*fused(a, 2).kernel, 3, kThreads, a);
      } else {
        m.awaited = &words.finished, m.words = 1;
        m.end.ended = {&words.ended[r], k};
        add(meet, 1, kThreads, m);
      }
      copy(to(result[k - 1][r]), at(out[r]));
    }
  }
  try {
    run_streams(
        seed, streams,
        [&](Memory& m) {
          m.add(&words, sizeof words, Space::global, "the words");
          for (int r = 0; r < kRanks; ++r) {
            const std::string of = " of rank " + std::to_string(r);
            m.add(in[r].data(), 4 * kCount, Space::global, "the input" + of);
            m.add(out[r].data(), 4 * kCount, Space::global, "the output" + of);
            for (int k = 0; k < kTimes; ++k) {
              m.add(given[k][r].data(), 4 * kCount, Space::global, "what is given" + of);
              m.add(result[k][r].data(), 4 * kCount, Space::global, "the result" + of);
            }
          }
        },
        20'000'000);
  } catch (const Violation& v) {
    return v.what();
  }
  for (int k = 0; k < kTimes; ++k)
    for (int r = 0; r < kRanks; ++r)
      for (int i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int q = 0; q < kRanks; ++q) sum += given[k][q][i];
        if (result[k][r][i] != sum) return "a wrong sum";
      }
  for (const std::uint32_t e : words.ended)
    if (e != kTimes) return "a launch that has not ended";
  if (words.blocks != 0 || words.late != 0 || words.stop != 0) return "words";
  return std::nullopt;
}

TEST(PtxMeet, StreamsOfRanksWaitForEachOther) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 20; ++seed) {
    const auto wrong = sums(module, seed);
    ASSERT_FALSE(wrong) << "seed " << seed << ": " << *wrong;
  }
}

TEST(PtxMeet, PlantedFaultsAreFound) {
  OURO_NEEDS_PTX(text);
  const Fault faults[] = {
      {"arrival and end without a release", "meet", "st\\.release\\.sys", "st.relaxed.sys"},
      {"words seen without an acquire", "meet", "ld\\.acquire\\.sys", "ld.relaxed.sys"},
      {"words read by a plain load", "meet", "ld\\.acquire\\.sys", "ld"},
      {"blocks that end without an order", "fused_f32_sum_n", "atom\\.acq_rel\\.gpu", "atom.relaxed.gpu"},
      {"the last block does not acquire", "fused_f32_sum_n", "atom\\.acq_rel\\.gpu", "atom.release.gpu"},
      {"the end without a release", "fused_f32_sum_n", "st\\.release\\.sys", "st.relaxed.sys"},
      {"every block says that all have ended", "fused_f32_sum_n",
       "atom\\.acq_rel\\.gpu\\.global\\.add\\.u32 (\\S+), (\\S+), 1", "mov.u32 $1, 2"},
  };
  for (const Fault& f : faults) expect_found(text, f, sums, 40);
}

}  // namespace
}  // namespace ptx

// Selects the kernel for a fused collective or a hop, and its shape; the bodies that host threads run.
// See collect.h.
#include <algorithm>
#include <cassert>
#include <string>
#include <vector>

#include "kernels/flow/specialisations.h"
#include "kernels/gpu/collect_body.h"

namespace ouro::gpu {
using namespace collect;
namespace {

template <class Args, void (*kBody)(const Args&, const HostBlock&)>
void host_entry(const void* args, int block, int blocks) {
  kBody(*static_cast<const Args*>(args), HostBlock{block, blocks});
}
template <class Args, void (*kBody)(const Args&, const HostBlock&)>
Kernel kernel(const char* name, const void* device) {
  return {name, device, &host_entry<Args, kBody>, sizeof(Args), false};
}

template <void (*kBody)(const FusedArgs&, const HostBlock&)>
Kernel fused_kernel(const char* name, const void* device) {
  return kernel<FusedArgs, fused_launch<HostBlock, kBody>>(name, device);
}

struct Kernels {
  Kernel fused_move, fused_generic, hop_move, hop_generic, gather_runs, meet;
  Kernel fused_hot[kHotReductions][4];
  Kernel hop_hot[kHotReductions];
  std::vector<const Kernel*> all;

  Kernels() {
    const Entries entries = device_entries();
    fused_move = fused_kernel<collect::fused_move<HostBlock>>("fused_move", entries.fused_move);
    fused_generic = fused_kernel<collect::fused_generic<HostBlock>>("fused_generic", entries.fused_generic);
    hop_move = kernel<HopArgs, collect::hop_move<HostBlock>>("hop_move", entries.hop_move);
    hop_generic = kernel<HopArgs, collect::hop_generic<HostBlock>>("hop_generic", entries.hop_generic);
    gather_runs = kernel<GatherArgs, collect::gather_runs<HostBlock>>("gather_runs", entries.gather_runs);
    meet = kernel<MeetArgs, collect::meet<HostBlock>>("meet", entries.meet);
    meet.spins = true;
    int i = 0;
#define OURO_X(t, op)                                                                                    \
  {                                                                                                      \
    using R = arith::ReductionFor<DType::t, OpKind::op>;                                                 \
    const void* const* const device = entries.fused_hot[i];                                              \
    fused_hot[i][0] =                                                                                    \
        fused_kernel<collect::fused_hot<R, 2, HostBlock>>("fused_" #t "_" #op "_2", device[0]);          \
    fused_hot[i][1] =                                                                                    \
        fused_kernel<collect::fused_hot<R, 4, HostBlock>>("fused_" #t "_" #op "_4", device[1]);          \
    fused_hot[i][2] =                                                                                    \
        fused_kernel<collect::fused_hot<R, 8, HostBlock>>("fused_" #t "_" #op "_8", device[2]);          \
    fused_hot[i][3] =                                                                                    \
        fused_kernel<collect::fused_hot<R, 0, HostBlock>>("fused_" #t "_" #op "_n", device[3]);          \
    hop_hot[i] = kernel<HopArgs, collect::hop_hot<R, HostBlock>>("hop_" #t "_" #op, entries.hop_hot[i]); \
    ++i;                                                                                                 \
  }
    OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
    all = {&fused_move, &fused_generic, &hop_move, &hop_generic, &gather_runs, &meet};
    for (const auto& row : fused_hot)
      for (const Kernel& k : row) all.push_back(&k);
    for (const Kernel& k : hop_hot) all.push_back(&k);
  }
};
const Kernels& kernels() {
  static const Kernels* const k =
      new Kernels;  // never destroyed: kernel names are used until the process ends
  return *k;
}

/// The row of (t, op) in OURO_HOT_REDUCTIONS, or -1.
int hot(DType t, OpKind op) {
  int i = 0;
#define OURO_X(type, kind)                              \
  if (t == DType::type && op == OpKind::kind) return i; \
  ++i;
  OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
  return -1;
}
int hot_ranks(int ranks) {
  int i = 0;
  while (kHotRanks[i] != 0 && kHotRanks[i] != ranks) ++i;
  return i;
}
/// The hot kernels require addresses aligned to whole elements; the others accept any address.
bool whole(const void* p, std::size_t size) { return address(p) % size == 0; }

Launch launch(const Kernel& kernel, std::uint64_t bytes, int pieces, int multiprocessors) {
  const std::uint64_t most = static_cast<std::uint64_t>(std::max(multiprocessors, 1)) * kResidentBlocks;
  const std::uint64_t tiles = tiles_of(bytes, kThreads, 1) + static_cast<std::uint64_t>(pieces - 1);
  return {&kernel, {static_cast<int>(std::min(tiles, most)), kThreads}};
}

}  // namespace

Launch fused(const FusedArgs& a, int multiprocessors) {
  assert(a.ranks >= 1 && a.ranks <= FusedArgs::kMaxRanks);
  assert(!a.uneven || a.collective != Collective::all_to_all || a.ranks <= FusedArgs::kMaxUnevenPairs);
  const std::size_t size = size_of(a.dtype);
  const std::uint64_t bytes = elements(a) * size;
  if (bytes == 0 || !flow::specialised(flow::Specialisation::fused, a.collective, flow::kAllReached))
    return {nullptr, {0, 0}};
  const Kernels& k = kernels();
  const int pieces = pieces_of(a);
  if (moves(a.collective)) return launch(k.fused_move, bytes, pieces, multiprocessors);
  assert(applies(a.op, a.dtype));
  const int row = hot(a.dtype, a.op);
  bool is_whole = true;
  for (int r = 0; r < a.ranks; ++r) is_whole &= whole(a.in[r], size) && whole(a.out[r], size);
  const Kernel& reduce = row < 0 || !is_whole ? k.fused_generic : k.fused_hot[row][hot_ranks(a.ranks)];
  return launch(reduce, bytes, pieces, multiprocessors);
}

Launch hop(const HopArgs& a, int multiprocessors) {
  assert(a.incoming != nullptr || a.mine != nullptr);
  if (a.count == 0 || (a.store == nullptr && a.keep == nullptr && a.send == nullptr))
    return {nullptr, {0, 0}};
  const Kernels& k = kernels();
  const std::size_t size = size_of(a.dtype);
  if (only_moves(a)) {
    const bool wide = a.incoming != nullptr ? a.incoming_wide : a.mine_wide;
    return launch(k.hop_move, a.count * (wide ? arith::accumulator_bytes(a.dtype, a.op) : size), 1,
                  multiprocessors);
  }
  assert(applies(a.op, a.dtype));
  const std::size_t acc = arith::accumulator_bytes(a.dtype, a.op);
  const bool is_whole = whole(a.incoming, a.incoming_wide ? acc : size) &&
                        whole(a.mine, a.mine_wide ? acc : size) && whole(a.store, size) &&
                        whole(a.keep, acc) && whole(a.send, a.send_wide ? acc : size);
  const int row = hot(a.dtype, a.op);
  return launch(row < 0 || !is_whole ? k.hop_generic : k.hop_hot[row], a.count * acc, 1, multiprocessors);
}

Launch gather_runs(std::uint64_t bytes, int multiprocessors) {
  if (bytes == 0) return {nullptr, {0, 0}};
  return launch(kernels().gather_runs, bytes, 1, multiprocessors);
}

Launch meet() {
  constexpr int kWarp = 32;
  static_assert(FusedArgs::kMaxRanks <= kWarp, "a thread for each word");
  return {&kernels().meet, {1, kWarp}};
}

std::span<const Kernel* const> collect_kernels() { return kernels().all; }

}  // namespace ouro::gpu

// Runs the collective kernels (fused and hop) in the interpreter, as a Runner of the cases that also run on
// the host and on devices. Used by collect_test.cc and collect_faults_test.cc.
#pragma once
#include <cstdlib>
#include <memory>

#include "kernels/gpu/collect_body.h"
#include "tests/kernels/gpu_hop_cases.h"
#include "tests/ptx/kernels.h"

namespace ptx {

using namespace ouro;  // everything here is test code
using namespace ouro::gpu;

/// An array that a kernel may access, exactly to the byte.
struct Extent {
  std::uintptr_t begin, end;
};
using Extents = std::vector<Extent>;
inline void add(Extents& all, const std::byte* p, std::uint64_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (p != nullptr && bytes > 0) all.push_back({at, at + bytes});
}
/// Bytes of one rank's input and output.
inline std::pair<std::uint64_t, std::uint64_t> sizes_of(const FusedArgs& a, int r) {
  const std::uint64_t size = size_of(a.dtype), region = a.count * size;
  const auto before = [&](int b) {
    return a.uneven ? a.offsets[b] * size : static_cast<unsigned>(b) * region;
  };
  const std::uint64_t part = before(r + 1) - before(r), all = before(a.ranks);
  switch (a.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return {all, part};
    case Collective::all_gather:
    case Collective::gather:
      return {part, all};
    case Collective::all_to_all:
      if (a.uneven) return {a.send_offsets[r][a.ranks] * size, a.recv_offsets[r][a.ranks] * size};
      return {all, all};
    default:
      return {region, region};
  }
}
inline Extents extents_of(const FusedArgs& a) {
  Extents all;
  for (int r = 0; r < a.ranks; ++r) {
    const auto [in, out] = sizes_of(a, r);
    add(all, a.in[r], in);
    add(all, a.out[r], out);
  }
  return all;
}
inline Extents extents_of(const HopArgs& a) {
  Extents all;
  const std::uint64_t narrow = a.count * size_of(a.dtype),
                      wide = a.count * arith::accumulator_bytes(a.dtype, a.op);
  add(all, a.incoming, a.incoming_wide ? wide : narrow);
  add(all, a.mine, a.mine_wide ? wide : narrow);
  add(all, a.store, narrow);
  add(all, a.keep, wide);
  add(all, a.send, a.send_wide ? wide : narrow);
  return all;
}

inline Extents extents_of(const GatherArgs& a) {
  Extents all;
  add(all, reinterpret_cast<const std::byte*>(a.count), sizeof *a.count);
  add(all, reinterpret_cast<const std::byte*>(a.runs), *a.count * sizeof *a.runs);
  std::uint64_t total = 0;
  for (std::uint64_t k = 0; k < *a.count; ++k) {
    add(all, a.runs[k].from, a.runs[k].bytes);
    total = std::max(total, a.runs[k].at + a.runs[k].bytes);
  }
  add(all, a.to, total);
  return all;
}

/// Runs kernels in the interpreter. Each array is a separate region of memory; in-place arrays are one
/// region. Every third launch has no stop word.
class PtxRunner final : public Runner {
 public:
  PtxRunner(Module& module, std::uint64_t seed)
      : module_(module), seed_(seed), memory_(static_cast<std::byte*>(std::aligned_alloc(64, kImageBytes))) {}
  std::byte* base() override { return memory_.get(); }
  int multiprocessors() const override { return 2; }
  std::vector<std::size_t> sizes() const override { return {1, 7, 157, 1023}; }

  void run(const Kernel& kernel, Shape shape, const void* args, Bytes& image) override {
    const Function* const f = entry_of(module_, kernel);
    if (f == nullptr) throw Violation(std::string("no entry for ") + kernel.name);
    std::memcpy(base(), image.data(), image.size());
    if (std::string_view(kernel.name).starts_with("hop"))
      launch(*f, shape, *static_cast<const HopArgs*>(args));
    else if (std::string_view(kernel.name).starts_with("gather"))
      launch(*f, shape, *static_cast<const GatherArgs*>(args));
    else
      launch(*f, shape, *static_cast<const FusedArgs*>(args));
    std::memcpy(image.data(), base(), image.size());
  }

  std::uint32_t stop = 0;
  /// If set, a grid on another device that runs beside each launch and gets the address of the stop word.
  const Function* beside = nullptr;

 private:
  template <class Args>
  void launch(const Function& f, Shape shape, Args args) {
    const bool stops = launches_++ % 3 != 0 || stop != 0 || beside != nullptr;
    if constexpr (requires { args.stop; })
      if (stops) args.stop = &stop;
    // Fewer threads than on a device give more tiles; the full number is used in every eighth launch.
    const int threads = launches_ % 8 == 0 ? shape.threads : 32 + static_cast<int>(launches_ % 3) * 32;
    std::vector<Stream> streams = {{0, {{&f, shape.blocks, threads, bytes_of(args), false}}}};
    const std::uint32_t* const word = &stop;
    if (beside != nullptr) streams.push_back({1, {{beside, 1, 1, bytes_of(word), false}}});
    Extents all = extents_of(args);
    std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    run_streams(seed_ * 1000 + launches_, streams, [&](Memory& m) {
      m.add(&stop, sizeof stop, Space::global, "the stop word");
      for (std::size_t i = 0; i < all.size();) {
        Extent e = all[i];
        while (++i < all.size() && all[i].begin < e.end) e.end = std::max(e.end, all[i].end);
        m.add(reinterpret_cast<void*>(e.begin), e.end - e.begin, Space::global,
              "the array at byte " + std::to_string(e.begin - reinterpret_cast<std::uintptr_t>(base())));
      }
    });
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  Module& module_;
  std::uint64_t seed_, launches_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

#define OURO_NEEDS_PTX(text)              \
  std::string text = read_ptx("collect"); \
  if (text.empty()) GTEST_SKIP() << "not given: OURO_PTX, a folder with collect.ptx"

}  // namespace ptx

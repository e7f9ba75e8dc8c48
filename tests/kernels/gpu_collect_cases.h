// Cases for the fused and hop kernels that run wherever a Runner runs kernels: on host threads in
// gpu_collect_test.cc, on a device in tests/system/cuda/collect_test.cc. The oracle is kernels::fold and
// plain copies.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gpu/collect.h"
#include "kernels/host/host_loops.h"
#include "tests/kernels/reference.h"

namespace ouro::gpu {

using Bytes = std::vector<std::byte>;

/// One range of memory that kernels access. A case lays out arrays in an image of it, computes the expected
/// image, and compares all of it, so the bytes around an output are a guard.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::byte* base() = 0;  ///< aligned to 64 bytes
  /// Writes the image to base(), runs the kernel, reads the image back.
  virtual void run(const Kernel&, Shape, const void* args, Bytes& image) = 0;
  virtual int multiprocessors() const = 0;
  virtual std::vector<std::size_t> sizes() const = 0;  ///< elements
};
inline constexpr std::size_t kImageBytes = std::size_t{32} << 20;

class Image {
 public:
  explicit Image(Runner& runner) : runner_(runner) {}
  /// Reserves `n` bytes at `skew` bytes beyond an alignment of 64; returns the offset.
  std::size_t room(std::size_t n, std::size_t skew) {
    const std::size_t at = (end_ + 64 + 63) / 64 * 64 + skew;
    end_ = at + n;
    bytes_.resize(end_ + 64, std::byte{0xa5});
    return at;
  }
  std::byte* device(std::size_t at) { return runner_.base() + at; }
  void put(std::size_t at, const Bytes& data) {
    if (!data.empty()) std::memcpy(&bytes_[at], data.data(), data.size());
  }
  Bytes& bytes() { return bytes_; }
  std::size_t offset(const std::byte* device) const {
    return static_cast<std::size_t>(device - runner_.base());
  }
  /// Runs the kernel as launched, and with 1 and 3 blocks: each time the image must become `want`.
  void expect(const Launch& launch, const void* args, const Bytes& want, const std::string& what) {
    ASSERT_LE(bytes_.size(), kImageBytes);
    if (launch.kernel == nullptr) {
      ASSERT_EQ(bytes_, want) << what << ": nothing to launch, yet something has to change";
      return;
    }
    ASSERT_GE(launch.shape.blocks, 1) << what;
    for (int blocks : {launch.shape.blocks, 1, 3}) {
      Bytes got = bytes_;
      runner_.run(*launch.kernel, {blocks, launch.shape.threads}, args, got);
      if (got == want) continue;
      std::size_t i = 0;
      while (got[i] == want[i]) ++i;
      FAIL() << what << ": " << launch.kernel->name << " by " << blocks << " blocks differs from byte " << i
             << " of the image on";
    }
  }

 private:
  Runner& runner_;
  std::size_t end_ = 0;
  Bytes bytes_;
};

/// The layout of a collective's buffers.
struct Layout {
  enum class Skew { aligned, together, apart, bytewise } skew = Skew::aligned;
  enum class Place { apart, in_place, mixed } place = Place::apart;
  std::size_t skew_of(int rank, std::size_t size) const {
    switch (skew) {
      case Skew::aligned:
        return 0;
      case Skew::together:
        return size < 16 ? 3 * size % 16 : 0;
      case Skew::apart:
        return static_cast<std::size_t>(rank) * size % 16;
      case Skew::bytewise:
        return static_cast<std::size_t>(3 * rank + 1) % 16;
    }
    return 0;
  }
  bool in_place(int rank) const {
    return place == Place::in_place || (place == Place::mixed && rank % 2 == 0);
  }
  std::string text() const {
    return "skew " + std::to_string(static_cast<int>(skew)) + " place " +
           std::to_string(static_cast<int>(place));
  }
};
inline constexpr int kLayouts = 12;
inline Layout layout(int i) {
  return {static_cast<Layout::Skew>(i % 4), static_cast<Layout::Place>(i / 4 % 3)};
}

inline std::vector<Scalar> factors(int n) {
  std::vector<Scalar> f;
  for (int k = 0; k < n; ++k)
    f.push_back(
        {0.1 + 0.7 * k, static_cast<std::int64_t>(static_cast<std::uint64_t>(k) * 0x9e3779b97f4a7c15 + 3)});
  return f;
}

/// Where block b of a rank's buffer begins, in elements, and (b = ranks) where the last one ends.
using Blocks = std::vector<std::uint64_t>;
inline Blocks even_blocks(int ranks, std::uint64_t count) {
  Blocks b;
  for (int k = 0; k <= ranks; ++k) b.push_back(static_cast<std::uint64_t>(k) * count);
  return b;
}

/// One collective: arguments over an image, and the expected image.
class FusedCase {
 public:
  FusedCase(Runner& runner, Collective c, DType t, OpKind op, int ranks, Layout lay)
      : image_(runner), lay_(lay), size_(size_of(t)) {
    args_.collective = c;
    args_.dtype = t;
    args_.op = op;
    args_.ranks = ranks;
    args_.root = ranks * 2 / 3;
    const std::vector<Scalar> f = factors(ranks);
    std::copy(f.begin(), f.end(), args_.premul);
  }
  /// `blocks`: of the long side of all_gather and the like; for the others, [0] and [1] bound the region.
  void run(const Blocks& blocks, bool uneven, int multiprocessors) {
    const int n = args_.ranks;
    args_.uneven = uneven;
    args_.count = uneven ? 0 : blocks[1];
    if (uneven) std::copy(blocks.begin(), blocks.end(), args_.offsets);
    const auto at = [&](int b) { return blocks[static_cast<std::size_t>(b)] * size_; };
    const auto part = [&](int b) { return at(b + 1) - at(b); };
    for (int r = 0; r < n; ++r) {
      const bool is_root = r == args_.root;
      switch (args_.collective) {
        case Collective::all_reduce:
          buffers(r, at(1), at(1), 0, 0);
          break;
        case Collective::reduce:
          buffers(r, at(1), is_root ? at(1) : kNone, 0, 0);
          break;
        case Collective::broadcast:
          buffers(r, is_root ? at(1) : kNone, at(1), 0, 0);
          break;
        case Collective::reduce_scatter:
          buffers(r, at(n), part(r), at(r), 0);
          break;
        case Collective::all_gather:
          buffers(r, part(r), at(n), 0, at(r));
          break;
        case Collective::gather:
          buffers(r, part(r), is_root ? at(n) : kNone, 0, at(r));
          break;
        case Collective::scatter:
          buffers(r, is_root ? at(n) : kNone, part(r), at(r), 0);
          break;
        default:
          buffers(r, at(n), at(n), 0, 0);
      }
    }
    Bytes want = image_.bytes();
    const auto write = [&](int r, std::size_t shift, const Bytes& data) {
      if (args_.out[r] != nullptr && !data.empty())
        std::memcpy(&want[image_.offset(args_.out[r]) + shift], data.data(), data.size());
    };
    for (int r = 0; r < n; ++r)
      for (int p = 0; p < n; ++p) {
        switch (args_.collective) {
          case Collective::all_reduce:
          case Collective::reduce:
            if (p == 0) write(r, 0, folded(0, at(1)));
            break;
          case Collective::reduce_scatter:
            if (p == r) write(r, 0, folded(at(r), part(r)));
            break;
          case Collective::broadcast:
            if (p == 0) write(r, 0, inputs_[static_cast<std::size_t>(args_.root)]);
            break;
          case Collective::all_gather:
          case Collective::gather:
            write(r, at(p), inputs_[static_cast<std::size_t>(p)]);
            break;
          case Collective::scatter:
            if (p == r) write(r, 0, slice(args_.root, at(r), part(r)));
            break;
          default:
            write(r, at(p), slice(p, at(r), part(r)));
        }
      }
    check(want, multiprocessors);
  }
  /// counts[p][q]: elements from p to q. In place only if counts are symmetric.
  void run_pairs(const std::vector<Blocks>& counts, int multiprocessors) {
    const int n = args_.ranks;
    args_.uneven = true;
    for (int p = 0; p < n; ++p)
      for (int q = 0; q < n; ++q) {
        const auto i = static_cast<std::size_t>(p), j = static_cast<std::size_t>(q);
        args_.send_offsets[p][q + 1] = args_.send_offsets[p][q] + counts[i][j];
        args_.recv_offsets[p][q + 1] = args_.recv_offsets[p][q] + counts[j][i];
      }
    for (int r = 0; r < n; ++r)
      buffers(r, args_.send_offsets[r][n] * size_, args_.recv_offsets[r][n] * size_, 0, 0);
    Bytes want = image_.bytes();
    for (int p = 0; p < n; ++p)
      for (int q = 0; q < n; ++q) {
        const Bytes data = slice(p, args_.send_offsets[p][q] * size_,
                                 (args_.send_offsets[p][q + 1] - args_.send_offsets[p][q]) * size_);
        if (!data.empty())
          std::memcpy(&want[image_.offset(args_.out[q]) + args_.recv_offsets[q][p] * size_], data.data(),
                      data.size());
      }
    check(want, multiprocessors);
  }
  /// Marks an output as unwanted; call before run().
  void leave_out(int rank) { left_out_.push_back(rank); }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  /// Allocates rank r's buffers. In place: its input at `in_shift` is its output at `out_shift` (bytes).
  void buffers(int r, std::size_t in_bytes, std::size_t out_bytes, std::size_t in_shift,
               std::size_t out_shift) {
    const std::size_t skew = lay_.skew_of(r, size_), other = lay_.skew_of(r + 5, size_);
    std::size_t in = 0, out = 0;
    if (in_bytes != kNone && out_bytes != kNone && lay_.in_place(r)) {
      const std::size_t begin = image_.room(std::max(in_bytes, out_bytes), skew);
      in = begin + out_shift;
      out = begin + in_shift;
    } else {
      if (in_bytes != kNone) in = image_.room(in_bytes, skew);
      if (out_bytes != kNone) out = image_.room(out_bytes, other);
    }
    inputs_.emplace_back();
    if (in_bytes != kNone) {
      inputs_.back() =
          reference::random_elements(args_.dtype, in_bytes / size_, static_cast<std::uint64_t>(r) + 1);
      image_.put(in, inputs_.back());
      args_.in[r] = image_.device(in);
    }
    const bool wanted = std::find(left_out_.begin(), left_out_.end(), r) == left_out_.end();
    if (out_bytes != kNone && wanted) args_.out[r] = image_.device(out);
  }
  Bytes slice(int rank, std::size_t at, std::size_t bytes) const {
    const auto begin = inputs_[static_cast<std::size_t>(rank)].begin() + static_cast<std::ptrdiff_t>(at);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
  }
  Bytes folded(std::size_t at, std::size_t bytes) const {
    std::vector<const void*> in;
    for (const Bytes& b : inputs_) in.push_back(b.data() + at);
    Bytes out(bytes);
    kernels::fold({args_.dtype, args_.op, args_.ranks, {}}, out.data(), in,
                  {args_.premul, static_cast<std::size_t>(args_.ranks)}, bytes / size_);
    return out;
  }
  void check(const Bytes& want, int multiprocessors) {
    image_.expect(fused(args_, multiprocessors), &args_, want,
                  std::string(name(args_.collective)) + ' ' + name(args_.dtype) + ' ' + name(args_.op) +
                      " ranks " + std::to_string(args_.ranks) + " count " + std::to_string(args_.count) +
                      ' ' + lay_.text());
  }

  Image image_;
  Layout lay_;
  std::size_t size_;
  FusedArgs args_;
  std::vector<Bytes> inputs_;
  std::vector<int> left_out_;
};

inline void run_fused(Runner& runner, Collective c, DType t, OpKind op, int ranks, std::size_t count,
                      Layout lay) {
  if (lay.skew == Layout::Skew::bytewise && size_of(t) == 1) lay.skew = Layout::Skew::apart;
  FusedCase(runner, c, t, op, ranks, lay).run(even_blocks(ranks, count), false, runner.multiprocessors());
}

inline bool hot(DType t, OpKind op) {
  return (t == DType::f32 || t == DType::bf16 || t == DType::f16) && (op == OpKind::sum || op == OpKind::avg);
}

/// Every type and reduction: hot ones in all layouts, the others in alternating layouts.
inline void every_reduction(Runner& runner, Collective c) {
  int turn = 0;
  for (DType t : reference::kAllTypes)
    for (OpKind op : reference::kAllOps) {
      if (!applies(op, t)) continue;
      for (int ranks = 1; ranks <= 9; ++ranks)
        for (std::size_t count : runner.sizes()) {
          for (int i = 0; i < (hot(t, op) ? kLayouts : 1); ++i) {
            run_fused(runner, c, t, op, ranks, count, layout(hot(t, op) ? i : turn));
            if (testing::Test::HasFatalFailure()) return;
          }
          ++turn;
        }
      ++turn;  // so that layouts vary against sizes and ranks
    }
}

inline void every_movement(Runner& runner, Collective c) {
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (std::size_t count : runner.sizes())
        for (int i = 0; i < kLayouts; ++i) {
          run_fused(runner, c, t, OpKind::sum, ranks, count, layout(i));
          if (testing::Test::HasFatalFailure()) return;
        }
}

/// Blocks of different sizes, some of them empty.
inline void every_uneven(Runner& runner, Collective c) {
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::i64})
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (int i = 0; i < kLayouts; ++i) {
        if (size_of(t) == 1 && layout(i).skew == Layout::Skew::bytewise) continue;
        std::mt19937_64 random(static_cast<std::uint64_t>(100 * ranks + i));
        Blocks blocks = {0};
        for (int r = 0; r < ranks; ++r)
          blocks.push_back(blocks.back() + (random() % 4 == 0 ? 0 : random() % 700));
        FusedCase(runner, c, t, i % 2 == 0 ? OpKind::sum : OpKind::max, ranks, layout(i))
            .run(blocks, true, runner.multiprocessors());
        if (testing::Test::HasFatalFailure()) return;
      }
}
inline void every_uneven_pair(Runner& runner) {
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::i64})
    for (int ranks = 1; ranks <= FusedArgs::kMaxUnevenPairs; ++ranks)
      for (int i = 0; i < kLayouts; ++i) {
        const auto n = static_cast<std::size_t>(ranks);
        std::mt19937_64 random(static_cast<std::uint64_t>(10 * ranks + i));
        const bool symmetric = layout(i).place != Layout::Place::apart;
        std::vector<Blocks> counts(n, Blocks(n));
        for (std::size_t p = 0; p < n; ++p)
          for (std::size_t q = 0; q < n; ++q)
            counts[p][q] = symmetric && q < p ? counts[q][p] : random() % 4 == 0 ? 0 : random() % 400;
        FusedCase(runner, Collective::all_to_all, t, OpKind::sum, ranks, layout(i))
            .run_pairs(counts, runner.multiprocessors());
        if (testing::Test::HasFatalFailure()) return;
      }
}
/// As many ranks as the arguments hold, and unwanted outputs.
inline void many_ranks(Runner& runner) {
  for (Collective c : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                       Collective::all_to_all, Collective::broadcast})
    for (int ranks : {17, FusedArgs::kMaxRanks})
      for (int i = 0; i < kLayouts; ++i) {
        run_fused(runner, c, DType::bf16, OpKind::sum, ranks, 133, layout(i));
        if (testing::Test::HasFatalFailure()) return;
      }
  for (Collective c : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                       Collective::broadcast, Collective::all_to_all})
    for (int ranks : {2, 4, 5, 8}) {
      FusedCase some(runner, c, DType::f16, OpKind::avg, ranks, layout(0));
      some.leave_out(0);
      some.leave_out(ranks - 1);
      some.run(even_blocks(ranks, 517), false, runner.multiprocessors());
      if (testing::Test::HasFatalFailure()) return;
    }
}

/// Large enough for several deep tiles per block.
inline void large_counts(Runner& runner, std::size_t count) {
  for (DType t : {DType::f32, DType::bf16, DType::f16})
    for (Collective c : {Collective::all_reduce, Collective::broadcast})
      for (int ranks : {1, 2, 4, 5, 8})
        for (int i : {0, 1, 2, 8}) {
          run_fused(runner, c, t, i % 2 == 0 ? OpKind::sum : OpKind::avg, ranks, count, layout(i));
          if (testing::Test::HasFatalFailure()) return;
        }
  for (Collective c : {Collective::all_gather, Collective::all_to_all, Collective::reduce_scatter})
    for (int ranks : {2, 3})
      for (int i : {0, 1, 8}) {
        run_fused(runner, c, DType::f32, OpKind::sum, ranks, count, layout(i));
        if (testing::Test::HasFatalFailure()) return;
      }
}

}  // namespace ouro::gpu

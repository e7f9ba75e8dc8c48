// Helpers that the tests of the resident kernels share: arenas, buffers with guards, operations and their
// expected results.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/arith/floats.h"
#include "kernels/device/fake/fake_gpu.h"
#include "kernels/gpu/resident.h"
#include "kernels/host/host_loops.h"
#include "tests/kernels/gpu_resident_lengths.h"

namespace ouro::gpu::resident_test {

using flow::Algorithm;
using Bytes = std::vector<std::byte>;

inline constexpr std::size_t kGuard = 64;
inline constexpr std::byte kUntouched{0xa5};

/// Memory of one rank of a group: its arena, an abort word and the error record.
struct RankMemory {
  std::unique_ptr<std::byte[]> storage;
  std::byte* arena = nullptr;
  std::uint32_t abort = 0;
  ResidentError error = {};
  explicit RankMemory(std::uint64_t bytes) : storage(new std::byte[bytes + 128]()) {
    void* p = storage.get();
    std::size_t space = bytes + 128;
    arena = static_cast<std::byte*>(std::align(128, bytes, p, space));
  }
};

/// A device for each rank, with memory of all ranks bound to one multicast object.
class Switch {
 public:
  Switch(int n, std::size_t bytes) : gpus_({.devices = n, .multicast = true}) {
    install(&gpus_);
    const Multicast first = gpus_.multicast_create(0, n, bytes).value();
    const Fd fd = gpus_.export_fd(first).value();
    for (int d = 0; d < n; ++d) parts_.push_back(gpus_.multicast_import(d, fd, first.bytes).value());
    for (const Multicast& p : parts_) EXPECT_TRUE(gpus_.multicast_join(p).ok());
    for (Multicast& p : parts_)
      EXPECT_TRUE(gpus_.multicast_bind(&p, gpus_.alloc_shareable(p.device, p.bytes).value()).ok());
  }
  ~Switch() { install(nullptr); }
  const Multicast& part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }

 private:
  FakeGpu gpus_;
  std::vector<Multicast> parts_;
};

struct World {
  ResidentLayout layout;
  std::vector<std::unique_ptr<RankMemory>> ranks;
  std::unique_ptr<Switch> between;  // for nvls only
  World(int n, int channels, int slots) {
    ResidentSizes sizes{.ranks = n,
                        .channels = channels,
                        .slots = slots,
                        .slot_bytes = 2048,
                        .staging_bytes = 2304,
                        .packet_bytes = 4096};
    layout = resident_layout(sizes).value();
    for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<RankMemory>(layout.bytes()));
  }
  World& with_switch() {
    between = std::make_unique<Switch>(layout.ranks, switched_bytes(layout));
    return *this;
  }
  RankMemory& at(int r) { return *ranks[static_cast<std::size_t>(r)]; }
};

/// exact: chunk c of the input is at the place of chunk c of the output; first_block: at the root of a gather
/// or scatter, its own block is at the place of block 0.
enum class Aliasing { separate, exact, first_block };

struct Case {
  Collective collective;
  Algorithm algorithm;
  DType dtype = DType::f32;
  OpKind op = OpKind::sum;
  std::size_t count = 0;
  int root = 0;
  Aliasing aliasing = Aliasing::separate;
  bool packets = false;
  std::size_t shift = 0;  // elements, times the rank, by which buffers are off their alignment
  std::size_t skew = 0;   // bytes by which they are off the alignment of their elements
  bool pointers = false;  // by pointer, and through slots if a rank declines
  int declines = -1;
  unsigned uneven = 0;  // not 0: a seed of blocks of many lengths about `count`, some empty
};

inline std::string describe(const Case& c) {
  return std::string(name(c.collective)) + " " + std::string(flow::name(c.algorithm)) +
         (c.packets    ? " packets "
          : c.pointers ? " by pointer, not " + std::to_string(c.declines) + " "
                       : " ") +
         (c.uneven != 0 ? "uneven " + std::to_string(c.uneven) + " " : "") + name(c.dtype) + " " +
         name(c.op) + " count " + std::to_string(c.count) + " root " + std::to_string(c.root) + " aliasing " +
         std::to_string(static_cast<int>(c.aliasing));
}

inline bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
}
/// A rank's buffers in one operation, with guards around them, and their expected contents.
struct Buffers {
  Bytes in_storage, out_storage;
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  Bytes given, expected;
};

struct Operation {
  Case c;
  Scalar premul(int rank) const { return {static_cast<double>(rank % 3 + 1), rank % 3 + 1}; }
  std::vector<Buffers> ranks;
  std::vector<ResidentArgs> args;
  const Kernel* kernel = nullptr;
};

/// Fills a rank's input: with integers so small that every order gives the same sums, or, if the order is
/// guaranteed, with bits that reveal it.
inline void fill(Bytes& bytes, const Case& c, int rank, bool any_order) {
  const std::size_t size = size_of(c.dtype);
  std::uint32_t x =
      2463534242u + 97u * static_cast<std::uint32_t>(rank) + static_cast<std::uint32_t>(c.count);
  const auto put = [&](std::size_t i, auto value) { std::memcpy(&bytes[i], &value, size); };
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    const int small = c.op == OpKind::prod ? 1 + static_cast<int>(x % 2) : static_cast<int>(x % 5);
    const float f =
        any_order ? static_cast<float>(small) : static_cast<float>(static_cast<int>(x % 2000) - 1000) / 37;
    if (!reduces(c.collective) || !is_float(c.dtype)) {
      for (std::size_t k = 0; k < size; ++k) bytes[i + k] = static_cast<std::byte>(x >> (8 * (k % 4)));
    } else if (c.dtype == DType::f64) {
      put(i, static_cast<double>(f));
    } else if (c.dtype == DType::f32) {
      put(i, f);
    } else if (c.dtype == DType::f16) {
      put(i, arith::narrow<arith::Half>(f));
    } else if (c.dtype == DType::bf16) {
      put(i, arith::narrow<arith::BFloat16>(f));
    } else if (c.dtype == DType::f8e4m3) {
      put(i, arith::narrow<arith::F8E4M3>(f));
    } else {
      put(i, arith::narrow<arith::F8E5M2>(f));
    }
  }
}

inline void expect_outputs(Operation& o) {
  const Case& c = o.c;
  const std::size_t n = o.ranks.size(), elem = size_of(c.dtype);
  const auto root = static_cast<std::size_t>(c.root);
  const auto fold = [&](Bytes& to, std::size_t offset, std::size_t count) {
    std::vector<const void*> sources;
    std::vector<Scalar> factors;
    for (std::size_t r = 0; r < n; ++r) {
      sources.push_back(o.ranks[r].given.data() + offset);
      factors.push_back(o.premul(static_cast<int>(r)));
    }
    if (count > 0) kernels::fold({c.dtype, c.op, static_cast<int>(n)}, to.data(), sources, factors, count);
  };
  const auto copy = [&](std::size_t to, std::size_t to_block, std::size_t from, std::size_t from_block) {
    const Lengths in = input_lengths(c, static_cast<int>(from), n),
                  out = output_lengths(c, static_cast<int>(to), n);
    const auto at = [&](const Lengths& all, std::size_t block) {
      return static_cast<std::ptrdiff_t>(all.before(static_cast<int>(block)) * elem);
    };
    ASSERT_EQ(in.of[from_block], out.of[to_block]);
    std::copy_n(o.ranks[from].given.begin() + at(in, from_block), in.of[from_block] * elem,
                o.ranks[to].expected.begin() + at(out, to_block));
  };
  for (std::size_t r = 0; r < n; ++r) {
    Bytes& to = o.ranks[r].expected;
    const auto rank = static_cast<int>(r);
    const std::size_t count = output_lengths(c, rank, n).total();
    to.assign(count * elem, kUntouched);
    if (to.empty()) continue;
    if (reduces(c.collective))
      fold(to, c.collective == Collective::reduce_scatter ? input_lengths(c, rank, n).before(rank) * elem : 0,
           count);
    if (c.collective == Collective::broadcast) copy(r, 0, root, 0);
    if (c.collective == Collective::scatter) copy(r, 0, root, r);
    if (c.collective == Collective::all_gather || c.collective == Collective::gather)
      for (std::size_t b = 0; b < n; ++b) copy(r, b, b, 0);
    if (c.collective == Collective::all_to_all)
      for (std::size_t b = 0; b < n; ++b) copy(r, b, b, r);
  }
}

inline void make_buffers(Operation& o, int rank) {
  const Case& c = o.c;
  const std::size_t n = o.ranks.size(), elem = size_of(c.dtype);
  Buffers& b = o.ranks[static_cast<std::size_t>(rank)];
  const Lengths inputs = input_lengths(c, rank, n), outputs = output_lengths(c, rank, n);
  const std::size_t in_blocks = inputs.of.size(), out_blocks = outputs.of.size();
  const std::size_t in_bytes = inputs.total() * elem, out_bytes = outputs.total() * elem;
  const std::size_t shift = c.shift * static_cast<std::size_t>(rank) * elem + c.skew;
  const auto take = [&](Bytes& storage, std::size_t bytes) {
    storage.assign(2 * kGuard + shift + bytes, kUntouched);
    return storage.data() + kGuard + shift;
  };
  b.given.assign(in_bytes, std::byte{});
  bool canonical = true;
  flow::visit(c.collective, c.algorithm, [&]<class Flow>(Flow) { canonical = Flow::kCanonical; });
  fill(b.given, c, rank, !canonical);
  const bool alias = c.aliasing != Aliasing::separate && in_blocks > 0 && out_blocks > 0;
  b.out = take(b.out_storage, alias ? std::max(in_bytes, out_bytes) : out_bytes);
  if (alias) {
    // The side with one block is at the place of this rank's block on the other side.
    const Lengths& many = in_blocks > 1 ? inputs : outputs;
    const std::size_t own =
        c.aliasing == Aliasing::exact && many.of.size() > 1 ? many.before(rank) * elem : 0;
    b.in = b.out;
    if (in_blocks < out_blocks) b.in = b.out + own;
    if (out_blocks < in_blocks) b.out += own;
  } else {
    b.in = take(b.in_storage, in_bytes);
  }
  std::copy(b.given.begin(), b.given.end(), b.in);
}

/// Every rank has mapped all memory of every other rank as its allocation 1.
constexpr std::uintptr_t kEverything = 16;
inline std::uint64_t ref_of(const std::byte* p) {
  return ResidentRef::make(1, p ? reinterpret_cast<std::uintptr_t>(p) - kEverything : 0);
}
inline ResidentMapping* mapping(World& w, int r, int peer, int number) {
  return reinterpret_cast<ResidentMapping*>(w.at(r).arena + w.layout.mapped_at()) +
         peer * ResidentRef::kListed + number;
}

inline std::unique_ptr<Operation> make(World& w, const Case& given, int channels,
                                       std::uint64_t deadline_ns = 120'000'000'000) {
  auto o = std::make_unique<Operation>();
  const int n = w.layout.ranks;
  Case c = given;
  if (n == 1) c.uneven = 0;
  o->c = c;
  o->ranks.resize(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) make_buffers(*o, r);
  expect_outputs(*o);
  for (int r = 0; r < n; ++r) {
    ResidentArgs a;
    a.collective = c.collective;
    a.algorithm = c.algorithm;
    a.dtype = c.dtype;
    a.op = c.op;
    a.packets = c.packets;
    a.tag = static_cast<std::uint16_t>(c.count + static_cast<std::size_t>(c.collective));
    a.rank = r;
    a.root = c.root;
    a.channels = channels;
    a.count = c.count;
    a.in = o->ranks[static_cast<std::size_t>(r)].in;
    a.out = o->ranks[static_cast<std::size_t>(r)].out;
    a.premul = o->premul(r);
    a.deadline_ns = deadline_ns;
    a.abort = &w.at(r).abort;
    a.error = &w.at(r).error;
    a.layout = w.layout;
    a.by_pointer = c.pointers && n > 1;
    if (c.uneven != 0) lay_out_blocks(c, n, &a);
    if (c.algorithm == Algorithm::nvls && w.between) {
      a.multicast = static_cast<std::byte*>(w.between->part(r).data);
      a.switched = static_cast<std::byte*>(w.between->part(r).region.data);
    }
    if (c.pointers && c.declines != r) a.in_ref = ref_of(a.in), a.out_ref = ref_of(a.out);
    for (int p = 0; p < n; ++p) {
      *mapping(w, r, p, 1) = {reinterpret_cast<std::byte*>(kEverything), std::uint64_t{1} << 47};
      a.arena[p] = w.at(p).arena;
      if (c.pointers) continue;
      a.in_of[p] = o->ranks[static_cast<std::size_t>(p)].in;
      a.out_of[p] = o->ranks[static_cast<std::size_t>(p)].out;
    }
    auto launch = resident(a);
    EXPECT_TRUE(launch.ok()) << describe(c) << ": " << launch.status().message();
    if (!launch.ok()) return nullptr;
    EXPECT_EQ(launch->shape.blocks, channels);
    o->kernel = launch->kernel;
    o->args.push_back(a);
  }
  return o;
}

/// Runs all operations in sequence, with one thread for each block; ranks for which absent(r) holds do
/// not run.
template <class Absent>
void run(std::vector<std::unique_ptr<Operation>>& operations, int n, int channels, Absent&& absent) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < channels && !absent(r); ++c)
      threads.emplace_back([&operations, r, c] {
        for (const auto& o : operations) {
          const ResidentArgs& a = o->args[static_cast<std::size_t>(r)];
          if (c < a.channels) o->kernel->host(&a, c, a.channels);
        }
      });
  for (std::thread& t : threads) t.join();
}

inline void check(const Operation& o, World& w) {
  for (int r = 0; r < w.layout.ranks; ++r) {
    const Buffers& b = o.ranks[static_cast<std::size_t>(r)];
    ASSERT_EQ(w.at(r).error.fault, ResidentFault::none) << describe(o.c) << ", rank " << r;
    if (!b.expected.empty()) {
      ASSERT_EQ(std::memcmp(b.out, b.expected.data(), b.expected.size()), 0)
          << describe(o.c) << ", rank " << r;
    }
    if (!b.in_storage.empty() && !b.given.empty()) {
      ASSERT_EQ(std::memcmp(b.in, b.given.data(), b.given.size()), 0)
          << describe(o.c) << ": input of rank " << r;
    }
    for (const Bytes* s : {&b.out_storage, &b.in_storage})
      for (std::size_t i = 0; i < std::min(kGuard, s->size()); ++i) {
        ASSERT_EQ((*s)[i], kUntouched) << describe(o.c) << ", before a buffer of rank " << r;
        ASSERT_EQ((*s)[s->size() - 1 - i], kUntouched) << describe(o.c) << ", behind a buffer of rank " << r;
      }
  }
}

inline void run_and_check(World& w, std::vector<std::unique_ptr<Operation>>& operations, int channels) {
  ASSERT_EQ(std::count(operations.begin(), operations.end(), nullptr), 0);
  run(operations, w.layout.ranks, channels, [](int) { return false; });
  for (const auto& o : operations) check(*o, w);
  operations.clear();
}

struct Row {
  Collective collective;
  Algorithm algorithm;
  bool packets, in_place;
  bool pointers = false, uneven = false;
};
/// Every flow that resident kernels serve, packets, all flows by pointer, and blocks of any lengths. Those
/// through a switch are tested separately.
inline std::vector<Row> rows() {
  std::vector<Row> all;
  flow::for_each_flow([&]<class Flow>(Collective c, Algorithm a, Flow) {
    if (flow::kOnDevices<Flow> && !Flow::kInline && !Flow::kPulls && !Flow::kSwitched)
      all.push_back({c, a, false, Flow::kInPlace});
    if (a == Algorithm::zerocopy) all.push_back({c, Algorithm::direct, false, Flow::kInPlace, true});
  });
  all.push_back({Collective::all_reduce, Algorithm::oneshot, true, true});
  for (const Collective c : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all})
    all.push_back({c, uneven_over_slots(c), false, c != Collective::all_to_all, true, true});
  for (const Collective c : {Collective::all_gather, Collective::reduce_scatter})
    all.push_back({c, uneven_over_slots(c), false, true, false, true});
  return all;
}

}  // namespace ouro::gpu::resident_test

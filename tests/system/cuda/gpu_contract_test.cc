// Checks the contract of kernels/device/gpu.h against the implementation of this process: the same tests on
// an emulated GPU (OURO_FAKE_GPUS) and on a real one. Skipped if there is neither.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/device/gpu.h"
#include "kernels/gpu/collect.h"

extern char** environ;

namespace ouro::gpu {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBytes = 3 * 4096 + 5;

std::vector<unsigned char> pattern(std::size_t bytes, int seed) {
  std::vector<unsigned char> v(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    v[i] = static_cast<unsigned char>(i * 7 + static_cast<std::size_t>(seed));
  return v;
}

/// Returns the value, or ends the test with the error.
template <class T>
T must(Result<T> r, const char* what) {
  if (!r) throw std::runtime_error(std::string(what) + ": " + r.status().message());
  return std::move(*r);
}
#define MUST(call) must(call, #call)
#define OK(call)                                                   \
  do {                                                             \
    const Status status = (call);                                  \
    ASSERT_TRUE(status.ok()) << #call << ": " << status.message(); \
  } while (0)

class GpuContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (g.devices() == 0) GTEST_SKIP() << "no CUDA device: " << g.version();
    before_ = MUST(g.current_device());
    s = MUST(g.create_stream(0, MUST(g.properties(0)).low_priority));
  }
  void TearDown() override {
    if (s.handle == nullptr) return;
    EXPECT_TRUE(g.destroy_stream(s).ok());
    EXPECT_EQ(MUST(g.current_device()), before_) << "a call changed the thread's device";
  }
  std::vector<unsigned char> read(const void* p, std::size_t bytes) {
    std::vector<unsigned char> v(bytes);
    EXPECT_TRUE(g.copy(v.data(), p, bytes, s).ok());
    EXPECT_TRUE(g.synchronize(s).ok());
    return v;
  }
  void write(void* p, const std::vector<unsigned char>& v) {
    OK(g.copy(p, v.data(), v.size(), s));
    OK(g.synchronize(s));
  }

  Gpu& g = gpu();
  Stream s;

 private:
  int before_ = 0;
};

TEST_F(GpuContract, PropertiesArePlausible) {
  const Properties p = MUST(g.properties(0));
  EXPECT_FALSE(p.name.empty());
  EXPECT_FALSE(p.pci_bus_id.empty());
  EXPECT_GT(p.multiprocessors, 0);
  EXPECT_GT(p.memory_bytes, kBytes);
  EXPECT_LE(p.high_priority, p.low_priority);
  EXPECT_TRUE(g.peer_access(0, 0));
  EXPECT_EQ(g.properties(g.devices()).status().reason(), Reason::invalid);
  EXPECT_EQ(g.properties(-1).status().reason(), Reason::invalid);
}

TEST_F(GpuContract, MemoryHoldsWhatIsCopiedAndSet) {
  void* p = MUST(g.alloc(0, kBytes));
  const auto data = pattern(kBytes, 3);
  write(p, data);
  EXPECT_EQ(read(p, kBytes), data);
  OK(g.set(static_cast<char*>(p) + 1, 0x5a, 100, s));
  EXPECT_EQ(read(static_cast<char*>(p) + 1, 100), std::vector<unsigned char>(100, 0x5a));
  OK(g.free(p));
}

TEST_F(GpuContract, InvalidArgumentsAreRefused) {
  EXPECT_EQ(g.alloc(0, 0).status().reason(), Reason::invalid);
  EXPECT_EQ(g.alloc(g.devices(), 1).status().reason(), Reason::invalid);
  EXPECT_EQ(g.alloc_pinned(0).status().reason(), Reason::invalid);
  EXPECT_EQ(g.alloc_shareable(0, 0).status().reason(), Reason::invalid);
  EXPECT_EQ(g.create_stream(-1, 0).status().reason(), Reason::invalid);
  int mine = 0;
  EXPECT_EQ(g.ipc_export(&mine).status().reason(), Reason::invalid);
  const Event one = MUST(g.create_event(0, true)), other = MUST(g.create_event(0, true));
  EXPECT_EQ(g.elapsed_ms(one, other).status().reason(), Reason::invalid) << "never recorded";
  for (const Event e : {one, other}) OK(g.destroy_event(e));
  EXPECT_EQ(g.alloc(0, MUST(g.properties(0)).memory_bytes * 2).status().reason(), Reason::resource);
}

TEST_F(GpuContract, PointersReportTheirAllocation) {
  char* p = static_cast<char*>(MUST(g.alloc(0, kBytes)));
  const PointerInfo inside = MUST(g.pointer(p + 100));
  EXPECT_EQ(inside.kind, MemoryKind::device);
  EXPECT_EQ(inside.device, 0);
  EXPECT_EQ(inside.base, p);
  EXPECT_GE(inside.bytes, kBytes);
  OK(g.free(p));
  void* next = MUST(g.alloc(0, kBytes));  // often at the same address
  EXPECT_NE(MUST(g.pointer(next)).allocation, inside.allocation);
  OK(g.free(next));
  int mine = 0;
  EXPECT_EQ(MUST(g.pointer(&mine)).kind, MemoryKind::host);
  void* pinned = MUST(g.alloc_pinned(kBytes));
  EXPECT_EQ(MUST(g.pointer(pinned)).kind, MemoryKind::pinned);
  OK(g.free_pinned(pinned));
}

TEST_F(GpuContract, PinnedAndRegisteredMemoryIsReachedByTheDevice) {
  auto* pinned = static_cast<std::uint32_t*>(MUST(g.alloc_pinned(64)));
  std::vector<unsigned char> pages(2 * 4096);
  void* mine = pages.data() + (4096 - reinterpret_cast<std::uintptr_t>(pages.data()) % 4096) % 4096;
  void* on_device = MUST(g.register_host(mine, 4096));
  const MemOp ops[] = {{MemOp::Kind::write, 41, pinned}, {MemOp::Kind::write, 42, on_device}};
  OK(g.enqueue(ops, s));
  OK(g.synchronize(s));
  std::uint32_t seen = 0;
  std::memcpy(&seen, mine, sizeof(seen));
  EXPECT_EQ(*pinned, 41u);
  EXPECT_EQ(seen, 42u);
  OK(g.unregister_host(mine));
  OK(g.free_pinned(pinned));
}

TEST_F(GpuContract, ShareableMemoryIsTheSameThroughItsDescriptor) {
  if (!MUST(g.properties(0)).shareable_memory) GTEST_SKIP() << "this device has no shareable memory";
  const Region r = MUST(g.alloc_shareable(0, kBytes));
  EXPECT_GE(r.bytes, kBytes);
  const Fd fd = MUST(g.export_fd(r));
  const Region again = MUST(g.import_fd(0, fd, r.bytes));
  EXPECT_NE(again.data, r.data);
  const auto data = pattern(kBytes, 5);
  write(r.data, data);
  EXPECT_EQ(read(again.data, kBytes), data);
  OK(g.free_region(again));
  OK(g.free_region(r));
}

TEST_F(GpuContract, PiecesOfMappedMemoryAreKeptAndMappedInARow) {
  int mine = 0;
  EXPECT_EQ(g.retain_piece(&mine).status().reason(),
            MUST(g.properties(0)).shareable_memory ? Reason::invalid : Reason::unsupported);
  void* const legacy = MUST(g.alloc(0, kBytes));
  EXPECT_EQ(g.retain_piece(legacy).status().reason(), Reason::unsupported) << "cudaMalloc has no pieces";
  OK(g.free(legacy));
  if (!MUST(g.properties(0)).shareable_memory) GTEST_SKIP() << "this device has no shareable memory";
  const Region a = MUST(g.alloc_shareable(0, kBytes)), b = MUST(g.alloc_shareable(0, 2 * kBytes));
  EXPECT_FALSE(MUST(g.pointer(a.data)).legacy_ipc);
  const Region piece_a = MUST(g.retain_piece(static_cast<char*>(a.data) + 100));
  const Region piece_b = MUST(g.retain_piece(b.data));
  EXPECT_EQ(piece_a.data, a.data);
  EXPECT_EQ(piece_a.bytes, a.bytes);
  EXPECT_EQ(piece_b.bytes, b.bytes);
  EXPECT_EQ(piece_a.device, 0);
  OK(g.open_to_peers(piece_a));
  const auto data = pattern(a.bytes, 1), more = pattern(kBytes, 2);
  write(a.data, data);
  write(b.data, more);
  OK(g.free_region(a));  // what is retained stays
  MappedRange range = MUST(g.reserve_range(0, a.bytes + b.bytes));
  OK(g.map_piece(&range, MUST(g.export_piece(piece_a)), a.bytes));
  EXPECT_EQ(range.mapped, a.bytes);
  const Fd second = MUST(g.export_piece(piece_b));
  EXPECT_EQ(g.map_piece(&range, second, 2 * b.bytes).reason(), Reason::invalid);
  OK(g.map_piece(&range, second, b.bytes));
  EXPECT_EQ(read(range.data, a.bytes), data);
  EXPECT_EQ(read(static_cast<char*>(range.data) + a.bytes, kBytes), more);
  std::vector<unsigned char> across(data.end() - 8, data.end());
  across.insert(across.end(), more.begin(), more.begin() + 8);
  char* const border = static_cast<char*>(range.data) + a.bytes - 8;
  EXPECT_EQ(read(border, 16), across);
  write(border, pattern(16, 3));
  const auto written = pattern(16, 3);
  EXPECT_EQ(read(b.data, 8), std::vector<unsigned char>(written.begin() + 8, written.end()));
  OK(g.free_range(range));
  MappedRange part = MUST(g.reserve_range(0, a.bytes + b.bytes));  // given up half-way
  OK(g.map_piece(&part, second, b.bytes));
  OK(g.free_range(part));
  OK(g.release_piece(piece_a));
  OK(g.release_piece(piece_b));
  OK(g.free_region(b));
}

/// The other process runs this program again; the variable tells it what was exported.
TEST_F(GpuContract, AnotherProcessMapsExportedMemory) {
  constexpr const char* kVariable = "GPU_CONTRACT_EXPORTED";
  const auto data = pattern(kBytes, 9), answer = pattern(kBytes, 10);
  if (const char* text = std::getenv(kVariable)) {
    IpcHandle handle;
    for (std::size_t i = 0; i < handle.size(); ++i)
      handle[i] = static_cast<std::byte>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
    void* p = MUST(g.ipc_open(0, handle));
    ASSERT_EQ(read(p, kBytes), data);
    write(p, answer);
    OK(g.ipc_close(0, p));
    return;
  }
  if (!MUST(g.properties(0)).ipc) GTEST_SKIP() << "this device has no IPC";
  void* p = MUST(g.alloc(0, kBytes));
  write(p, data);
  ASSERT_TRUE(MUST(g.pointer(p)).legacy_ipc);
  const IpcHandle handle = MUST(g.ipc_export(p));
  EXPECT_EQ(g.ipc_open(0, handle).status().reason(), Reason::invalid) << "in the process that exported it";
  std::string text = std::string(kVariable) + "=";
  for (const std::byte b : handle) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<unsigned>(b));
    text += two;
  }
  std::vector<char*> variables = {text.data()};
  for (char** v = environ; *v != nullptr; ++v) variables.push_back(*v);
  variables.push_back(nullptr);
  char self[] = "/proc/self/exe", filter[] = "--gtest_filter=*AnotherProcessMapsExportedMemory";
  char* arguments[] = {self, filter, nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, self, nullptr, nullptr, arguments, variables.data()), 0);
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  EXPECT_EQ(read(p, kBytes), answer);
  OK(g.free(p));
}

TEST_F(GpuContract, EventsOrderStreams) {
  const Stream other = MUST(g.create_stream(0, MUST(g.properties(0)).high_priority));
  const Event from = MUST(g.create_event(0, true)), to = MUST(g.create_event(0, true));
  EXPECT_TRUE(MUST(g.query(from))) << "an event that was never recorded has passed";
  auto* word = static_cast<std::uint32_t*>(MUST(g.alloc_pinned(64)));
  *word = 0;
  const MemOp held{MemOp::Kind::wait_equal, 1, word};
  OK(g.enqueue({&held, 1}, s));
  OK(g.record(from, s));
  OK(g.wait(other, from));
  OK(g.record(to, other));
  EXPECT_FALSE(MUST(g.query(s)));
  EXPECT_FALSE(MUST(g.query(to)));
  const Stream third = MUST(g.create_stream(0, 0));
  const MemOp release{MemOp::Kind::write, 1, word};
  OK(g.enqueue({&release, 1}, third));
  OK(g.synchronize(to));
  EXPECT_TRUE(MUST(g.query(from)));
  OK(g.synchronize(s));
  EXPECT_TRUE(MUST(g.query(s)));
  EXPECT_GE(MUST(g.elapsed_ms(from, to)), 0.0f);
  for (const Event e : {from, to}) OK(g.destroy_event(e));
  for (const Stream x : {other, third}) OK(g.destroy_stream(x));
  OK(g.free_pinned(word));
}

TEST_F(GpuContract, StreamsSynchroniseByValues) {
  if (!MUST(g.properties(0)).stream_values) GTEST_SKIP() << "this device has no stream values";
  const Stream other = MUST(g.create_stream(0, 0));
  auto* words = static_cast<char*>(MUST(g.alloc(0, 256)));
  OK(g.set(words, 0, 256, s));
  OK(g.synchronize(s));
  for (std::uint32_t i = 1; i <= 300; ++i) {
    const MemOp theirs[] = {{MemOp::Kind::wait_at_least, i, words}, {MemOp::Kind::write, i, words + 128}};
    const MemOp mine[] = {{MemOp::Kind::write, i, words}, {MemOp::Kind::wait_at_least, i, words + 128}};
    OK(g.enqueue(theirs, other));
    OK(g.enqueue(mine, s));
  }
  OK(g.synchronize(s));
  std::uint32_t last = 0;
  OK(g.copy(&last, words + 128, sizeof(last), s));
  OK(g.synchronize(s));
  EXPECT_EQ(last, 300u);
  const std::vector<MemOp> many(200,
                                MemOp{MemOp::Kind::write, 7, words});  // more than the driver accepts at once
  OK(g.enqueue(many, s));
  const MemOp odd{MemOp::Kind::write, 1, words + 2};
  EXPECT_EQ(g.enqueue({&odd, 1}, s).reason(), Reason::invalid);
  OK(g.synchronize(s));
  OK(g.destroy_stream(other));
  OK(g.free(words));
}

/// Four buffers of floats, and the sum of three of them by one kernel.
class GpuKernels : public GpuContract {
 protected:
  static constexpr std::size_t kCount = 10'000;
  void SetUp() override {
    GpuContract::SetUp();
    if (IsSkipped()) return;
    args.collective = Collective::all_reduce;
    args.ranks = 3;
    args.count = kCount;
    for (int r = 0; r < 3; ++r) {
      std::vector<float> mine(kCount);
      std::iota(mine.begin(), mine.end(), static_cast<float>(r));
      auto* p = static_cast<std::byte*>(MUST(g.alloc(0, kCount * sizeof(float))));
      OK(g.copy(p, mine.data(), kCount * sizeof(float), s));
      OK(g.synchronize(s));
      args.in[r] = p;
    }
    args.out[0] = static_cast<std::byte*>(MUST(g.alloc(0, kCount * sizeof(float))));
    launch = fused(args, MUST(g.properties(0)).multiprocessors);
    if (launch.kernel->device == nullptr && std::string_view(g.name()) == "cuda")
      GTEST_SKIP() << "no device code in this build";
  }
  void TearDown() override {
    for (const std::byte* p :
         {args.in[0], args.in[1], args.in[2], static_cast<const std::byte*>(args.out[0])}) {
      EXPECT_TRUE(p == nullptr || g.free(const_cast<std::byte*>(p)).ok());
    }
    GpuContract::TearDown();
  }
  void expect_sum() {
    std::vector<float> out(kCount);
    OK(g.copy(out.data(), args.out[0], kCount * sizeof(float), s));
    OK(g.synchronize(s));
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], static_cast<float>(3 * i + 3)) << i;
  }
  Launch launch = {};
  FusedArgs args;
};

TEST_F(GpuKernels, RunInStreamOrder) {
  OK(g.set(args.out[0], 0xff, kCount * sizeof(float), s));
  OK(g.launch(*launch.kernel, launch.shape, &args, s));
  expect_sum();
  EXPECT_EQ(g.launch(*launch.kernel, {.blocks = 0, .threads = 32}, &args, s).reason(), Reason::invalid);
}

TEST_F(GpuKernels, InfoReportsLimitsAndNoSpills) {
  const KernelInfo info = MUST(g.info(*launch.kernel, 0));
  EXPECT_GE(info.max_threads, launch.shape.threads);
  EXPECT_EQ(info.local_bytes, 0u) << "a hot kernel spills";
  EXPECT_GT(MUST(g.resident_blocks(*launch.kernel, launch.shape.threads, 0)), 0);
}

TEST_F(GpuKernels, CapturedWorkIsReplayed) {
  EXPECT_EQ(MUST(g.capturing(s)), 0u);
  OK(g.begin_capture(s));
  EXPECT_NE(MUST(g.capturing(s)), 0u);
  OK(g.set(args.out[0], 0xff, kCount * sizeof(float), s));
  OK(g.launch(*launch.kernel, launch.shape, &args, s));
  void* aside = MUST(g.alloc(0, 64));  // a call that may synchronise, during a capture
  const Graph graph = MUST(g.end_capture(s));
  OK(g.free(aside));
  EXPECT_EQ(MUST(g.capturing(s)), 0u);
  OK(g.set(args.out[0], 0, kCount * sizeof(float), s));
  OK(g.synchronize(s));
  EXPECT_EQ(read(args.out[0], 4), std::vector<unsigned char>(4, 0)) << "recorded, not run";
  for (int i = 0; i < 3; ++i) {
    OK(g.set(args.out[0], 0, kCount * sizeof(float), s));
    OK(g.launch(graph, s));
    expect_sum();
  }
  OK(g.destroy_graph(graph));
}

TEST_F(GpuContract, HostFunctionsRunInStreamOrder) {
  std::vector<int> order;
  struct Note {
    std::vector<int>* order;
    int value;
  } notes[] = {{&order, 1}, {&order, 2}, {&order, 3}};
  for (Note& note : notes)
    OK(g.call_host(
        s, [](void* n) { static_cast<Note*>(n)->order->push_back(static_cast<Note*>(n)->value); }, &note));
  OK(g.synchronize(s));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_F(GpuContract, ThreadsWithoutADeviceMayCall) {
  void* p = MUST(g.alloc(0, kBytes));
  const auto data = pattern(kBytes, 1);
  std::thread([&] {
    std::vector<unsigned char> back(kBytes);
    EXPECT_TRUE(g.copy(p, data.data(), kBytes, s).ok());
    EXPECT_TRUE(g.copy(back.data(), p, kBytes, s).ok());
    EXPECT_TRUE(g.synchronize(s).ok());
    EXPECT_EQ(back, data);
    EXPECT_TRUE(g.free(p).ok());
  }).join();
}

TEST_F(GpuContract, EveryDeviceAllocatesAndRuns) {
  for (int d = 0; d < g.devices(); ++d) {
    const Stream here = MUST(g.create_stream(d, 0));
    void* p = MUST(g.alloc(d, kBytes));
    EXPECT_EQ(MUST(g.pointer(p)).device, d);
    OK(g.set(p, 7, kBytes, here));
    OK(g.synchronize(here));
    OK(g.free(p));
    OK(g.destroy_stream(here));
    if (d > 0 && g.peer_access(0, d)) {
      OK(g.enable_peer(0, d));
      OK(g.enable_peer(0, d));
    }
  }
}

}  // namespace
}  // namespace ouro::gpu

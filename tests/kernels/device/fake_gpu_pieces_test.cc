// Memory of fake GPUs as cuMemMap has it: ranges, chunks, what retains them, and what is freed in use.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

constexpr std::size_t kUnit = 64 << 10;

class Pieces : public testing::Test {
 protected:
  void SetUp() override {
    s = value(g.create_stream(0, 0));
    at = static_cast<std::byte*>(value(g.reserve(0, 4 * kUnit)));
  }
  FakeGpu g{{.devices = 2}};
  Stream s;
  std::byte* at = nullptr;
};

TEST_F(Pieces, AdjacentChunksAreMappingsOfTheirOwn) {
  EXPECT_THAT(g.map(0, at, 100), Fails(Reason::invalid, "multiple"));
  EXPECT_THAT(g.map(0, at + 3 * kUnit, 2 * kUnit), Fails(Reason::invalid, "not in a reserved range"));
  OK(g.map(0, at, kUnit));
  OK(g.map(0, at + kUnit, 2 * kUnit));
  EXPECT_THAT(g.map(0, at + kUnit, kUnit), Fails(Reason::invalid, "mapped there already"));
  const PointerInfo second = value(g.pointer(at + 2 * kUnit));
  EXPECT_EQ(second.base, at + kUnit);
  EXPECT_EQ(second.bytes, 2 * kUnit);
  EXPECT_FALSE(second.legacy_ipc);
  OK(g.set(at + 100, 7, 2 * kUnit, s));  // across both
  EXPECT_THAT(g.set(at + 100, 7, 3 * kUnit, s), Fails(Reason::invalid, "leave"));
  OK(g.synchronize(s));
  EXPECT_EQ(at[kUnit], std::byte{7});
  EXPECT_THAT(g.unreserve(at), Fails(Reason::invalid, "chunks are mapped"));
  OK(g.unmap(at));
  EXPECT_THAT(g.set(at, 7, 8, s), Fails(Reason::invalid, "no chunk is mapped there"));
  OK(g.unmap(at + kUnit));
  OK(g.unreserve(at));
  EXPECT_EQ(g.live().allocations, 0);
}

TEST_F(Pieces, AreRetainedOnlyIfShareable) {
  OK(g.map(0, at, kUnit, false));
  EXPECT_THAT(g.retain_piece(at), Fails(Reason::unsupported, "without a shareable handle type"));
  OK(g.map(0, at + kUnit, kUnit));
  const Region r = value(g.retain_piece(at + kUnit + 5));
  EXPECT_EQ(r.data, at + kUnit);
  EXPECT_EQ(g.live().retained, 1);
  OK(g.unmap(at));
  EXPECT_EQ(g.freed_in_use(), 0);
  OK(g.unmap(at + kUnit));
  EXPECT_EQ(g.freed_in_use(), 1) << "retained memory does not come back";
  OK(g.release_piece(r));
  EXPECT_THAT(g.release_piece(r), Fails(Reason::invalid, "released"));
  EXPECT_EQ(g.live().retained, 0);
}

TEST_F(Pieces, AreAccessibleToPeersOnlyOnceOpened) {
  OK(g.enable_peer(1, 0));
  OK(g.map(0, at, kUnit));
  const Stream other = value(g.create_stream(1, 0));
  const MemOp write{MemOp::Kind::write, 1, at};
  EXPECT_THAT(g.enqueue({&write, 1}, other), Fails(Reason::invalid, "open_to_peers"));
  OK(g.open_to_peers({.device = 0, .data = at, .bytes = kUnit}));
  OK(g.enqueue({&write, 1}, other));
  OK(g.synchronize(other));
}

/// By a lock on the file that is the memory, so a process that dies holds nothing open.
TEST_F(Pieces, FreeingWhileAnotherProcessMapsIsCounted) {
  OURO_NEEDS_PROCESSES();
  void* const p = value(g.alloc(0, kUnit));
  const IpcHandle handle = value(g.ipc_export(p));
  int to_child[2], to_parent[2];
  ASSERT_TRUE(pipe(to_child) == 0 && pipe(to_parent) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    char c = 'x';
    const auto here = g.ipc_open(0, handle);
    if (here.ok() && ::write(to_parent[1], &c, 1) == 1) (void)!::read(to_child[0], &c, 1);
    pause();
  }
  char c = 0;
  ASSERT_EQ(::read(to_parent[0], &c, 1), 1);
  OK(g.free(p));
  EXPECT_EQ(g.freed_in_use(), 1);
  void* const q = value(g.alloc(0, kUnit));
  (void)value(g.ipc_export(q));
  kill(child, SIGKILL);
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  OK(g.free(q));
  EXPECT_EQ(g.freed_in_use(), 1);
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(end);
}

}  // namespace
}  // namespace ouro::gpu::test

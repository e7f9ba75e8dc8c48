// Tests of facts: control groups in invented trees, machines that hwloc invents, and real probes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/info/facts.h"

namespace ouro::info {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;

/// A directory that is used as "/", removed at the end.
class Tree {
 public:
  Tree() {
    std::string path = fs::temp_directory_path() / "ouro-info-XXXXXX";
    EXPECT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  ~Tree() { fs::remove_all(root_); }
  Tree& file(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
    return *this;
  }
  const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

TEST(Cgroup, Version2TakesTheTightestLimitUpTheTree) {
  Tree t;
  t.file("proc/self/cgroup", "0::/a/b/c")
      .file("sys/fs/cgroup/a/memory.max", "1000")
      .file("sys/fs/cgroup/a/memory.current", "900")
      .file("sys/fs/cgroup/a/b/memory.max", "2000")
      .file("sys/fs/cgroup/a/b/c/memory.max", "max")
      .file("sys/fs/cgroup/a/cpu.max", "max 100000")
      .file("sys/fs/cgroup/a/b/cpu.max", "150000 100000")
      .file("sys/fs/cgroup/a/b/c/cpu.max", "400000 100000");
  const auto memory = memory_limit(t.root());
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->bytes, 1000u);
  EXPECT_EQ(memory->used, 900u);
  EXPECT_THAT(memory->where, EndsWith("sys/fs/cgroup/a"));
  const auto cpu = cpu_limit(t.root());
  ASSERT_TRUE(cpu.has_value());
  EXPECT_DOUBLE_EQ(cpu->cores, 1.5);
  EXPECT_THAT(cpu->where, EndsWith("a/b"));
}

TEST(Cgroup, Version1LimitIsReadFromTheContainersOwnRoot) {
  Tree t;
  t.file("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096")  // the container's own root
      .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "100")
      .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000")
      .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(memory_limit(t.root()).value_or(MemoryLimit{}).bytes, 4096u);
  EXPECT_DOUBLE_EQ(cpu_limit(t.root()).value_or(CpuLimit{}).cores, 0.5);
}

TEST(Cgroup, MissingOrGarbledLimitsMeanNoLimit) {
  Tree t;
  EXPECT_FALSE(memory_limit(t.root()).has_value());
  t.file("proc/self/cgroup", "garbage\n4:memory:/\n5:cpu:/\n0::/")
      .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
      .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
      .file("sys/fs/cgroup/memory.max", "max")
      .file("sys/fs/cgroup/cpu.max", "max 100000");
  EXPECT_FALSE(memory_limit(t.root()).has_value());
  EXPECT_FALSE(cpu_limit(t.root()).has_value());
}

TEST(Machine, CountsASyntheticTopology) {
  const Result<Machine> m = read_machine("pack:2 [numa(memory=1GB)] l3:1(size=32MB) l2:4 core:2 pu:2");
  ASSERT_TRUE(m.ok()) << m.status().message();
  EXPECT_EQ(m->packages, 2);
  EXPECT_EQ(m->numa_nodes, 2);
  EXPECT_EQ(m->cores, 16);
  EXPECT_EQ(m->threads, 32);
  EXPECT_EQ(m->usable_threads, 32);
  ASSERT_EQ(m->caches.size(), 2u);
  EXPECT_EQ(m->caches[0].name, "L2");
  EXPECT_EQ(m->caches[0].count, 8);
  EXPECT_EQ(m->caches[0].cores_each, 2);
  EXPECT_EQ(m->caches[1].cores_each, 8);
  EXPECT_THAT(m->tree, HasSubstr("2 x Package"));
  EXPECT_THAT(m->tree, HasSubstr("4 x L2"));
  EXPECT_THAT(m->tree, HasSubstr("2 x Core"));
}

TEST(Machine, ReadsThisMachineAndRefusesAWrongDescription) {
  const Result<Machine> here = read_machine();
  ASSERT_TRUE(here.ok()) << here.status().message();
  EXPECT_GE(here->threads, 1);
  EXPECT_GE(here->usable_threads, 1);
  EXPECT_LE(here->usable_threads, here->threads);
  const Result<Machine> none = read_machine("node:");
  EXPECT_EQ(none.status().code(), Code::invalid);
}

TEST(Machine, HumanBytesUseBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(32768), "32 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::uint64_t{3} << 30), "3 GiB");
}

TEST(Probes, LeaveNoDescriptorBehind) {
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_files();
  for (const Probe& p : {probe_memfd(), probe_seals(), probe_pidfd(), probe_descriptors(), probe_pull()})
    EXPECT_EQ(p.works, p.detail.empty()) << p.name;
  EXPECT_EQ(open_files(), before);
}

TEST(Facts, BracketedWordIsExtracted) {
  EXPECT_EQ(bracketed("always [madvise] never"), "madvise");
  EXPECT_EQ(bracketed("no brackets"), "");
  EXPECT_EQ(bracketed("] wrong ["), "");
  EXPECT_EQ(bracketed(""), "");
}

TEST(Facts, TransportsGiveTheirReason) {
  const std::vector<Probe> good = {{"memfd", true, ""}, {"seals", true, ""}, {"pidfd", true, ""}};
  EXPECT_TRUE(transports_of(good, {}).front().present);
  EXPECT_EQ(transports_of(good, {}).front().why, "memfd, seals, pidfd work");
  EXPECT_EQ(transports_of(good, {})[2].why, "not in this build (OURO_UCX=on adds it)");
  const Ucx ucx{
      .version = "1.13.1", .built_with = "1.13", .path = "/lib/libucp.so.0", .parts = {"self", "tcp"}};
  EXPECT_TRUE(transports_of(good, {}, ucx)[2].present);
  EXPECT_EQ(transports_of(good, {}, ucx)[2].why, "1.13.1 from /lib/libucp.so.0");
  const std::vector<Probe> bad = {
      {"memfd", true, ""}, {"seals", false, "fcntl: denied"}, {"pidfd", true, ""}};
  EXPECT_FALSE(transports_of(bad, {}).front().present);
  EXPECT_EQ(transports_of(bad, {}).front().why, "fails: seals (fcntl: denied)");
  const std::vector<Probe> old = {{"memfd", true, ""},
                                  {"seals", true, ""},
                                  {"pidfd", false, "no such call"},
                                  {"memory of other processes", false, "not permitted"}};
  EXPECT_TRUE(transports_of(old, {}).front().present);
}

TEST(UcxFacts, MissingPartsAreListed) {
  Ucx ucx{.version = "1.13.1", .parts = {"self", "tcp", "ib", "rdmacm"}};
  ASSERT_EQ(lacks(ucx).size(), 1u);
  EXPECT_EQ(lacks(ucx)[0], "CUDA (GPU memory goes through the host)");
  ucx.parts = {"self", "tcp", "cuda_cpy", "cuda_ipc"};
  EXPECT_EQ(lacks(ucx).size(), 2u);
  ucx.why = "not here";
  EXPECT_TRUE(lacks(ucx).empty());
}

TEST(UcxFacts, VersionOrReasonIsReportedForThisMachine) {
  const Ucx ucx = read_ucx();
  EXPECT_EQ(ucx.why.empty(), !ucx.version.empty());
  EXPECT_EQ(ucx.why.empty(), !ucx.parts.empty()) << ucx.why;
}

TEST(Facts, AreReadFromProcAndSys) {
  Tree t;
  t.file("proc/meminfo", "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB")
      .file("proc/self/cgroup", "0::/x")
      .file("proc/1/cgroup", "0::/kubepods/pod7")
      .file("sys/fs/cgroup/x/memory.max", "600000")
      .file("sys/fs/cgroup/x/memory.current", "100000")
      .file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never] deny");
  const Facts f = gather(t.root());
  EXPECT_EQ(f.memory_total, 2048u * 1024);
  EXPECT_EQ(f.usable_memory(), 500000u);
  EXPECT_EQ(f.huge_pages_shared, "never");
  EXPECT_EQ(f.huge_pages, "");
  EXPECT_NE(f.container, "");
  EXPECT_FALSE(f.version.empty());
  EXPECT_GT(f.files_soft, 0u);
}

TEST(Facts, UsableMemoryIsNeverNegative) {
  Facts f;
  f.memory_available = 100;
  EXPECT_EQ(f.usable_memory(), 100u);
  f.memory_limit = MemoryLimit{50, 60, "/x"};  // temporarily above its limit
  EXPECT_EQ(f.usable_memory(), 0u);
}

}  // namespace
}  // namespace ouro::info

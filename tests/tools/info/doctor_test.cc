// Tests of the doctor and the report: each known problem, in invented facts, is found and has its fix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/info/doctor.h"
#include "tools/info/report.h"

namespace ouro::info {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// An environment without problems, for up to eight ranks.
Facts healthy() {
  Facts f;
  f.version = "0.1.0";
  f.host = "node7";
  f.kernel = "6.1.0-18-amd64";
  f.architecture = "x86_64";
  f.cuda.why = "no CUDA driver (libcuda.so.1 not found)";
  f.probes = {{"memfd", true, ""},
              {"seals", true, ""},
              {"pidfd", true, ""},
              {"descriptor passing", true, ""},
              {"memory of other processes", true, ""}};
  f.transports = transports_of(f.probes, f.build);
  f.machine = Machine{
      .model = "Fast CPU", .packages = 1, .cores = 8, .threads = 8, .numa_nodes = 1, .usable_threads = 8};
  f.machine->caches = {{"L2", 1 << 20, 8, 1}, {"L3", 32 << 20, 1, 8}};
  f.allowed = {.l3_bytes = 32 << 20, .source = "hwloc"};
  for (const int core : {0, 1})
    f.allowed.cores.push_back(
        {.id = core, .cpus = {core, core + 8}, .l3 = 0, .l3_bytes = 32 << 20, .domain = 0, .node = 1});
  f.allowed.cores.push_back({.id = 2, .cpus = {2, 10}});
  f.instruction_set = "avx2";
  f.memory_total = f.memory_available = std::uint64_t{16} << 30;
  f.files_soft = f.files_hard = 1024;
  f.huge_pages = f.huge_pages_shared = "advise";
  return f;
}

constexpr Needs kNeeds{.files = 100, .link_memory = 64 << 20};

Check find(const Facts& f, const std::string& name, int ranks = 4) {
  for (Check& c : examine(f, ranks, kNeeds))
    if (c.name == name) return c;
  ADD_FAILURE() << "no check " << name;
  return {};
}

TEST(Doctor, FindsNothingInHealthySurroundings) {
  const auto checks = examine(healthy(), 8, kNeeds);
  EXPECT_EQ(worst(checks), Verdict::ok) << doctor(checks, 8);
  EXPECT_THAT(doctor(checks, 8), HasSubstr("Nothing is broken."));
}

TEST(Doctor, MissingSystemCallIsBrokenOrAWarning) {
  for (std::size_t i = 0; i < healthy().probes.size(); ++i) {
    Facts f = healthy();
    f.probes[i].works = false;
    f.probes[i].detail = "denied";
    const Check c = find(f, f.probes[i].name);
    EXPECT_EQ(c.verdict, i == 2 || i == 4 ? Verdict::warning : Verdict::broken) << c.name;
    EXPECT_EQ(c.found, "denied");
    EXPECT_FALSE(c.fix.empty()) << c.name;
  }
}

TEST(Doctor, TooFewOpenFilesAreBrokenOnlyAtTheHardLimit) {
  Facts f = healthy();
  f.files_soft = 99;
  EXPECT_EQ(find(f, "open files").verdict, Verdict::ok) << "such a job runs";
  EXPECT_THAT(find(f, "open files").found,
              HasSubstr("need 100 a rank for 4 ranks, have 99; ranks raise it themselves, to 1024 at most"));
  f.files_hard = 99;
  EXPECT_EQ(find(f, "open files").verdict, Verdict::broken);
  EXPECT_THAT(find(f, "open files").fix, HasSubstr("hard limit (99)"));
  f.files_soft = 100;
  EXPECT_EQ(find(f, "open files").verdict, Verdict::ok);
}

TEST(Doctor, TooLowControlGroupMemoryLimitIsBroken) {
  Facts f = healthy();
  f.memory_limit = MemoryLimit{64 << 20, 1 << 20, "/sys/fs/cgroup/job"};
  const Check c = find(f, "memory");
  EXPECT_EQ(c.verdict, Verdict::broken);
  EXPECT_THAT(c.found, HasSubstr("needs 64 MiB for links, have 63 MiB (limit 64 MiB at /sys/fs/cgroup/job"));
  EXPECT_THAT(c.fix, HasSubstr("--memory"));
  f.memory_limit->used = 0;
  EXPECT_EQ(find(f, "memory").verdict, Verdict::ok);
}

TEST(Doctor, FewerCoresThanRanksIsAWarning) {
  Facts f = healthy();
  EXPECT_EQ(find(f, "cores", 8).verdict, Verdict::ok);
  EXPECT_EQ(find(f, "cores", 9).verdict, Verdict::warning);
  f.cpu_limit = CpuLimit{1.5, "/sys/fs/cgroup/job"};
  EXPECT_EQ(find(f, "cores", 2).verdict, Verdict::warning);
  EXPECT_THAT(find(f, "cores", 2).found, HasSubstr("quota 1.5 cores at /sys/fs/cgroup/job"));
  f.machine.reset();
  f.machine_error = "hwloc cannot read this machine";
  EXPECT_EQ(find(f, "cores").verdict, Verdict::warning);
}

TEST(Doctor, KernelHugePagesContainerAndSettingsAreChecked) {
  Facts f = healthy();
  f.kernel = "5.2.21";
  EXPECT_EQ(find(f, "kernel").verdict, Verdict::warning);
  f.kernel = "5.3.0";
  EXPECT_EQ(find(f, "kernel").verdict, Verdict::ok);
  f.kernel = "unknown";
  EXPECT_EQ(find(f, "kernel").verdict, Verdict::warning);
  f.huge_pages_shared = "";
  EXPECT_EQ(find(f, "huge pages").verdict, Verdict::note);
  f.container = "docker";
  EXPECT_THAT(find(f, "container").found, HasSubstr("/dev/shm"));
  f.settings_warnings = {"OURO_NUMERIC is not a parameter"};
  EXPECT_EQ(find(f, "setting").verdict, Verdict::warning);
  f.settings_errors = {"OURO_NUMERICS: expected fast|canonical"};
  EXPECT_EQ(find(f, "setting").verdict, Verdict::broken);
}

TEST(Doctor, CudaDevicesAreListedOrExplained) {
  Facts f = healthy();
  f.cuda = {.found = true, .why = "the CUDA driver finds no device", .version = 12040, .devices = {}};
  EXPECT_EQ(find(f, "cuda").verdict, Verdict::note);
  f.cuda = {.found = true, .why = "", .version = 12040, .devices = {"Fast GPU"}};
  EXPECT_THAT(find(f, "cuda").found, HasSubstr("host memory only"));
  EXPECT_THAT(devices(f), HasSubstr("0: Fast GPU"));
  f.build.cuda = true;
  EXPECT_EQ(find(f, "cuda").verdict, Verdict::ok);
}

TEST(Doctor, NeedsGrowWithRanks) {
  EXPECT_LT(needs_of(2, 65536).files, needs_of(16, 65536).files);
  EXPECT_LT(needs_of(2, 65536).link_memory, needs_of(4, 65536).link_memory);
  EXPECT_GT(needs_of(1, 65536).files, 3u);
}

TEST(Report, BriefIsNineLinesAndSaysWhy) {
  const Facts f = healthy();
  const std::string text = brief(f, examine(f, 4, kNeeds));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9) << text;
  EXPECT_THAT(text, HasSubstr("no CUDA driver (libcuda.so.1 not found): host backend"));
  EXPECT_THAT(
      text,
      HasSubstr("shared-memory (memfd, seals, pidfd, descriptor passing, memory of other processes work)"));
  EXPECT_THAT(
      text,
      HasSubstr("; cuda-ipc not in this build (OURO_CUDA=on adds it); ucx not in this build (OURO_UCX=on"));
  EXPECT_THAT(text, HasSubstr("8 cores, 8 hardware threads in 1 package, 1 NUMA node (Fast CPU)"));
  EXPECT_THAT(text, HasSubstr("L2 1 MiB, L3 32 MiB for 8 cores"));
  EXPECT_THAT(text, HasSubstr("nothing in the way"));
}

TEST(Report, TopologySaysWhatRanksMayUse) {
  Facts f = healthy();
  EXPECT_THAT(topology(f), HasSubstr("L3 0 of 32 MiB, NUMA node 1: cores 0-1, hardware threads 0-1,8-9\n"));
  EXPECT_THAT(topology(f), HasSubstr("cache unknown, NUMA node unknown: cores 2, hardware threads 2,10\n"));
  EXPECT_THAT(topology(f), Not(HasSubstr("invented")));
  f.allowed.source = "hwloc cannot start";
  f.allowed.invented = true;
  EXPECT_THAT(topology(f), HasSubstr("hwloc cannot start"));
  EXPECT_THAT(topology(f), HasSubstr("cannot be bound"));
}

TEST(Report, BriefPointsToTheDoctor) {
  Facts f = healthy();
  f.files_soft = f.files_hard = 3;
  f.probes[1].works = false;
  f.probes[1].detail = "fcntl: denied";
  f.transports = transports_of(f.probes, f.build);
  const std::string text = brief(f, examine(f, 4, kNeeds));
  EXPECT_THAT(text, HasSubstr("; shared-memory fails: seals (fcntl: denied)"));
  EXPECT_THAT(text, HasSubstr("2 broken, 0 to be warned of"));
}

TEST(Report, JsonHoldsTheFactsOfTheText) {
  Facts f = healthy();
  f.files_hard = UINT64_MAX;
  const auto j = to_json(f, {});
  EXPECT_EQ(j.at("limits").at("files_soft"), 1024);
  EXPECT_TRUE(j.at("limits").at("files_hard").is_null());
  EXPECT_TRUE(j.at("memory").at("limit").is_null());
  EXPECT_EQ(j.at("machine").at("caches").size(), 2u);
  EXPECT_EQ(j.at("transports").size(), 4u);
  EXPECT_EQ(j.at("allowed").at("cores").size(), 3u);
  EXPECT_EQ(j.at("allowed").at("cores").at(2).at("threads"), nlohmann::json({2, 10}));
  EXPECT_TRUE(j.at("allowed").at("cores").at(2).at("l3").is_null());
  EXPECT_EQ(j.at("allowed").at("same_cache"), false);
  f.files_soft = f.files_hard = 1;
  const auto checks = to_json(examine(f, 4, kNeeds), 4);
  EXPECT_EQ(checks.at("verdict"), "broken");
  EXPECT_EQ(checks.at("checks").at(0).at("name"), "memfd");
}

}  // namespace
}  // namespace ouro::info

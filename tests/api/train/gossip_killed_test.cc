// Decentralised training whose processes are killed in the middle of a step: the saved state continues in
// other processes, with the bits of an uninterrupted run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT
namespace fs = std::filesystem;

constexpr int kRanks = 2, kSteps = 9, kKilledIn = 5;

/// A folder that is removed with the test.
struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("ouro-killed-{}", ::getpid());
  Folder() { fs::create_directory(path); }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path of(const char* what, int rank) const { return path / fmt::format("{}-{}", what, rank); }
};

/// Writes completely or not at all, whenever the process ends.
void write_file(const fs::path& to, CBytes bytes) {
  const fs::path part = to.string() + ".part";
  std::ofstream(part, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  fs::rename(part, to);
}
Bytes read_file(const fs::path& from) {
  std::ifstream in(from, std::ios::binary);
  const std::vector<char> all(std::istreambuf_iterator<char>(in), {});
  const CBytes bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

/// Trains from the saved state, if there is any, and saves after each step. At the end stores its parameters.
std::string train(Context& c, const Folder& folder, const char* run, bool dies) {
  Model model = two_vectors();
  GossipOptions o = options(kRanks);
  o.schedule = [](auto) { return cosine_with_warmup(0.05, kSteps, 2); };
  auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
  OURO_RANK_OK(made);
  const fs::path saved = folder.of("state", c.rank());
  const bool resumes = std::string_view(run) == "resumed";
  if (resumes) OURO_RANK_OK(made->load(read_file(saved)));
  OURO_RANK_CHECK(made->steps() == (resumes ? kKilledIn : 0), "{} steps", made->steps());
  while (made->steps() < kSteps) {
    if (dies &&
        made->steps() == kKilledIn) {    // its exchange is in flight, and half of its gradients are ready
      OURO_RANK_OK(barrier(c.world()));  // both have saved
      OURO_RANK_OK(made->begin_step());
      OURO_RANK_OK(made->grad_ready(1));
      ::kill(::getpid(), SIGKILL);
    }
    OURO_RANK_OK(train_step(*made, kOrder, loss_of(c.rank())));
    if (std::string_view(run) == "whole") continue;
    auto state = made->save();
    OURO_RANK_OK(state);
    write_file(saved, *state);
  }
  const std::vector<double> end = flat(*made);
  write_file(folder.of(run, c.rank()), std::as_bytes(std::span(end)));
  return text(made->close()) == "ok" ? "" : "close";
}

TEST(GossipKilled, KilledRunResumesWithTheSameBits) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  const Folder folder;
  const auto run = [&](const char* name, bool dies) {
    return run_processes(kRanks, [&](Context& c) { return train(c, folder, name, dies); });
  };
  EXPECT_EQ(run("whole", false), "");
  const std::string killed = run("killed", true);
  for (int r = 0; r < kRanks; ++r)
    EXPECT_THAT(killed, testing::HasSubstr(fmt::format("rank {}:  (ended by signal {})", r, SIGKILL)));
  EXPECT_EQ(run("resumed", false), "");
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_FALSE(fs::exists(folder.of("killed", r)));
    const Bytes want = read_file(folder.of("whole", r));
    EXPECT_EQ(want.size(), 2 * kCount * sizeof(double));
    EXPECT_EQ(read_file(folder.of("resumed", r)), want) << "rank " << r;
  }
}

/// Rank 1 dies when the mean is written to its second parameter: rank 0 must undo its part of the mean.
TEST(GossipKilled, DeathDuringAnAverageRestoresTheOtherRanksValues) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  constexpr std::size_t kMany = 1 << 20;
  const auto body = [](Context& c) -> std::string {
    void* const pages =
        ::mmap(nullptr, kMany * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OURO_RANK_CHECK(pages != MAP_FAILED, "mmap");
    std::vector<float> a(kMany), b(kMany), grads[3];
    const std::span<float> values[] = {a, {static_cast<float*>(pages), kMany}, b};
    std::vector<Param> params;
    for (std::size_t i = 0; i < 3; ++i) {
      grads[i].resize(kMany);
      params.push_back({fmt::format("{}", i), values[i], std::span(grads[i]), {kMany}});
    }
    GossipOptions o{.topology = *Topology::make("complete", 2), .optimizer = plain_sgd(0.1)};
    auto made = GossipTrainer::create(c.world(), params, {}, o);
    OURO_RANK_OK(made);
    const auto own = static_cast<float>(1 + c.rank());
    for (const std::span<float> v : values) std::fill(v.begin(), v.end(), own);
    if (c.rank() == 1) {
      ::signal(SIGSEGV, [](int) { ::_exit(9); });
      OURO_RANK_CHECK(::mprotect(pages, kMany * sizeof(float), PROT_READ) == 0, "mprotect");
    }
    const Status s = made->global_average().status();
    OURO_RANK_CHECK(!s.ok() && s.code() != Code::timeout, "{}", text(s));
    for (const std::span<float> v : values)
      OURO_RANK_CHECK(std::count(v.begin(), v.end(), own) == kMany, "{} in place of {}", v[0], own);
    return "has its own";
  };
  EXPECT_THAT(run_processes(2, body), testing::HasSubstr("rank 0: has its own"));
}

}  // namespace
}  // namespace ouro::train

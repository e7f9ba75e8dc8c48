// Drives ranks in three ways. See ranks.h. Also the main function of the tests of libnccl, in which their
// child processes start too.
#include "ranks.h"

#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "place.h"

extern char** environ;

namespace ouro::test {
namespace {

std::map<std::string, Steps>& steps() {
  static std::map<std::string, Steps> all;
  return all;
}
std::map<std::string, Scenario>& scenarios() {
  static std::map<std::string, Scenario> all;
  return all;
}

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
    text += two;
  }
  return text;
}

ncclUniqueId from_hex(const std::string& text) {
  ncclUniqueId id;
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

void go_through(const std::vector<Step>& all, int rank, ncclComm_t comm) {
  for (const Step& s : all) {
    SCOPED_TRACE(s.name + ", rank " + std::to_string(rank));
    s.prepare(rank);
    OURO_OK(s.call(rank, comm));
    s.verify(rank);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace

int run_steps(int rank, int size, ncclUniqueId id, const std::string& name) {
  enter_device(rank);
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, size, id, rank) != ncclSuccess) {
    std::fprintf(stderr, "rank %d: %s\n", rank, ncclGetLastError(nullptr));
    return 3;
  }
  go_through(steps().at(name)(size), rank, comm);
  if (ncclCommDestroy(comm) != ncclSuccess) return 4;
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

namespace {

const KnownScenario kSteps("steps", run_steps);

}  // namespace

std::ostream& operator<<(std::ostream& out, How how) {
  return out << (how == How::processes ? "processes" : how == How::threads ? "threads" : "one_thread");
}

KnownSteps::KnownSteps(const char* name, Steps s) { steps().emplace(name, std::move(s)); }
KnownScenario::KnownScenario(const char* name, Scenario s) { scenarios().emplace(name, s); }

void in_threads(int size, const std::function<void(int rank, ncclComm_t&)>& body) {
  ncclUniqueId id;
  OURO_OK(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      ncclComm_t comm = nullptr;
      enter_device(r);
      OURO_OK(ncclCommInitRank(&comm, size, id, r));
      body(r, comm);
      if (comm) EXPECT_OK(ncclCommDestroy(comm));
    });
  for (auto& t : threads) t.join();
}

void run(How how, int size, const std::string& name) {
  if (how == How::processes) {
    EXPECT_THAT(spawn(size, "steps", name), ::testing::Each(0));
    return;
  }
  const std::vector<Step> all = steps().at(name)(size);
  if (how == How::threads) {
    // The buffers of a step belong to all ranks: a step must end everywhere before the next one starts.
    in_threads(size, [&](int rank, ncclComm_t comm) { go_through(steps().at(name)(size), rank, comm); });
    return;
  }
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(size));
  std::vector<int> devices;
  for (int r = 0; r < size; ++r) devices.push_back(enter_device(r));
  OURO_OK(ncclCommInitAll(comms.data(), size, devices.data()));
  for (const Step& s : all) {
    SCOPED_TRACE(s.name);
    for (int r = 0; r < size; ++r) s.prepare(r);
    OURO_OK(ncclGroupStart());
    for (int r = 0; r < size; ++r) OURO_OK(s.call(r, comms[static_cast<std::size_t>(r)]));
    OURO_OK(ncclGroupEnd());
    for (int r = 0; r < size; ++r) s.verify(r);
    if (::testing::Test::HasFailure()) break;
  }
  for (const ncclComm_t c : comms) EXPECT_OK(ncclCommDestroy(c));
}

std::vector<int> spawn(int size, const std::string& scenario, const std::string& argument) {
  ncclUniqueId id;
  EXPECT_OK(ncclGetUniqueId(&id));
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    std::vector<std::string> words{"test_nccl", "--rank", std::to_string(r), std::to_string(size),
                                   to_hex(id),  scenario, argument};
    std::vector<char*> argv;
    for (auto& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    pid_t child = -1;
    EXPECT_EQ(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ), 0);
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return ends;
}

ncclResult_t settle(ncclComm_t comm, double seconds) {
  ncclResult_t state = ncclInProgress;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
       state == ncclInProgress && std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    EXPECT_OK(ncclCommGetAsyncError(comm, &state));
  return state;
}

}  // namespace ouro::test

int main(int argc, char** argv) {
  using namespace ouro::test;
  ::testing::InitGoogleMock(&argc, argv);
  if (argc == 7 && std::strcmp(argv[1], "--rank") == 0)
    return scenarios().at(argv[5])(std::stoi(argv[2]), std::stoi(argv[3]), from_hex(argv[4]), argv[6]);
  return RUN_ALL_TESTS();
}

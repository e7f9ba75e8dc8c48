// Ranks as processes and threads for the failure tests. See harness.h.
#include "tests/runtime/failure/harness.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

namespace ouro::test {

Watchdog::Watchdog(std::chrono::seconds limit)
    : thread_([this, limit] {
        std::unique_lock lock(mutex_);
        watching_ = true;
        cv_.notify_all();
        if (cv_.wait_for(lock, limit, [&] { return done_; })) return;
        std::fprintf(stderr, "watchdog: the test did not end within %lld s\n",
                     static_cast<long long>(limit.count()));
        _exit(3);  // the children die with this process (PDEATHSIG)
      }) {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return watching_; });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  cv_.notify_all();
  thread_.join();
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

bool eventually(const std::function<bool()>& f, std::chrono::milliseconds limit) {
  for (const auto end = Clock::now() + limit; !f(); std::this_thread::sleep_for(200us))
    if (Clock::now() > end) return false;
  return true;
}

Processes::Processes(int n, std::function<void(int, Board&)> body) {
  void* shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  board_ = new (shared) Board{};
  const int parent = getpid();
  for (int r = 0; r < n; ++r) {
    std::fflush(nullptr);
    const int pid = fork();
    if (pid != 0) {
      pids_.push_back(pid);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(4);
    board_->pid[r] = getpid();
    try {
      body(r, *board_);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << r << " threw: " << e.what();
    }
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
}

Processes::~Processes() {
  board_->over = true;
  for (int& pid : pids_)
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  munmap(board_, sizeof(Board));
}

void Processes::kill(const std::vector<int>& ranks) {
  board_->killed_ns = now_ns();
  for (int r : ranks) ::kill(pid(r), SIGKILL);
}

bool Processes::all_reach(int stage, const std::vector<int>& except) {
  return eventually([&] {
    for (int r = 0; r < static_cast<int>(pids_.size()); ++r)
      if (std::find(except.begin(), except.end(), r) == except.end() && board_->stage[r] < stage)
        return false;
    return true;
  });
}

void Processes::join(const std::vector<int>& killed) {
  for (int r = 0; r < static_cast<int>(pids_.size()); ++r) {
    int& pid = pids_[static_cast<std::size_t>(r)];
    int status = 0;
    if (!eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; })) {
      ADD_FAILURE() << "rank " << r << " did not end";
      continue;  // the destructor kills it
    }
    pid = -1;
    if (std::find(killed.begin(), killed.end(), r) != killed.end()) {
      EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << r;
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << r << ": wait status " << status;
    }
  }
}

void on_threads(int n, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(f, r);
  for (auto& t : threads) t.join();
}

UniqueId new_id() {
  auto id = UniqueId::create();
  if (!id.ok()) throw std::runtime_error(id.status().message());
  return *id;
}

InitOptions options(int rank, int world, const UniqueId& id) {
  InitOptions o;
  o.rank = rank, o.world_size = world, o.id = id;
  o.join_deadline = 10s, o.deadline = 15s;
  return o;
}

std::vector<Context> thread_contexts(int n, InitOptions o) {
  if (o.deadline == InitOptions{}.deadline) o.deadline = 15s;
  o.join_deadline = 10s;
  auto contexts = Context::threads(n, o);
  if (!contexts.ok()) throw std::runtime_error(contexts.status().message());
  return std::move(*contexts);
}

Status exact_all_reduce(Group& g, std::size_t count, const CallOptions& o) {
  std::vector<std::int32_t> in(count), out(count, -1);
  for (std::size_t i = 0; i < count; ++i) in[i] = (g.rank() + 1) * static_cast<int>(i % 97 + 1);
  OURO_TRY(all_reduce(g, std::span<const std::int32_t>(in), std::span<std::int32_t>(out), ReduceOp::sum, o));
  const int ranks = g.size() * (g.size() + 1) / 2;
  for (std::size_t i = 0; i < count; ++i)
    if (out[i] != ranks * static_cast<int>(i % 97 + 1))
      return {Reason::data_corrupt, "element " + std::to_string(i) + " is " + std::to_string(out[i])};
  return {};
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

testing::Matcher<Status> Fails(Reason reason) {
  return testing::ResultOf(
      "reason", [](const Status& s) { return s.reason(); }, reason);
}
testing::Matcher<Status> Fails(Reason reason, int rank) {
  return testing::AllOf(
      Fails(reason), testing::ResultOf(
                         "culprit", [](const Status& s) { return s.ok() ? -1 : s.failure()->rank; }, rank));
}

}  // namespace ouro::test

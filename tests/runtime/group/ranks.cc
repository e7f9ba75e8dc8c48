// Ranks as threads and as processes. See ranks.h.
#include "tests/runtime/group/ranks.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/core/fd.h"

namespace ouro::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kThreadsDeadline(100), kProcessesDeadline(60);

/// Ranks of several hosts join over the loopback interface. Set before any thread starts.
[[maybe_unused]] const bool g_hosts = [] {
  const char* set = std::getenv("TEST_HOSTS");
  if (!set) return false;
  ::setenv("OURO_SOCKET_IFNAME", "lo", 0);
  if (std::strchr(set, 't')) {
    ::setenv("OURO_SECURITY", "tls", 0);
    ::setenv("OURO_SECRET", "00112233445566778899aabbccddeeff", 0);
  } else {
    ::setenv("OURO_INSECURE", "1", 0);
  }
  if (std::strchr(set, 'u')) ::setenv("OURO_FABRIC", "ucx", 0);
  return true;
}();

std::string line(int rank, const std::string& text) {
  return text.empty() ? "" : fmt::format("rank {}: {}\n", rank, text);
}

std::string guarded(const Body& body, Context& c) {
  try {
    return body(c);
  } catch (const std::exception& e) {
    return fmt::format("exception: {}", e.what());
  }
}

/// A unique file name, for rank 0 to write its address to.
std::string new_rendezvous() {
  static std::atomic<int> count{0};
  return fmt::format("file:{}/ouro-test-{}-{}", std::filesystem::temp_directory_path().string(), ::getpid(),
                     count++);
}
void forget_rendezvous(const std::string& rendezvous) {
  std::error_code ignored;
  std::filesystem::remove(rendezvous.substr(5), ignored);
}

Result<std::vector<Context>> several_hosts(int n, const InitOptions& o) {
  auto id = o.id ? Result<UniqueId>(*o.id) : UniqueId::create();
  if (!id.ok()) return id.status();
  const std::string rendezvous = new_rendezvous();
  std::vector<Context> contexts(static_cast<std::size_t>(n));
  std::vector<Status> outcomes(contexts.size());
  std::vector<std::thread> joiners;
  for (int r = 0; r < n; ++r)
    joiners.emplace_back([&, r] {
      InitOptions mine = o;
      mine.rank = r, mine.world_size = n, mine.id = *id;
      take_place(&mine, r, n, rendezvous);
      auto c = Context::create(mine);
      const auto i = static_cast<std::size_t>(r);
      if (c.ok())
        contexts[i] = std::move(*c);
      else
        outcomes[i] = c.status();
    });
  for (auto& t : joiners) t.join();
  forget_rendezvous(rendezvous);
  for (const Status& s : outcomes)
    if (!s.ok()) return s;
  return contexts;
}

std::string child_main(int rank, int n, const UniqueId& id, const Body& body, InitOptions o,
                       const std::string& rendezvous) {
  o.rank = rank, o.world_size = n, o.id = id;
  take_place(&o, rank, n, rendezvous);
  auto context = Context::create(o);
  if (!context.ok()) return context.status().message();
  std::string said = guarded(body, *context);
  if (Status s = context->close(); !s.ok() && said.empty()) said = "close: " + s.message();
  return said;
}

std::size_t thread_count() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}
/// One, plus threads of an emulator or a sanitizer that runs this program.
const std::size_t g_first_threads = thread_count();

struct Child {
  pid_t pid = -1;
  Fd pipe;
  std::string said = {};
};

/// Reads the child's output until it ends or until `until`. Returns the output and how the child ended.
std::string hear(Child& c, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd p{c.pipe.get(), POLLIN, 0};
    char buffer[4096];
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) {
      ::kill(c.pid, SIGKILL);
      c.said += "did not end in time; killed";
      break;
    }
    const ssize_t got = ::read(c.pipe.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    c.said.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(c.pid, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("{} (ended by signal {})", c.said, WTERMSIG(status));
  if (WEXITSTATUS(status) != (c.said.empty() ? 0 : 1))
    return fmt::format("{} (exit status {})", c.said, WEXITSTATUS(status));
  return c.said;
}

}  // namespace

int hosts_of(int n) {
  const char* set = std::getenv("TEST_HOSTS");
  return set ? std::min(n, std::atoi(set)) : 1;
}

bool serves_here(Collective c, std::string_view algorithm) {
  bool staging = false;
  if (const auto a = flow::parse_algorithm(algorithm))
    flow::visit(c, *a, [&]<class Flow>(Flow) { staging = Flow::kStaging; });
  return !staging || hosts_of(2) == 1;
}

void take_place(InitOptions* o, int rank, int n, const std::string& rendezvous) {
  const int hosts = hosts_of(n);
  if (hosts < 2) return;
  const bool in_turn = std::strchr(std::getenv("TEST_HOSTS"), 'i') != nullptr;
  // The last host has all remaining ranks.
  const auto host_of = [&](int r) { return in_turn ? r % hosts : std::min(r / (n / hosts), hosts - 1); };
  o->local_rank = o->local_size = 0;
  for (int r = 0; r < n; ++r) {
    if (host_of(r) != host_of(rank)) continue;
    if (r < rank) ++*o->local_rank;
    ++*o->local_size;
  }
  o->host_id = fmt::format("host-{}", host_of(rank));
  o->rendezvous = rendezvous;
}

std::string run_threads(int n, const Body& body, const InitOptions& o) {
  auto contexts = hosts_of(n) > 1 ? several_hosts(n, o) : Context::threads(n, o);
  if (!contexts.ok()) return contexts.status().message();
  std::vector<std::string> said(static_cast<std::size_t>(n));
  std::vector<bool> ended(said.size(), false);
  std::mutex mutex;
  std::condition_variable cv;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, i = static_cast<std::size_t>(r)] {
      std::string text = guarded(body, (*contexts)[i]);
      if (Status s = (*contexts)[i].close(); !s.ok() && text.empty()) text = "close: " + s.message();
      std::lock_guard lock(mutex);
      said[i] = std::move(text), ended[i] = true;
      cv.notify_all();
    });
  {
    std::unique_lock lock(mutex);
    const auto until = Clock::now() + kThreadsDeadline;
    if (!cv.wait_until(lock, until, [&] { return std::count(ended.begin(), ended.end(), true) == n; })) {
      for (int r = 0; r < n; ++r)
        std::fprintf(stderr, "rank %d: %s\n", r,
                     ended[static_cast<std::size_t>(r)] ? "ended" : "has not ended in time");
      std::abort();
    }
  }
  for (auto& t : threads) t.join();
  std::string all;
  for (int r = 0; r < n; ++r) all += line(r, said[static_cast<std::size_t>(r)]);
  return all;
}

std::string run_processes(int n, const Body& body, const InitOptions& o) {
#if !defined(__SANITIZE_ADDRESS__)  // it may start its own thread later
  // A joined thread may still be listed for a moment.
  for (int i = 0; i < 1000 && thread_count() > g_first_threads; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (const std::size_t t = thread_count(); t != g_first_threads)
    return fmt::format("{} threads before fork; expected {}", t, g_first_threads);
#endif
  auto id = UniqueId::create();
  if (!id.ok()) return id.status().message();
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const std::string rendezvous = new_rendezvous();
  std::string all;
  std::vector<Child> children;
  for (int r = 0; r < n; ++r) {
    int ends[2];
    const pid_t pid = ::pipe(ends) == 0 ? ::fork() : -1;
    if (pid < 0) {  // the existing children would wait for the missing ones
      for (const Child& c : children) ::kill(c.pid, SIGKILL);
      all += line(r, "no pipe or no process to be had");
      break;
    }
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(2);  // the parent died before the line above
      ::close(ends[0]);
      const std::string said = child_main(r, n, *id, body, o, rendezvous);
      for (std::size_t at = 0; at < said.size();) {
        const ssize_t put = ::write(ends[1], said.data() + at, said.size() - at);
        if (put <= 0) break;
        at += static_cast<std::size_t>(put);
      }
      ::_exit(said.empty() ? 0 : 1);
    }
    ::close(ends[1]);
    children.push_back({pid, Fd(ends[0])});
  }
  const auto until = Clock::now() + kProcessesDeadline;
  for (std::size_t r = 0; r < children.size(); ++r)
    all += line(static_cast<int>(r), hear(children[r], until));
  forget_rendezvous(rendezvous);
  return all;
}

}  // namespace ouro::test

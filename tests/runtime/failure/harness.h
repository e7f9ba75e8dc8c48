// Shared code of the failure tests: ranks as forked processes or as threads, a watchdog, an exact all-reduce.
// Used by tests/runtime/failure only.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ouro/ouro.hpp"
#include "tests/timing.h"

namespace ouro::test {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

inline constexpr auto kHardBound = 1000ms;  // the latest that a survivor may learn of a death or disagreement

/// Ends the program with a message if a test takes too long, so that a hang is a failure.
class Watchdog {
 public:
  /// Returns once its thread is waiting: in a child that is forked while that thread allocates memory,
  /// AddressSanitizer's allocator would stay locked for ever.
  explicit Watchdog(std::chrono::seconds limit = 2 * kHang);
  ~Watchdog();

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool watching_ = false, done_ = false;
  std::thread thread_;
};

/// Memory shared by a test and the processes that it forks. They also share the steady clock.
struct Board {
  static constexpr int kMax = 16;
  std::atomic<int> stage[kMax];
  std::atomic<int> pid[kMax];
  std::atomic<std::int64_t> heard_ns[kMax];  // when each survivor got its first error
  std::atomic<std::int64_t> killed_ns;
  std::atomic<std::uint64_t> completed[kMax];
  std::atomic<bool> over;
};
std::int64_t now_ns();
/// Waits until f() is true. Returns false if that takes longer than `limit`.
bool eventually(const std::function<bool()>& f, std::chrono::milliseconds limit = kHang);

/// Skips a test that forks ranks if ThreadSanitizer is enabled: it sees nothing across processes, and its
/// threads do not survive a fork.
#if defined(__SANITIZE_THREAD__)
#define OURO_NEEDS_PROCESSES() GTEST_SKIP() << "under ThreadSanitizer: it does not follow processes"
#else
#define OURO_NEEDS_PROCESSES() static_cast<void>(0)
#endif

/// Ranks as processes. Failed expectations or exceptions in a body, or an unexpected end, fail the test
/// in join().
class Processes {
 public:
  Processes(int n, std::function<void(int rank, Board&)> body);
  ~Processes();  ///< kills and reaps its remaining children
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Board& board() { return *board_; }
  int pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  void kill(const std::vector<int>& ranks);
  bool all_reach(int stage, const std::vector<int>& except = {});
  /// Expects every rank except `killed` to end by itself, with success.
  void join(const std::vector<int>& killed = {});

 private:
  Board* board_;
  std::vector<int> pids_;
};

/// Runs f(rank) in n threads and joins them.
void on_threads(int n, const std::function<void(int)>& f);
/// Creates n contexts in this process, with deadlines suitable for tests.
std::vector<Context> thread_contexts(int n, InitOptions = {});
InitOptions options(int rank, int world, const UniqueId& id);
UniqueId new_id();

/// Runs an all-reduce of integers and checks the result exactly. Returns its error, or `data-corrupt` if the
/// result is wrong.
Status exact_all_reduce(Group&, std::size_t count = 1000, const CallOptions& = {});

bool has(const std::string& text, const std::string& part);
/// Matches a Status by its reason; prints the message.
testing::Matcher<Status> Fails(Reason);
testing::Matcher<Status> Fails(Reason, int rank);

}  // namespace ouro::test

namespace ouro {
inline void PrintTo(const Status& s, std::ostream* os) { *os << s.message(); }
}  // namespace ouro

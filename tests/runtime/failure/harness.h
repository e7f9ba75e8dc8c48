// What the failure tests share: ranks as forked processes or as threads, a watchdog, an exact all-reduce.
// Used by tests/failure only.
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

inline constexpr auto kHardBound = 1000ms;  // no survivor may learn of a death, or of a disagreement, later

/// Ends the program, with a line that says so, if a test lasts too long: a hang is a failure, not a wait.
class Watchdog {
 public:
  /// Returns when its thread waits: a child that is forked while that thread takes memory would find
  /// AddressSanitizer's allocator locked for ever.
  explicit Watchdog(std::chrono::seconds limit = 2 * kHang);
  ~Watchdog();

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool watching_ = false, done_ = false;
  std::thread thread_;
};

/// Memory that a test and the processes it forks all see. The steady clock is one for all of them.
struct Board {
  static constexpr int kMax = 16;
  std::atomic<int> stage[kMax];
  std::atomic<int> pid[kMax];
  std::atomic<std::int64_t> heard_ns[kMax];  // when a survivor got its first error
  std::atomic<std::int64_t> killed_ns;
  std::atomic<std::uint64_t> completed[kMax];
  std::atomic<bool> over;
};
std::int64_t now_ns();
/// False if it did not come true in time.
bool eventually(const std::function<bool()>& f, std::chrono::milliseconds limit = kHang);

/// Skips a test that forks ranks where ThreadSanitizer is in: it sees nothing across processes, and its
/// threads do not survive a fork.
#if defined(__SANITIZE_THREAD__)
#define OURO_NEEDS_PROCESSES() GTEST_SKIP() << "ranks are processes here, which ThreadSanitizer cannot follow"
#else
#define OURO_NEEDS_PROCESSES() static_cast<void>(0)
#endif

/// Ranks as processes. A body's failed expectations, a throw or an unexpected end fail the test that joins
/// it.
class Processes {
 public:
  Processes(int n, std::function<void(int rank, Board&)> body);
  ~Processes();  ///< kills and reaps what is left of its own children
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Board& board() { return *board_; }
  int pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  void kill(const std::vector<int>& ranks);
  bool all_reach(int stage, const std::vector<int>& except = {});
  /// Expects every rank but `killed` to end by itself and well.
  void join(const std::vector<int>& killed = {});

 private:
  Board* board_;
  std::vector<int> pids_;
};

/// Runs f(rank) in n threads and joins them.
void on_threads(int n, const std::function<void(int)>& f);
/// n contexts in this process with deadlines that suit tests.
std::vector<Context> thread_contexts(int n, InitOptions = {});
InitOptions options(int rank, int world, const UniqueId& id);
UniqueId new_id();

/// An all-reduce of integers whose result every rank checks exactly. The error, or `data-corrupt` where it is
/// wrong.
Status exact_all_reduce(Group&, std::size_t count = 1000, const CallOptions& = {});

bool has(const std::string& text, const std::string& part);
/// Matches a Status by its reason; prints the message.
testing::Matcher<Status> Fails(Reason);
testing::Matcher<Status> Fails(Reason, int rank);

}  // namespace ouro::test

namespace ouro {
inline void PrintTo(const Status& s, std::ostream* os) { *os << s.message(); }
}  // namespace ouro

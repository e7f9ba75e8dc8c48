// Ranks for tests: runs the same body on n threads of this process or in n processes. Used by the tests of
// the runtime and of failures.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string>

#include "ouro/ouro.hpp"

#if defined(__SANITIZE_THREAD__)
#define OURO_TEST_TSAN 1
#else
#define OURO_TEST_TSAN 0
#endif

namespace ouro::test {

/// The code of one rank. Returns what went wrong, or "".
using Body = std::function<std::string(Context&)>;

/// Deadlines short enough that a hang becomes a failure that names the missing ranks.
inline InitOptions quick_options() {
  InitOptions o;
  o.join_deadline = Milliseconds(20'000);
  o.deadline = Milliseconds(30'000);
  return o;
}

/// Places rank `rank` of `n` on a host. TEST_HOSTS=H spreads ranks over H hosts that do not share memory:
/// consecutive ranks, unevenly; alternately with Hi; over UCX with Hu; encrypted with Ht. `rendezvous` is the
/// same for all ranks.
void take_place(InitOptions*, int rank, int n, const std::string& rendezvous);
/// Number of hosts that n ranks are spread over; 1 if TEST_HOSTS is not set.
int hosts_of(int n);

/// Whether an algorithm can serve with this placement of ranks: algorithms over staging buffers need
/// shared memory.
bool serves_here(Collective, std::string_view algorithm);

/// Returns what went wrong on each rank, one line each; "" if all went well. Aborts the program if the ranks
/// do not end within 100 seconds, because threads cannot be killed.
std::string run_threads(int n, const Body&, const InitOptions& = quick_options());

/// The same with n child processes, forked while this process has only one thread. They die with this
/// process; children that have not ended within 60 seconds are killed, which is a failure. The body runs in
/// the child: what it captures by reference is a copy there.
std::string run_processes(int n, const Body&, const InitOptions& = quick_options());

enum class Mode { threads, processes };
inline const char* name(Mode m) { return m == Mode::threads ? "threads" : "processes"; }
inline std::string run(Mode mode, int n, const Body& body, const InitOptions& o = quick_options()) {
  return mode == Mode::threads ? run_threads(n, body, o) : run_processes(n, body, o);
}

/// To be the first statement of a test that may run processes.
#define OURO_SKIP_PROCESSES_UNDER_TSAN(mode)                     \
  if (OURO_TEST_TSAN && (mode) == ::ouro::test::Mode::processes) \
  GTEST_SKIP() << "under ThreadSanitizer: it does not follow processes"

inline Status status_of(const Status& s) { return s; }
template <class T>
Status status_of(const Result<T>& r) {
  return r.status();
}

/// In a body: returns the message of a Status or Result that is not ok.
#define OURO_RANK_OK(expression)                                                                   \
  do {                                                                                             \
    if (const ::ouro::Status rank_status = ::ouro::test::status_of(expression); !rank_status.ok()) \
      return fmt::format("{}:{}: {}", __FILE__, __LINE__, rank_status.message());                  \
  } while (0)

/// In a body: returns an error if `condition` does not hold; the other arguments format an explanation.
#define OURO_RANK_CHECK(condition, ...)                                                              \
  do {                                                                                               \
    if (!(condition))                                                                                \
      return fmt::format("{}:{}: {}: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
  } while (0)

}  // namespace ouro::test

// Threads of the library: names, signals, and exceptions thrown by their bodies.
#include "runtime/core/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <stdexcept>

#include "runtime/core/log.h"

namespace ouro {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t mask() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return now;
}

TEST(Thread, TakesNoSignalsAndLeavesTheCallersMask) {
  const sigset_t before = mask();
  sigset_t inside;
  char name[16] = {};
  Thread t("ouro-a-name-too-long-for-linux", [&] {
    inside = mask();
    pthread_getname_np(pthread_self(), name, sizeof name);
  });
  const sigset_t after = mask();
  t.join();
  EXPECT_STREQ(name, "ouro-a-name-too");
  for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGPIPE, SIGRTMIN, SIGRTMAX})
    EXPECT_TRUE(sigismember(&inside, s)) << s;
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) EXPECT_FALSE(sigismember(&inside, s)) << s;
  for (int s = 1; s <= SIGRTMAX; ++s) EXPECT_EQ(sigismember(&before, s), sigismember(&after, s)) << s;
}

TEST(Thread, ExceptionEndsTheThreadAlone) {
  Thread t("ouro-test", [] { throw std::runtime_error("for a test"); });
  t.join();
  EXPECT_THAT(log::last_warning(), testing::HasSubstr("ouro-test ends: for a test"));
}

TEST(Thread, RetriesAfterShortagesWithABackOff) {
  int calls = 0;
  const auto begin = Clock::now();
  Thread t("ouro-test", [&] {
    persist("a test", [&] {
      if (++calls == 1) throw std::runtime_error("no descriptor");
      if (calls < 4) throw std::bad_alloc();
    });
  });
  t.join();
  EXPECT_EQ(calls, 4);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(70)) << "10, 20 and 40 ms";
  EXPECT_THAT(log::last_warning(), testing::HasSubstr("a test: no descriptor")) << "the first, and no flood";
}

}  // namespace
}  // namespace ouro

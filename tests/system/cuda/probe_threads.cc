// Questions that several threads of one process ask together, as ranks that are threads would: whether the
// device runs a stream's work while streams of other threads wait for that work. See probe.h.
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/system/cuda/probe.h"

namespace ouro::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kBytes = 64 << 10;
constexpr int kRounds = 400;

/// The steps of a round, of which each question leaves some out.
struct Steps {
  int threads = 3;
  bool copies = false;        ///< down before the wait, and up after it
  bool function = false;      ///< the stream calls a function, which reports; otherwise the thread polls
  bool new_stream = false;    ///< each round has a stream of its own
  bool device_words = false;  ///< streams report by a word in device memory, for which the next one waits
};

/// State that threads share. All of it is leaked after a stall, because streams may still use it.
struct Shared {
  std::atomic<int> reports{0};
  std::atomic<bool> stalled{false};
  std::uint32_t* pinned = nullptr;       ///< a word: the last round that may pass
  std::uint32_t* on_device = nullptr;    ///< a word of each thread, in lines of 128 bytes
  std::vector<std::byte*> down, memory;  ///< of each thread: pinned, on the device
};

void report(void* shared) { static_cast<Shared*>(shared)->reports.fetch_add(1); }

/// Polls until `done` returns true. Returns false after `patience`, or if another thread has stalled.
template <class Done>
Result<bool> poll_until(Shared& shared, milliseconds patience, Done&& done) {
  for (const auto end = Clock::now() + patience;;) {
    OURO_ASSIGN(const bool is_done, done());
    if (is_done) return true;
    if (shared.stalled || Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/// One thread. Returns "" or where it stalled.
Result<std::string> run_rounds(Gpu& g, int device, const Steps& steps, int me, milliseconds patience,
                               Shared& shared) {
  const auto at = static_cast<std::size_t>(me);
  OURO_ASSIGN(Stream stream, g.create_stream(device, 0));
  OURO_ASSIGN(const Event event, g.create_event(device, false));
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    if (steps.new_stream && round > 1) {
      OURO_TRY(g.destroy_stream(stream));
      OURO_ASSIGN(stream, g.create_stream(device, 0));
    }
    if (steps.copies) OURO_TRY(g.copy(shared.down[at], shared.memory[at], kBytes, stream));
    if (steps.device_words) {
      constexpr int kLine = 128 / sizeof(std::uint32_t);
      const int before = (me + steps.threads - 1) % steps.threads;
      const MemOp ops[] = {{MemOp::Kind::write, round, shared.on_device + me * kLine},
                           {MemOp::Kind::wait_at_least, round, shared.on_device + before * kLine}};
      OURO_TRY(g.enqueue(ops, stream));
      shared.reports.fetch_add(1);
    } else {
      if (steps.function) {
        OURO_TRY(g.call_host(stream, report, &shared));
      } else {
        OURO_TRY(g.record(event, stream));
        OURO_ASSIGN(const bool ended, poll_until(shared, patience, [&] { return g.query(event); }));
        if (!ended)
          return fmt::format("round {}: the work of thread {} before its wait does not run", round, me);
        shared.reports.fetch_add(1);
      }
      const MemOp wait{MemOp::Kind::wait_at_least, round, shared.pinned};
      OURO_TRY(g.enqueue({&wait, 1}, stream));
    }
    if (steps.copies) OURO_TRY(g.copy(shared.memory[at], shared.down[at], kBytes, stream));
    const int all = steps.threads * static_cast<int>(round);
    OURO_ASSIGN(const bool reported,
                poll_until(shared, patience, [&]() -> Result<bool> { return shared.reports >= all; }));
    if (!reported)
      return fmt::format("round {}: {} of {} threads have reported, thread {} waits", round,
                         shared.reports - all + steps.threads, steps.threads, me);
    std::atomic_ref(*shared.pinned).store(round, std::memory_order_release);
    OURO_ASSIGN(const bool ended, poll_until(shared, patience, [&] { return g.query(stream); }));
    if (!ended) return fmt::format("round {}: the stream of thread {} does not end its wait", round, me);
  }
  return std::string();
}

Result<Answer> ask_threads(Gpu& g, int device, milliseconds patience, const Steps& steps) {
  auto* const shared = new Shared;
  OURO_ASSIGN(void* const pinned, g.alloc_pinned(4096));
  shared->pinned = static_cast<std::uint32_t*>(pinned);
  *shared->pinned = 0;
  OURO_ASSIGN(void* const words, g.alloc(device, 4096));
  shared->on_device = static_cast<std::uint32_t*>(words);
  OURO_ASSIGN(const Stream first, g.create_stream(device, 0));
  OURO_TRY(g.set(words, 0, 4096, first));
  OURO_TRY(g.synchronize(first));
  for (int k = 0; k < steps.threads; ++k) {
    OURO_ASSIGN(void* const down, g.alloc_pinned(kBytes));
    OURO_ASSIGN(void* const memory, g.alloc(device, kBytes));
    shared->down.push_back(static_cast<std::byte*>(down));
    shared->memory.push_back(static_cast<std::byte*>(memory));
  }
  std::vector<Result<std::string>> said(static_cast<std::size_t>(steps.threads), std::string());
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (int k = 0; k < steps.threads; ++k)
    threads.emplace_back([&, k] {
      auto& mine = said[static_cast<std::size_t>(k)];
      mine = run_rounds(g, device, steps, k, patience, *shared);
      if (mine.ok() && mine->empty()) return;
      shared->stalled = true;
      std::atomic_ref(*shared->pinned).store(kRounds, std::memory_order_release);
    });
  for (std::thread& t : threads) t.join();
  std::string stalls;
  for (const auto& one : said) {
    if (!one.ok()) return one.status();
    if (!one->empty()) stalls += (stalls.empty() ? "" : "; ") + *one;
  }
  if (!stalls.empty()) return Answer{false, stalls};
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kRounds;
  return Answer{true, fmt::format("yes, {} rounds, {:.0f} us each", kRounds, us)};
}

template <Steps kSteps>
Result<Answer> ask_with(Gpu& g, int device, milliseconds patience) {
  return ask_threads(g, device, patience, kSteps);
}

constexpr Question kThreadQuestions[] = {
    {"threads-wait", "streams of three threads wait until all have been used", &ask_with<Steps{}>},
    {"threads-copy-and-wait", "the same, with copies before and after the wait",
     &ask_with<Steps{.copies = true}>},
    {"threads-call-and-wait", "the same, with a function before the wait",
     &ask_with<Steps{.function = true}>},
    {"threads-copy-call-and-wait", "the same, with a function and copies: the staged path",
     &ask_with<Steps{.copies = true, .function = true}>},
    {"threads-new-streams", "the same, with a new stream for each round",
     &ask_with<Steps{.copies = true, .function = true, .new_stream = true}>},
    {"eight-threads-copy-call-and-wait", "the staged path with eight threads",
     &ask_with<Steps{.threads = 8, .copies = true, .function = true}>},
    {"eight-threads-words", "streams of eight threads wait for words of each other",
     &ask_with<Steps{.threads = 8, .device_words = true}>},
    {"eight-threads-copy-and-words", "the same, with copies: the stream-ordered path",
     &ask_with<Steps{.threads = 8, .copies = true, .device_words = true}>},
};

}  // namespace

std::span<const Question> thread_questions() { return kThreadQuestions; }

}  // namespace ouro::gpu

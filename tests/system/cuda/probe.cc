// The questions. See probe.h.
#include "tests/system/cuda/probe.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "kernels/gpu/collect.h"
#include "kernels/gpu/resident.h"

namespace ouro::gpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kCopyBytes = 64 << 10;

/// A word in pinned memory that streams wait for; the destructor opens the gate at the latest.
class Gate {
 public:
  static Result<std::unique_ptr<Gate>> make(Gpu& g) {
    OURO_ASSIGN(void* const memory, g.alloc_pinned(sizeof(std::uint32_t)));
    auto gate = std::unique_ptr<Gate>(new Gate(static_cast<std::uint32_t*>(memory)));
    std::atomic_ref(*gate->word_).store(0, std::memory_order_release);
    return gate;
  }
  ~Gate() { open(); }  // the memory is leaked: a stream may still poll it
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() const { std::atomic_ref(*word_).store(1, std::memory_order_release); }
  MemOp wait() const { return {MemOp::Kind::wait_equal, 1, word_}; }
  MemOp write(std::uint32_t value) const { return {MemOp::Kind::write, value, word_}; }

 private:
  explicit Gate(std::uint32_t* word) : word_(word) {}
  std::uint32_t* const word_;
};

/// Creates a stream that waits at a gate.
Result<Stream> held(Gpu& g, int device, const Gate& gate) {
  OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
  const MemOp wait = gate.wait();
  OURO_TRY(g.enqueue({&wait, 1}, s));
  return s;
}

/// Whether all work in the stream ends within `patience`.
Result<bool> ends(Gpu& g, Stream s, milliseconds patience) {
  for (const auto end = Clock::now() + patience;;) {
    OURO_ASSIGN(const bool done, g.query(s));
    if (done || Clock::now() > end) return done;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

double ms_since(Clock::time_point t) {
  return std::chrono::duration<double, std::milli>(Clock::now() - t).count();
}
Answer within(bool good, Clock::time_point begin, milliseconds patience) {
  return {good, good ? fmt::format("yes, {:.2f} ms", ms_since(begin))
                     : fmt::format("no, not within {} ms", patience.count())};
}

/// Whether the call returns while a stream waits at a gate.
Result<Answer> beside_a_wait(Gpu& g, int device, milliseconds patience, auto&& call) {
  OURO_ASSIGN(const auto gate, Gate::make(g));
  OURO_TRY(held(g, device, *gate).status());
  const auto begin = Clock::now();
  auto called = std::async(std::launch::async, call);
  const Answer answer = within(called.wait_for(patience) == std::future_status::ready, begin, patience);
  gate->open();
  OURO_TRY(called.get());
  return answer;
}

/// Launches a small kernel on `s`.
Status start_kernel(Gpu& g, int device, Stream s, bool load_first, std::byte* memory) {
  FusedArgs args;
  args.collective = Collective::broadcast;
  args.dtype = DType::u8;
  args.ranks = 2;
  args.count = 64;
  args.in[0] = args.out[0] = memory;
  args.out[1] = memory + 64;
  const Launch l = fused(args, 1);
  if (load_first) return g.info(*l.kernel, device).status();
  return g.launch(*l.kernel, l.shape, &args, s);
}

Result<Answer> launch_beside_wait(Gpu& g, int device, milliseconds patience, bool loaded) {
  OURO_ASSIGN(void* const memory, g.alloc(device, 128));
  OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
  auto* const at = static_cast<std::byte*>(memory);
  if (loaded) OURO_TRY(start_kernel(g, device, s, true, at));
  return beside_a_wait(g, device, patience, [&g, device, s, at]() -> Status {
    OURO_TRY(start_kernel(g, device, s, false, at));
    return g.synchronize(s);
  });
}

Result<Answer> first_launch(Gpu& g, int device, milliseconds patience) {
  return launch_beside_wait(g, device, patience, false);
}
Result<Answer> loaded_launch(Gpu& g, int device, milliseconds patience) {
  return launch_beside_wait(g, device, patience, true);
}
Result<Answer> allocation(Gpu& g, int device, milliseconds patience) {
  return beside_a_wait(g, device, patience, [&g, device] { return g.alloc(device, 1 << 20).status(); });
}
Result<Answer> release(Gpu& g, int device, milliseconds patience) {
  OURO_ASSIGN(void* const memory, g.alloc(device, 1 << 20));
  return beside_a_wait(g, device, patience, [&g, memory] { return g.free(memory); });
}
Result<Answer> pinning(Gpu& g, int device, milliseconds patience) {
  static std::vector<std::byte> memory(1 << 20);
  return beside_a_wait(g, device, patience,
                       [&g] { return g.register_host(memory.data(), memory.size()).status(); });
}
Result<Answer> unpinning(Gpu& g, int device, milliseconds patience) {
  static std::vector<std::byte> memory(1 << 20);
  OURO_TRY(g.register_host(memory.data(), memory.size()).status());
  return beside_a_wait(g, device, patience, [&g] { return g.unregister_host(memory.data()); });
}

/// How many streams can wait before another stream no longer makes progress.
Result<Answer> waiting_streams(Gpu& g, int device, milliseconds patience) {
  constexpr int kMost = 64, kNeeded = 4;  // of a rank
  OURO_ASSIGN(const auto gate, Gate::make(g));
  OURO_ASSIGN(const auto passed, Gate::make(g));
  int waiting = 0;
  for (; waiting < kMost; ++waiting) {
    OURO_ASSIGN(const Stream next, g.create_stream(device, 0));
    const MemOp write = passed->write(1);
    OURO_TRY(g.enqueue({&write, 1}, next));
    OURO_ASSIGN(const bool ahead, ends(g, next, std::min(patience, milliseconds(200))));
    if (!ahead) break;
    const MemOp wait = gate->wait();
    OURO_TRY(g.enqueue({&wait, 1}, next));
  }
  return Answer{waiting >= kNeeded,
                fmt::format("{}{} streams can wait", waiting == kMost ? "at least " : "", waiting)};
}

/// How many streams can wait between two copies before the first copy of another stream is held up. `from`
/// and `to` have 64 KiB, and the second copy goes back. Copy engines have queues of their own, which may be
/// fewer, and a copy of pageable memory may hold the driver's lock.
Result<Answer> waiting_copies(Gpu& g, int device, milliseconds patience, void* to, void* from) {
  constexpr int kMost = 32, kNeeded = 16;  // ranks that are threads
  OURO_ASSIGN(const auto gate, Gate::make(g));
  int waiting = 0;
  for (; waiting < kMost; ++waiting) {
    OURO_ASSIGN(const Stream next, g.create_stream(device, 0));
    auto first = std::async(std::launch::async, [&]() -> Status {
      OURO_TRY(g.copy(to, from, kCopyBytes, next));
      return g.synchronize(next);
    });
    const bool ahead = first.wait_for(std::min(patience, milliseconds(200))) == std::future_status::ready;
    if (!ahead) gate->open();
    OURO_TRY(first.get());
    if (!ahead) break;
    const MemOp wait = gate->wait();
    OURO_TRY(g.enqueue({&wait, 1}, next));
    auto back = std::async(std::launch::async, [&] { return g.copy(from, to, kCopyBytes, next); });
    if (back.wait_for(patience) != std::future_status::ready) {
      gate->open();
      OURO_TRY(back.get());
      return Answer{false, "a copy behind a wait holds up its caller"};
    }
    OURO_TRY(back.get());
  }
  return Answer{waiting >= kNeeded,
                fmt::format("{}{} streams can wait", waiting == kMost ? "at least " : "", waiting)};
}
Result<Answer> waiting_staged_copies(Gpu& g, int device, milliseconds patience) {
  OURO_ASSIGN(void* const memory, g.alloc(device, kCopyBytes));
  OURO_ASSIGN(void* const pinned, g.alloc_pinned(kCopyBytes));
  return waiting_copies(g, device, patience, pinned, memory);
}
Result<Answer> waiting_device_copies(Gpu& g, int device, milliseconds patience) {
  OURO_ASSIGN(void* const one, g.alloc(device, kCopyBytes));
  OURO_ASSIGN(void* const other, g.alloc(device, kCopyBytes));
  return waiting_copies(g, device, patience, other, one);
}
Result<Answer> waiting_pageable_copies(Gpu& g, int device, milliseconds patience) {
  static std::vector<std::byte> pageable(kCopyBytes);
  OURO_ASSIGN(void* const memory, g.alloc(device, kCopyBytes));
  OURO_ASSIGN(void* const pinned, g.alloc_pinned(kCopyBytes));
  OURO_ASSIGN(const auto gate, Gate::make(g));
  // Streams that wait before copies to and from pinned memory, as in staging.
  for (int k = 0; k < 4; ++k) {
    OURO_ASSIGN(const Stream s, held(g, device, *gate));
    OURO_TRY(g.copy(pinned, memory, kCopyBytes, s));
    OURO_TRY(g.copy(memory, pinned, kCopyBytes, s));
  }
  OURO_ASSIGN(const Stream other, g.create_stream(device, 0));
  const auto begin = Clock::now();
  auto copied = std::async(std::launch::async, [&]() -> Status {
    OURO_TRY(g.copy(memory, pageable.data(), kCopyBytes, other));
    return g.synchronize(other);
  });
  const Answer answer = within(copied.wait_for(patience) == std::future_status::ready, begin, patience);
  gate->open();
  OURO_TRY(copied.get());
  return answer;
}

/// Whether what is enqueued on a new stream ends while others wait.
Result<bool> new_stream_works(Gpu& g, int device, int priority, const Gate& passed, milliseconds patience) {
  OURO_ASSIGN(const Stream s, g.create_stream(device, priority));
  const MemOp write = passed.write(1);
  OURO_TRY(g.enqueue({&write, 1}, s));
  OURO_ASSIGN(const bool ended, ends(g, s, std::min(patience, milliseconds(200))));
  if (ended) OURO_TRY(g.destroy_stream(s));
  return ended;
}

/// Whether streams of high priority have hardware queues of their own, which waits of others do not fill.
Result<Answer> queues_of_priorities(Gpu& g, int device, milliseconds patience) {
  constexpr int kMost = 32;  // as many as there are queues
  OURO_ASSIGN(const Properties p, g.properties(device));
  OURO_ASSIGN(const auto gate, Gate::make(g));
  OURO_ASSIGN(const auto passed, Gate::make(g));
  for (int waiting = 0; waiting < kMost; ++waiting) OURO_TRY(held(g, device, *gate).status());
  for (int k = 0; k < 4; ++k) {
    OURO_ASSIGN(const bool works, new_stream_works(g, device, p.high_priority, *passed, patience));
    if (!works) return Answer{false, fmt::format("no: stream {} of high priority is held up", k + 1)};
  }
  return Answer{true, fmt::format("yes, beside {} streams that wait", kMost)};
}

/// Whether a new stream takes a free hardware queue, however many streams have come and gone.
Result<Answer> queues_of_new_streams(Gpu& g, int device, milliseconds patience) {
  constexpr int kWaiting = 8, kTimes = 100;
  OURO_ASSIGN(const auto gate, Gate::make(g));
  OURO_ASSIGN(const auto passed, Gate::make(g));
  for (int waiting = 0; waiting < kWaiting; ++waiting) OURO_TRY(held(g, device, *gate).status());
  for (int k = 0; k < kTimes; ++k) {
    OURO_ASSIGN(const bool works, new_stream_works(g, device, 0, *passed, patience));
    if (!works)
      return Answer{false, fmt::format("no: new stream {} shares the queue of one that waits", k + 1)};
  }
  return Answer{true, fmt::format("yes, {} new streams in turn beside {} that wait", kTimes, kWaiting)};
}

/// The same after more streams than there are queues existed at a time, and were destroyed in another order.
Result<Answer> queues_after_many_streams(Gpu& g, int device, milliseconds patience) {
  constexpr int kMany = 64, kStride = 7;
  OURO_ASSIGN(const auto passed, Gate::make(g));
  std::vector<Stream> many;
  for (int k = 0; k < kMany; ++k) {
    OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
    const MemOp write = passed->write(1);
    OURO_TRY(g.enqueue({&write, 1}, s));
    OURO_TRY(g.synchronize(s));
    many.push_back(s);
  }
  for (int k = 0; k < kMany; ++k)
    OURO_TRY(g.destroy_stream(many[static_cast<std::size_t>(k * kStride % kMany)]));
  return queues_of_new_streams(g, device, patience);
}

/// Kernels of two ranks that wait for each other in a barrier, each on a stream of its own.
struct Spinners {
  ResidentArgs args;
  ResidentError* errors = nullptr;
  std::uint32_t* abort = nullptr;
  Stream streams[2];

  Status make(Gpu& g, int device, milliseconds deadline) {
    OURO_ASSIGN(const ResidentLayout layout, resident_layout({.ranks = 2, .channels = 1}));
    OURO_ASSIGN(void* const words, g.alloc_pinned(4096));
    std::memset(words, 0, 4096);
    abort = static_cast<std::uint32_t*>(words);
    errors = reinterpret_cast<ResidentError*>(static_cast<std::byte*>(words) + 128);
    args.collective = Collective::barrier;
    args.algorithm = flow::Algorithm::direct;
    args.dtype = DType::u8;
    args.one_device = true;
    args.layout = layout;
    args.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(deadline).count());
    args.abort = abort;
    OURO_ASSIGN(const Properties p, g.properties(device));
    for (int r = 0; r < 2; ++r) {
      OURO_ASSIGN(streams[r], g.create_stream(device, p.high_priority));
      OURO_ASSIGN(void* const arena, g.alloc(device, layout.bytes()));
      OURO_TRY(g.set(arena, 0, layout.bytes(), streams[r]));
      OURO_TRY(g.synchronize(streams[r]));
      args.arena[r] = static_cast<std::byte*>(arena);
    }
    return {};
  }
  Status launch(Gpu& g, int r) {
    args.rank = r;
    args.error = errors + r;
    OURO_ASSIGN(const Launch l, resident(args));
    return g.launch(*l.kernel, l.shape, &args, streams[r]);
  }
};

/// Whether kernels of two ranks that wait for each other run at the same time.
Result<Answer> spinning_kernels(Gpu& g, int device, milliseconds patience) {
  Spinners both;
  OURO_TRY(both.make(g, device, patience));
  const auto begin = Clock::now();
  for (int r = 0; r < 2; ++r) OURO_TRY(both.launch(g, r));
  bool together = true;
  for (int r = 0; r < 2; ++r) {
    OURO_ASSIGN(const bool ended, ends(g, both.streams[r], 2 * patience));
    together &= ended && std::atomic_ref(both.errors[r].fault).load() == ResidentFault::none;
  }
  return within(together, begin, patience);
}

/// Whether the call returns while the kernel of a rank waits for another rank.
Result<Answer> beside_a_kernel(Gpu& g, int device, milliseconds patience, auto&& call) {
  Spinners one;
  OURO_TRY(one.make(g, device, 4 * patience));
  OURO_TRY(one.launch(g, 0));
  std::this_thread::sleep_for(milliseconds(10));  // it has begun
  const auto begin = Clock::now();
  auto called = std::async(std::launch::async, call);
  const Answer answer = within(called.wait_for(patience) == std::future_status::ready, begin, patience);
  std::atomic_ref(*one.abort).store(1, std::memory_order_release);
  OURO_TRY(called.get());
  OURO_ASSIGN(const bool ended, ends(g, one.streams[0], 8 * patience));
  return ended ? answer : Answer{false, "no: the kernel did not end"};
}
Result<Answer> allocation_beside_a_kernel(Gpu& g, int device, milliseconds patience) {
  return beside_a_kernel(g, device, patience, [&g, device] { return g.alloc(device, 1 << 20).status(); });
}
Result<Answer> pinning_beside_a_kernel(Gpu& g, int device, milliseconds patience) {
  return beside_a_kernel(g, device, patience, [&g] { return g.alloc_pinned(1 << 20).status(); });
}
/// Copies of `bytes` from and to memory of the host that is not pinned, several times.
Result<Answer> pageable_copies(Gpu& g, int device, milliseconds patience, std::size_t bytes) {
  static std::vector<std::byte> memory(1 << 20);
  OURO_ASSIGN(void* const there, g.alloc(device, memory.size()));
  OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
  return beside_a_kernel(g, device, patience, [&g, there, s, bytes]() -> Status {
    for (int k = 0; k < 8; ++k) {
      OURO_TRY(g.copy(there, memory.data(), bytes, s));
      OURO_TRY(g.copy(memory.data(), there, bytes, s));
      OURO_TRY(g.synchronize(s));
    }
    return {};
  });
}
Result<Answer> small_pageable_copies(Gpu& g, int device, milliseconds patience) {
  return pageable_copies(g, device, patience, 1000);
}
Result<Answer> large_pageable_copies(Gpu& g, int device, milliseconds patience) {
  return pageable_copies(g, device, patience, 160'000);
}

/// Whether words that a graph waits for and clears work in each replay.
Result<Answer> captured_words(Gpu& g, int device, milliseconds patience) {
  OURO_ASSIGN(const auto gate, Gate::make(g));
  OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
  OURO_TRY(g.begin_capture(s));
  const MemOp ops[] = {gate->wait(), gate->write(0)};
  const Status captured = g.enqueue(ops, s);
  const auto graph = g.end_capture(s);
  OURO_TRY(captured);
  OURO_TRY(graph.status());
  const auto begin = Clock::now();
  for (int replay = 0; replay < 3; ++replay) {
    OURO_TRY(g.launch(*graph, s));
    OURO_ASSIGN(const bool early, ends(g, s, milliseconds(20)));
    if (early) return Answer{false, "no: a replay did not wait"};
    gate->open();
    OURO_ASSIGN(const bool passed, ends(g, s, patience));
    if (!passed) return within(false, begin, patience);
  }
  return Answer{true, "yes, three replays"};
}

/// Whether a host that sees a word also sees what the stream wrote before it.
Result<Answer> order_of_words(Gpu& g, int device, milliseconds patience) {
  constexpr std::uint32_t kTimes = 1000;
  OURO_ASSIGN(void* const memory, g.alloc_pinned(2 * 4096));
  auto* const data = static_cast<std::uint32_t*>(memory);
  std::uint32_t* const word = data + 1024;
  *data = *word = 0;
  OURO_ASSIGN(void* const source, g.alloc(device, sizeof(std::uint32_t)));
  OURO_ASSIGN(const Stream s, g.create_stream(device, 0));
  for (std::uint32_t i = 1; i <= kTimes; ++i) {
    const MemOp ops[] = {{MemOp::Kind::write, i, source}, {MemOp::Kind::write, i, word}};
    OURO_TRY(g.enqueue({ops, 1}, s));
    OURO_TRY(g.copy(data, source, sizeof i, s));
    OURO_TRY(g.enqueue({ops + 1, 1}, s));
    for (const auto end = Clock::now() + patience;
         std::atomic_ref(*word).load(std::memory_order_acquire) != i;)
      if (Clock::now() > end) return Answer{false, "no: a word did not come"};
    if (const std::uint32_t seen = std::atomic_ref(*data).load(std::memory_order_relaxed); seen != i)
      return Answer{false, fmt::format("no: with word {} the data of {} was there", i, seen)};
  }
  return Answer{true, fmt::format("yes, {} times", kTimes)};
}

/// Whether words in device memory that other processes can map order what streams do, and a stream of high
/// priority can end a wait for one.
Result<Answer> device_words(Gpu& g, int device, milliseconds patience) {
  constexpr std::uint32_t kTimes = 1000;
  OURO_ASSIGN(const Properties p, g.properties(device));
  if (!p.device_words) return Answer{false, "no: the library takes words in pinned memory here"};
  OURO_ASSIGN(const Region region, g.alloc_shareable(device, 3 * 4096));
  auto* const words = static_cast<std::byte*>(region.data);
  OURO_ASSIGN(const Stream writer, g.create_stream(device, 0));
  OURO_ASSIGN(const Stream reader, g.create_stream(device, p.high_priority));
  OURO_TRY(g.set(words, 0, 3 * 4096, writer));
  OURO_TRY(g.synchronize(writer));
  OURO_ASSIGN(void* const pinned, g.alloc_pinned(kTimes * sizeof(std::uint32_t)));
  auto* const seen = static_cast<std::uint32_t*>(pinned);
  void *const data = words, *const there = words + 4096, *const back = words + 8192;
  const auto begin = Clock::now();
  for (std::uint32_t i = 1; i <= kTimes; ++i) {
    const MemOp out[] = {{MemOp::Kind::wait_at_least, i - 1, back},
                         {MemOp::Kind::write, i, data},
                         {MemOp::Kind::write, i, there}};
    OURO_TRY(g.enqueue(out, writer));
    const MemOp in = {MemOp::Kind::wait_at_least, i, there}, done = {MemOp::Kind::write, i, back};
    OURO_TRY(g.enqueue({&in, 1}, reader));
    OURO_TRY(g.copy(&seen[i - 1], data, sizeof i, reader));
    OURO_TRY(g.enqueue({&done, 1}, reader));
    if (i % 50 != 0) continue;  // a stream holds a limited number of operations
    OURO_ASSIGN(const bool passed, ends(g, reader, patience));
    if (!passed) return within(false, begin, patience);
  }
  for (std::uint32_t i = 1; i <= kTimes; ++i)
    if (seen[i - 1] != i) return Answer{false, fmt::format("no: word {} came before its data", i)};
  const MemOp waits = {MemOp::Kind::wait_equal, 1, back}, ends_it = {MemOp::Kind::write, 1, back};
  OURO_TRY(g.enqueue({&waits, 1}, writer));
  OURO_TRY(g.enqueue({&ends_it, 1}, reader));
  OURO_ASSIGN(const bool ended, ends(g, writer, patience));
  if (!ended) return Answer{false, "no: a stream of high priority did not end the wait of another"};
  return Answer{true, fmt::format("yes, {} times, and a stream of high priority ends a wait", kTimes)};
}

constexpr Question kQuestions[] = {
    {"order-of-words", "a processor that sees a word sees what came before it", &order_of_words},
    {"device-words", "words in device memory order streams, which set them for each other", &device_words},
    {"loaded-launch", "a loaded kernel runs beside a stream that waits", &loaded_launch},
    {"first-launch", "a kernel that was not loaded does, too", &first_launch},
    {"waiting-streams", "streams that can wait before another is held up", &waiting_streams},
    {"waiting-staged-copies", "streams that can wait before a copy to the host is held up",
     &waiting_staged_copies},
    {"waiting-device-copies", "streams that can wait before a copy on the device is held up",
     &waiting_device_copies},
    {"pageable-copies-beside-copies", "pageable memory is copied beside streams that wait before copies",
     &waiting_pageable_copies},
    {"queues-of-priorities", "streams of high priority have queues of their own", &queues_of_priorities},
    {"queues-of-new-streams", "a new stream takes a free queue", &queues_of_new_streams},
    {"queues-after-many-streams", "it does after many streams existed at a time", &queues_after_many_streams},
    {"spinning-kernels", "kernels of two ranks run at the same time", &spinning_kernels},
    {"allocation-beside-a-kernel", "memory is allocated beside a kernel that waits",
     &allocation_beside_a_kernel},
    {"pinning-beside-a-kernel", "memory of the host is pinned beside a kernel that waits",
     &pinning_beside_a_kernel},
    {"small-pageable-copies", "copies of 1 KB of pageable memory end beside a kernel that waits",
     &small_pageable_copies},
    {"large-pageable-copies", "copies of 160 KB of pageable memory do, too", &large_pageable_copies},
    {"captured-words", "words serve each replay of a graph", &captured_words},
    {"allocation", "memory is allocated beside a stream that waits", &allocation},
    {"release", "memory is freed beside a stream that waits", &release},
    {"pinning", "memory of the host is pinned beside a stream that waits", &pinning},
    {"unpinning", "memory of the host is unpinned beside a stream that waits", &unpinning},
};

}  // namespace

std::vector<Question> questions() {
  std::vector<Question> all(std::begin(kQuestions), std::end(kQuestions));
  const auto of_threads = thread_questions();
  all.insert(all.end(), of_threads.begin(), of_threads.end());
  return all;
}

}  // namespace ouro::gpu

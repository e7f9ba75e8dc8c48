// The best times of one GPU in this run: copies, launches, graphs, hand-offs between streams. Other figures
// are divided by these. A part of bench_gpu_floor.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "bench/gpu_floor/session.h"
#include "kernels/gpu/collect.h"

namespace ouro::bench {
namespace {

using gpu::Event;
using gpu::Gpu;
using gpu::MemOp;
using measure::median;

constexpr int kHops = 100;               // in one measurement of something short
constexpr std::size_t kWordBytes = 384;  // two words and a gate, a line each

class Floor {
 public:
  explicit Floor(Session& s) : session_(s), g_(s.gpu), device_(s.device), rounds_(s.rounds()) {}

  Status run() {
    const gpu::Properties* const p = &session_.properties;
    multiprocessors_ = p->multiprocessors;
    // Far beyond the L2 cache, and not more than an eighth of the memory.
    large_ = session_.quick ? std::size_t{8} << 20
                            : std::min<std::size_t>(std::size_t{2} << 30, p->memory_bytes / 8);
    for (std::byte** buffer : {&a_, &b_}) {
      Result<void*> made = g_.alloc(device_, large_);
      OURO_TRY(made.status());
      *buffer = static_cast<std::byte*>(*made);
    }
    for (gpu::Stream* s : {&s_, &other_}) {
      Result<gpu::Stream> made = g_.create_stream(device_, p->low_priority);
      OURO_TRY(made.status());
      *s = *made;
    }
    for (Event* e : {&from_, &to_, &there_, &back_}) {
      Result<Event> made = g_.create_event(device_, /*timing=*/true);
      OURO_TRY(made.status());
      *e = *made;
    }
    OURO_TRY(g_.set(a_, 1, large_, s_));
    OURO_TRY(g_.set(b_, 2, large_, s_));
    OURO_TRY(finish());

    const std::size_t cached = std::min(p->l2_bytes / 3, large_);  // both buffers stay in the cache
    OURO_TRY(bandwidth("copy_engine", large_, [&] { return g_.copy(b_, a_, large_, s_); }));
    OURO_TRY(bandwidth("copy_kernel", large_, [&] { return copy_by_kernel(large_, s_); }));
    if (cached > 0) OURO_TRY(bandwidth("copy_kernel_l2", cached, [&] { return copy_by_kernel(cached, s_); }));
    OURO_TRY(launches());
    OURO_TRY(graphs());
    OURO_TRY(event_hand_off("event_hand_off", false));
    OURO_TRY(event_hand_off("event_hand_off_with_launch", true));
    if (p->stream_values) {
      Result<void*> words = g_.alloc_pinned(kWordBytes);
      OURO_TRY(words.status());
      words_ = static_cast<std::byte*>(*words);
      std::memset(words_, 0, kWordBytes);
      if (p->device_words) OURO_TRY(value_hand_off("value_hand_off_device", a_));
      OURO_TRY(value_hand_off("value_hand_off_host", words_));
    }
    return release();
  }

 private:
  Status finish() {
    OURO_TRY(session_.finish(s_));
    return session_.finish(other_);
  }

  /// A broadcast from one buffer to the other, in place at the root: reads `bytes` and writes as many.
  Status copy_by_kernel(std::size_t bytes, gpu::Stream s) {
    gpu::FusedArgs args;
    args.collective = Collective::broadcast;
    args.dtype = DType::u8;
    args.ranks = 2;
    args.count = bytes;
    args.in[0] = a_;
    args.out[0] = a_;
    args.out[1] = b_;
    const gpu::Launch launch = gpu::fused(args, multiprocessors_);
    return g_.launch(*launch.kernel, launch.shape, &args, s);
  }
  Status smallest(gpu::Stream s) { return copy_by_kernel(16, s); }

  /// Microseconds, as measured by the device, of what `work` enqueues on the first stream. Gated: it begins
  /// when all of it is enqueued.
  Result<double> device_us(const std::function<Status()>& work, bool gated = false) {
    std::vector<double> us;
    for (int i = 0; i <= rounds_; ++i) {  // the first warms up
      void* const gate = gated ? words_ + 256 : nullptr;
      const MemOp closed{MemOp::Kind::wait_at_least, gated ? ++gates_ : 0, gate};
      if (gated) OURO_TRY(g_.enqueue({&closed, 1}, s_));
      OURO_TRY(g_.record(from_, s_));
      const Status enqueued = work();
      if (enqueued.ok()) OURO_TRY(g_.record(to_, s_));
      if (gated) std::atomic_ref(*static_cast<std::uint32_t*>(gate)).store(gates_, std::memory_order_release);
      OURO_TRY(enqueued);
      OURO_TRY(finish());
      Result<float> ms = g_.elapsed_ms(from_, to_);
      OURO_TRY(ms.status());
      if (i > 0) us.push_back(1e3 * static_cast<double>(*ms));
    }
    return median(std::move(us));
  }
  /// The same, as measured by the host, until everything has ended.
  Result<double> host_us(const std::function<Status()>& work) {
    std::vector<double> us;
    for (int i = 0; i <= rounds_; ++i) {
      const Clock::time_point begin = Clock::now();
      OURO_TRY(work());
      OURO_TRY(finish());
      if (i > 0) us.push_back(us_since(begin));
    }
    return median(std::move(us));
  }
  static Status line(const char* name, const Result<double>& us, double hops = 1) {
    OURO_TRY(us.status());
    Session::line(name, *us / hops, "us");
    return {};
  }

  /// Counts bytes read and written. Small copies run back to back, so that marks cost nearly nothing.
  Status bandwidth(const char* name, std::size_t bytes, const std::function<Status()>& copy) {
    const int times = static_cast<int>(std::clamp<std::size_t>((std::size_t{256} << 20) / bytes, 1, 50));
    const Result<double> us = device_us([&]() -> Status {
      for (int i = 0; i < times; ++i) OURO_TRY(copy());
      return {};
    });
    OURO_TRY(us.status());
    Session::line(name, 2e-3 * static_cast<double>(bytes) * times / *us, "GB/s");
    return {};
  }

  Status launches() {
    OURO_TRY(line("launch_and_wait", host_us([&] { return smallest(s_); })));
    return line("launch_in_a_row", device_us([&] { return many(); }), kHops);
  }
  Status many() {
    for (int i = 0; i < kHops; ++i) OURO_TRY(smallest(s_));
    return {};
  }

  Status graphs() {
    OURO_TRY(g_.begin_capture(s_));
    const Status recorded = many();
    Result<gpu::Graph> graph = g_.end_capture(s_);
    OURO_TRY(recorded);
    OURO_TRY(graph.status());
    OURO_TRY(line("launch_in_a_graph", device_us([&] { return g_.launch(*graph, s_); }), kHops));
    return g_.destroy_graph(*graph);
  }

  /// Round trip between two streams by events, by which streams of one process join on the leader's path;
  /// with launches each hop is a minimal kernel, too.
  Status event_hand_off(const char* name, bool with_launch) {
    return line(name, device_us([&]() -> Status {
                  for (int i = 0; i < kHops / 2; ++i) {
                    if (with_launch) OURO_TRY(smallest(s_));
                    OURO_TRY(g_.record(there_, s_));
                    OURO_TRY(g_.wait(other_, there_));
                    if (with_launch) OURO_TRY(smallest(other_));
                    OURO_TRY(g_.record(back_, other_));
                    OURO_TRY(g_.wait(s_, back_));
                  }
                  return {};
                }),
                kHops);
  }

  /// The same by words, without kernels: in device memory, where the leader's path has its words, and in host
  /// memory, where it has them if a device refuses. All is enqueued behind a wait that the host ends at the
  /// very end; otherwise the host's calls would be measured.
  Status value_hand_off(const char* name, std::byte* words) {
    OURO_TRY(g_.set(a_, 0, kWordBytes, s_));
    OURO_TRY(finish());
    std::uint32_t turn = 0;
    void *const ping = words, *const pong = words + 128;
    const auto work = [&]() -> Status {
      for (int i = 0; i < kHops / 2; ++i) {
        ++turn;
        const MemOp mine[] = {{MemOp::Kind::write, turn, ping}, {MemOp::Kind::wait_at_least, turn, pong}};
        const MemOp theirs[] = {{MemOp::Kind::wait_at_least, turn, ping}, {MemOp::Kind::write, turn, pong}};
        OURO_TRY(g_.enqueue(theirs, other_));
        OURO_TRY(g_.enqueue(mine, s_));
      }
      return {};
    };
    return line(name, device_us(work, /*gated=*/true), kHops);
  }

  Status release() {
    for (const Event e : {from_, to_, there_, back_}) OURO_TRY(g_.destroy_event(e));
    for (const gpu::Stream s : {s_, other_}) OURO_TRY(g_.destroy_stream(s));
    for (std::byte* p : {a_, b_}) OURO_TRY(g_.free(p));
    if (words_) OURO_TRY(g_.free_pinned(words_));
    return {};
  }

  Session& session_;
  Gpu& g_;
  const int device_, rounds_;
  int multiprocessors_ = 1;
  std::size_t large_ = 0;
  std::byte *a_ = nullptr, *b_ = nullptr, *words_ = nullptr;  // of the device; pinned
  std::uint32_t gates_ = 0;                                   // that have been opened
  gpu::Stream s_, other_;
  Event from_, to_, there_, back_;
};

}  // namespace

Status device_rows(Session& s) { return Floor(s).run(); }

}  // namespace ouro::bench

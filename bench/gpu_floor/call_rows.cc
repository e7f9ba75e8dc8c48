// Prices of calls, from 1, 2, 4 and 8 threads at once, each with a stream of its own: the time on the host of
// one call, and whether calls of several threads take turns. A part of bench_gpu_floor.
#include <array>
#include <barrier>
#include <functional>
#include <optional>
#include <vector>

#include "bench/gpu_floor/kernels.h"
#include "bench/gpu_floor/session.h"

namespace ouro::bench {
namespace {

using gpu::Event;
using gpu::MemOp;

constexpr int kThreads[] = {1, 2, 4, 8};
constexpr int kMostThreads = 8;
constexpr int kCalls = 64;                // in a row: fewer than a stream takes before its calls wait
constexpr std::size_t kBytes = 64 << 10;  // of each thread, for words and copies

/// What one thread works with.
struct Seat {
  gpu::Stream stream;
  Event event;
  std::byte* memory = nullptr;  ///< of the device
  std::byte* words = nullptr;   ///< where streams write words: of the device, or pinned
};

struct Kind {
  const char* name;
  std::function<Status(Seat&)> call;
  bool waits_for_gate = false;  ///< the calls refer to an event that has not passed
};

class Prices {
 public:
  explicit Prices(Session& s) : session_(s), g_(s.gpu) {}

  Status run() {
    OURO_TRY(prepare());
    OURO_TRY(all());  // after a failure nothing is released: a driver might wait for work that does not end
    return release();
  }

 private:
  Status prepare() {
    OURO_ASSIGN(pinned_, g_.alloc_pinned(kMostThreads * kBytes));
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      Seat& s = seats_[i];
      OURO_ASSIGN(s.stream, g_.create_stream(session_.device, session_.properties.low_priority));
      OURO_ASSIGN(s.event, g_.create_event(session_.device, false));
      OURO_ASSIGN(void* const memory, g_.alloc(session_.device, kBytes));
      s.memory = static_cast<std::byte*>(memory);
      s.words = session_.properties.device_words ? s.memory : static_cast<std::byte*>(pinned_) + i * kBytes;
    }
    OURO_ASSIGN(blocked_, g_.create_stream(session_.device, session_.properties.low_priority));
    OURO_ASSIGN(pending_, g_.create_event(session_.device, false));
    if (session_.properties.stream_values) {
      OURO_ASSIGN(gate_, Gate::make(session_));
    }
    return {};
  }

  Status batch(Seat& s, std::size_t words) {
    std::array<MemOp, 8> ops;
    for (std::size_t i = 0; i < words; ++i) ops[i] = {MemOp::Kind::write, 1, s.words + 4 * i};
    return g_.enqueue({ops.data(), words}, s.stream);
  }
  template <std::size_t kArgs>
  Status launch(Seat& s, FloorKernel k) {
    const Unused<kArgs> args{};
    return g_.launch(floor_kernel(k), {1, 32}, &args, s.stream);
  }

  std::vector<Kind> kinds() {
    std::vector<Kind> all = {
        {"record", [this](Seat& s) { return g_.record(s.event, s.stream); }},
        {"wait_passed_event", [this](Seat& s) { return g_.wait(s.stream, s.event); }},
        {"launch_16B", [this](Seat& s) { return launch<kSmallArgs>(s, FloorKernel::empty_small); }},
        {"launch_2500B", [this](Seat& s) { return launch<kFusedArgs>(s, FloorKernel::empty_fused); }},
        {"launch_3600B", [this](Seat& s) { return launch<kResidentArgs>(s, FloorKernel::empty_resident); }},
        {"copy_16B", [this](Seat& s) { return g_.copy(s.memory + 4096, s.memory + 8192, 16, s.stream); }},
        {"set_16B", [this](Seat& s) { return g_.set(s.memory + 4096, 0, 16, s.stream); }},
        {"host_function",
         [this](Seat& s) {
           return g_.call_host(
               s.stream, [](void*) {}, nullptr);
         }},
        {"query_event", [this](Seat& s) { return g_.query(s.event).status(); }},
        {"query_stream", [this](Seat& s) { return g_.query(s.stream).status(); }},
        {"capturing", [this](Seat& s) { return g_.capturing(s.stream).status(); }},
        {"pointer", [this](Seat& s) { return g_.pointer(s.memory).status(); }},
        {"current_device", [this](Seat&) { return g_.current_device().status(); }}};
    if (!session_.properties.stream_values) return all;
    all.push_back({"wait_pending_event", [this](Seat& s) { return g_.wait(s.stream, pending_); }, true});
    all.push_back({"batch_of_1", [this](Seat& s) { return batch(s, 1); }});
    all.push_back({"batch_of_8", [this](Seat& s) { return batch(s, 8); }});
    return all;
  }

  Status all() {
    for (const Kind& kind : kinds())
      for (const int threads : kThreads) {
        const std::string name = fmt::format("{}_x{}", kind.name, threads);
        if (!session_.begins(name)) continue;
        OURO_ASSIGN(const double us, price(kind, threads));
        Session::line(name, us, "us");
      }
    return {};
  }

  /// The median over rounds and threads of the mean of kCalls calls.
  Result<double> price(const Kind& kind, int threads) {
    std::vector<double> us;
    for (int round = 0; round <= session_.rounds(); ++round) {  // the first warms up
      if (kind.waits_for_gate) {
        OURO_TRY(gate_->close(blocked_));
        OURO_TRY(g_.record(pending_, blocked_));
      }
      OURO_ASSIGN(const std::vector<double> means, together(kind, threads));
      if (kind.waits_for_gate) gate_->open();
      for (int t = 0; t < threads; ++t) OURO_TRY(session_.finish(seats_[static_cast<std::size_t>(t)].stream));
      OURO_TRY(session_.finish(blocked_));
      if (round > 0) us.insert(us.end(), means.begin(), means.end());
    }
    return measure::median(std::move(us));
  }

  Result<std::vector<double>> together(const Kind& kind, int threads) {
    std::vector<double> us(static_cast<std::size_t>(threads));
    std::vector<Status> failures(us.size());
    {
      std::barrier start(threads);
      std::vector<std::jthread> all;
      for (std::size_t t = 0; t < us.size(); ++t)
        all.emplace_back([&, t] {
          Status& failure = failures[t];
          failure = kind.call(seats_[t]);  // whatever a thread does once
          start.arrive_and_wait();
          const Clock::time_point begin = Clock::now();
          for (int i = 0; i < kCalls && failure.ok(); ++i) failure = kind.call(seats_[t]);
          us[t] = us_since(begin) / kCalls;
        });
    }
    for (const Status& failure : failures) OURO_TRY(failure);
    return us;
  }

  Status release() {
    for (const Seat& s : seats_) {
      if (s.stream.handle) OURO_TRY(g_.destroy_stream(s.stream));
      if (s.event.handle) OURO_TRY(g_.destroy_event(s.event));
      if (s.memory) OURO_TRY(g_.free(s.memory));
    }
    if (blocked_.handle) OURO_TRY(g_.destroy_stream(blocked_));
    if (pending_.handle) OURO_TRY(g_.destroy_event(pending_));
    return pinned_ ? g_.free_pinned(pinned_) : Status();
  }

  Session& session_;
  gpu::Gpu& g_;
  std::array<Seat, kMostThreads> seats_;
  void* pinned_ = nullptr;
  gpu::Stream blocked_;  ///< held up by a gate
  Event pending_;        ///< behind that gate
  std::optional<Gate> gate_;
};

}  // namespace

Status call_rows(Session& s) { return Prices(s).run(); }

}  // namespace ouro::bench

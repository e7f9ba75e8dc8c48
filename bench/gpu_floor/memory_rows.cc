// Words that the host sees, fills, and kernels that read and write different numbers of arrays: the mixes of
// a broadcast to eight ranks and of a reduction of eight. A part of bench_gpu_floor.
#include <atomic>
#include <functional>
#include <vector>

#include "bench/gpu_floor/kernels.h"
#include "bench/gpu_floor/session.h"

namespace ouro::bench {
namespace {

constexpr int kWords = 50;                        // in one round
constexpr int kMixThreads = 512, kMixBlocks = 4;  // of a multiprocessor

class Memory {
 public:
  explicit Memory(Session& s) : session_(s), g_(s.gpu) {}

  Status run() {
    OURO_ASSIGN(stream_, g_.create_stream(session_.device, session_.properties.low_priority));
    OURO_ASSIGN(from_, g_.create_event(session_.device, true));
    OURO_ASSIGN(to_, g_.create_event(session_.device, true));
    OURO_TRY(words());
    OURO_TRY(bandwidths());
    OURO_TRY(g_.destroy_event(from_));
    OURO_TRY(g_.destroy_event(to_));
    for (void* p : memory_) OURO_TRY(g_.free(p));
    OURO_TRY(g_.destroy_stream(stream_));
    return {};
  }

 private:
  /// From the call of the host until the host sees the word in pinned memory. `launch_until_query` is the
  /// same with a query of the stream in place of the word.
  Status words() {
    OURO_ASSIGN(void* const made, g_.alloc_pinned(sizeof(std::uint32_t)));
    auto* const word = static_cast<std::uint32_t*>(made);
    *word = 0;
    const auto by_kernel = [&](std::uint32_t value) {
      const WordArgs args{word, value};
      return g_.launch(floor_kernel(FloorKernel::store_word), {1, 1}, &args, stream_);
    };
    const auto by_stream = [&](std::uint32_t value) {
      const gpu::MemOp write{gpu::MemOp::Kind::write, value, word};
      return g_.enqueue({&write, 1}, stream_);
    };
    const auto seen = [&](std::uint32_t value) {
      // Pairs with the store of the kernel or of the stream.
      return Session::await(
          [&]() -> Result<bool> { return std::atomic_ref(*word).load(std::memory_order_acquire) == value; });
    };
    const auto queried = [&](std::uint32_t) { return Session::await([&] { return g_.query(stream_); }); };
    Status s = round_trips("word_of_kernel_until_seen", by_kernel, seen);
    if (s.ok() && session_.properties.stream_values)
      s = round_trips("word_of_stream_until_seen", by_stream, seen);
    if (s.ok()) s = round_trips("launch_until_query", by_kernel, queried);
    const Status ended = session_.finish(stream_);
    OURO_TRY(s);
    OURO_TRY(ended);
    return g_.free_pinned(word);
  }
  using Step = std::function<Status(std::uint32_t)>;
  Status round_trips(const char* name, const Step& begin, const Step& end) {
    if (!session_.begins(name)) return {};
    std::vector<double> us;
    for (int i = 0; i <= kWords * session_.rounds() / 3; ++i) {  // the first loads the kernel
      const std::uint32_t value = ++turn_;
      const Clock::time_point start = Clock::now();
      OURO_TRY(begin(value));
      OURO_TRY(end(value));
      if (i > 0) us.push_back(us_since(start));
      OURO_TRY(session_.finish(stream_));
    }
    Session::line(name, measure::median(std::move(us)), "us");
    return {};
  }

  Status bandwidths() {
    // Nine arrays; far beyond the L2 cache, and not more than an eighth of the memory.
    const std::size_t most = session_.properties.memory_bytes / 8 / (kMixArrays + 1);
    const std::size_t bytes =
        std::min(session_.quick ? std::size_t{256} << 10 : std::size_t{256} << 20, most) / 4096 * 4096;
    for (int i = 0; i <= kMixArrays; ++i) {
      OURO_ASSIGN(void* const array, g_.alloc(session_.device, bytes));
      memory_.push_back(array);
      OURO_TRY(g_.set(array, 1, bytes, stream_));
    }
    OURO_TRY(session_.finish(stream_));
    MixArgs spread{}, gather{};
    spread.units = gather.units = bytes / 16;
    spread.in[0] = static_cast<std::byte*>(memory_[kMixArrays]);
    gather.out[0] = static_cast<std::byte*>(memory_[kMixArrays]);
    for (std::size_t i = 0; i < kMixArrays; ++i)
      spread.out[i] = static_cast<std::byte*>(memory_[i]), gather.in[i] = spread.out[i];
    const auto mix = [&](FloorKernel k, const MixArgs& args) {
      return g_.launch(floor_kernel(k), {session_.properties.multiprocessors * kMixBlocks, kMixThreads},
                       &args, stream_);
    };
    const std::size_t all = (kMixArrays + 1) * bytes;
    OURO_TRY(bandwidth("set", bytes, [&] { return g_.set(memory_[0], 0, bytes, stream_); }));
    OURO_TRY(bandwidth("kernel_reads_1_writes_8", all, [&] { return mix(FloorKernel::mix_1_8, spread); }));
    return bandwidth("kernel_reads_8_writes_1", all, [&] { return mix(FloorKernel::mix_8_1, gather); });
  }
  /// `bytes` that one call reads and writes.
  Status bandwidth(const char* name, std::size_t bytes, const std::function<Status()>& call) {
    constexpr int kTimes = 4;
    if (!session_.begins(name)) return {};
    std::vector<double> us;
    for (int i = 0; i <= session_.rounds(); ++i) {
      OURO_TRY(g_.record(from_, stream_));
      for (int k = 0; k < kTimes; ++k) OURO_TRY(call());
      OURO_TRY(g_.record(to_, stream_));
      OURO_TRY(session_.finish(stream_));
      OURO_ASSIGN(const float ms, g_.elapsed_ms(from_, to_));
      if (i > 0) us.push_back(1e3 * static_cast<double>(ms) / kTimes);
    }
    Session::line(name, 1e-3 * static_cast<double>(bytes) / measure::median(std::move(us)), "GB/s");
    return {};
  }

  Session& session_;
  gpu::Gpu& g_;
  gpu::Stream stream_;
  gpu::Event from_, to_;
  std::vector<void*> memory_;
  std::uint32_t turn_ = 0;
};

}  // namespace

Status memory_rows(Session& s) { return Memory(s).run(); }

}  // namespace ouro::bench

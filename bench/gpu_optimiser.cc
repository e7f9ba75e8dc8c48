// Parameters a second of the optimiser kernels, compared with a copy kernel of the same run. Run by hand or
// by gpu-check: bin/bench_gpu_optimiser [--quick] [DEVICE]. On the emulated device it shows only that the
// program works.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "kernels/device/gpu.h"
#include "kernels/gpu/optim.h"
#include "tools/measure/figures.h"

namespace ouro::bench {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Gpu;
using gpu::Tensor;
using measure::median;

constexpr std::chrono::seconds kDeadline{30};

/// A row of the table. `steps` launches are one measurement: a window of an accumulating form.
struct Case {
  std::string name;
  double bytes;  // a parameter and step, read and written
  std::uint64_t parameters;
  int steps;
  gpu::Launch launch;
  std::function<const void*()> args;
};

class Optimisers {
 public:
  Optimisers(Gpu& g, int device, bool quick)
      : g_(g), device_(device), rounds_(quick ? 3 : 15), quick_(quick) {}

  Status run() {
    const Status status = measured();
    for (void* p : owned_)
      if (const Status freed = g_.free(p); status.ok()) OURO_TRY(freed);
    for (const gpu::Event e : {from_, to_})
      if (e.handle != nullptr) OURO_TRY(g_.destroy_event(e));
    if (stream_.device >= 0) OURO_TRY(g_.destroy_stream(stream_));
    return status;
  }

 private:
  Status measured() {
    Result<gpu::Properties> p = g_.properties(device_);
    OURO_TRY(p.status());
    multiprocessors_ = p->multiprocessors;
    // 512 Mi elements: an array is 2 GiB of fp32. Six arrays, or as many elements as fit into the memory.
    count_ = quick_ ? std::uint64_t{1} << 20
                    : std::min<std::uint64_t>(std::uint64_t{512} << 20, p->memory_bytes / 40);
    count_ -= count_ % (8 * kTensors);
    fmt::print("# {}: {}, {} multiprocessors, by {} ({}); {:.1f} M parameters, medians of {} rounds\n",
               device_, p->name, p->multiprocessors, g_.name(), g_.version(),
               static_cast<double>(count_) / 1e6, rounds_);
    if (std::string_view(g_.name()) == "fake")
      fmt::print("# a fake: these figures are of one host thread and say nothing about any GPU\n");
    const Result<gpu::Stream> stream = g_.create_stream(device_, p->low_priority);
    OURO_TRY(stream.status());
    stream_ = *stream;
    for (gpu::Event* e : {&from_, &to_}) {
      const Result<gpu::Event> made = g_.create_event(device_, /*timing=*/true);
      OURO_TRY(made.status());
      *e = *made;
    }
    for (float*& array : array_) OURO_TRY(filled(array));
    OURO_TRY(made(control_, sizeof(gpu::Control)));
    OURO_TRY(made(survey_state_, sizeof(gpu::SurveyState)));
    const gpu::SurveyState clean;
    OURO_TRY(g_.copy(survey_state_, &clean, sizeof clean, stream_));
    OURO_TRY(finish());
    OURO_TRY(prepare());
    return table();
  }

  Status made(void*& at, std::size_t bytes) {
    const Result<void*> memory = g_.alloc(device_, bytes);
    OURO_TRY(memory.status());
    owned_.push_back(at = *memory);
    return {};
  }
  template <class T>
  Status made(T*& at, std::size_t bytes) {
    void* memory = nullptr;
    OURO_TRY(made(memory, bytes));
    at = static_cast<T*>(memory);
    return {};
  }
  /// 0.25 .. 0.5, read as fp32 or as pairs of bf16: squares and moments stay far from subnormals.
  Status filled(float*& array) {
    OURO_TRY(made(array, count_ * 4));
    std::vector<float> part(std::min<std::uint64_t>(count_, 1 << 20));
    std::uint32_t random = 12345;
    for (float& x : part) {
      random = random * 1664525 + 1013904223;
      x = std::bit_cast<float>(0x3e803e80u | (random >> 8 & 0x7f007fu));
    }
    for (std::uint64_t at = 0; at < count_; at += part.size()) {
      const std::uint64_t n = std::min<std::uint64_t>(part.size(), count_ - at);
      OURO_TRY(g_.copy(array + at, part.data(), n * 4, stream_));
    }
    return finish();
  }
  Status finish() {
    const Clock::time_point end = Clock::now() + kDeadline;
    for (;;) {
      const Result<bool> done = g_.query(stream_);
      OURO_TRY(done.status());
      if (*done) return {};
      if (Clock::now() > end) return {Reason::deadline, "the device did not finish within 30 s"};
      std::this_thread::yield();
    }
  }

  Tensor tensor(std::uint64_t begin, std::uint64_t count) const {
    const auto at = [&](int k) { return array_[k] + begin; };
    return {.value = at(0),
            .gradient = at(1),
            .state = {at(2), at(3), at(4)},
            .neighbours = at(5),
            .message = at(5),
            .count = count};
  }
  Status add(std::string name, double bytes, const gpu::UpdateArgs& args, int steps = 1, int ranks = 1) {
    const Result<gpu::Launch> launch = gpu::update(args, multiprocessors_);
    OURO_TRY(launch.status());
    const std::uint64_t parameters = args.list.tensors != nullptr ? count_ : args.one[0].count * ranks;
    cases_.push_back({std::move(name), bytes, parameters, steps, *launch, [args] { return &args; }});
    return {};
  }
  Status prepare() {
    const arith::AdamOptions adamw{.weight_decay = 0.01, .decoupled = true};
    gpu::UpdateArgs args{.recipe = {.adam = adamw, .accum_iter = 4}, .control = control_};
    args.one[0] = tensor(0, count_);
    OURO_TRY(add("AdamW fp32, flat", 28, args));

    gpu::UpdateArgs half = args;
    half.dtype = DType::bf16, half.master = true;
    half.one[0].master = array_[4];
    half.one[0].value = array_[5];
    OURO_TRY(add("AdamW bf16 with fp32 master, flat", 28, half));

    gpu::UpdateArgs accum = args;
    accum.family = gpu::Family::accum_adam;
    OURO_TRY(add("AccumAdamW fp32, K = 4, lazy zero", 28, accum, 4));
    accum.lazy_zero = false;
    OURO_TRY(add("AccumAdamW fp32, K = 4, plain zero", 30, accum, 4));

    gpu::UpdateArgs mixed = args;
    mixed.form = gpu::Form::exchange;
    mixed.weights = {.keep = 0.5, .take = 1, .send = 0.5};
    OURO_TRY(add("mix, AdamW fp32, message", 36, mixed));

    for (const int ranks : {2, 4, 8}) {
      gpu::UpdateArgs leader = args;
      leader.form = gpu::Form::leader, leader.ranks = ranks;
      for (int r = 0; r < ranks; ++r) {
        for (int s = 0; s < ranks; ++s) leader.matrix[r][s] = 1.0 / ranks;
        leader.one[r] = tensor(count_ / ranks * r, count_ / ranks);
      }
      OURO_TRY(add(fmt::format("leader of {}: mix, AdamW fp32", ranks), 28, leader, 1, ranks));
    }

    gpu::UpdateArgs sgd = args;
    sgd.family = gpu::Family::sgd, sgd.recipe.sgd = {.momentum = 0.9};
    OURO_TRY(add("SGD with momentum fp32, flat", 20, sgd));

    // Large and small tensors alternate, as in a llama-like model.
    std::vector<Tensor> tensors;
    const std::uint64_t pair = count_ / (kTensors / 2), small = pair / 512 / 8 * 8;
    for (std::uint64_t t = 0; t < kTensors / 2; ++t) {
      tensors.push_back(tensor(t * pair, small));
      tensors.push_back(tensor(t * pair + small, pair - small));
    }
    std::vector<Tensor> staging(gpu::list_bytes(tensors) / sizeof(Tensor) + 1);
    void* home = nullptr;
    OURO_TRY(made(home, staging.size() * sizeof(Tensor)));
    const auto list = gpu::lay_out(args, tensors, reinterpret_cast<std::byte*>(staging.data()), home);
    OURO_TRY(list.status());
    OURO_TRY(g_.copy(home, staging.data(), staging.size() * sizeof(Tensor), stream_));
    OURO_TRY(finish());
    gpu::UpdateArgs many = args;
    many.list = *list;
    OURO_TRY(add(fmt::format("AdamW fp32, {} tensors", tensors.size()), 28, many));

    const gpu::SurveyArgs look{.state = survey_state_, .gradient = array_[1], .count = count_};
    const auto launch = gpu::survey(look);
    OURO_TRY(launch.status());
    cases_.push_back({"survey of fp32 gradients", 4, count_, 1, *launch, [look] { return &look; }});
    return {};
  }

  Result<double> seconds(const std::function<Status()>& work, int steps) {
    OURO_TRY(g_.record(from_, stream_));
    for (int k = 0; k < steps; ++k) OURO_TRY(work());
    OURO_TRY(g_.record(to_, stream_));
    OURO_TRY(finish());
    const Result<float> ms = g_.elapsed_ms(from_, to_);
    OURO_TRY(ms.status());
    return static_cast<double>(*ms) / 1e3 / steps;
  }
  /// A broadcast from one array to another: reads count * 4 bytes and writes as many.
  Status copy() {
    gpu::FusedArgs args;
    args.collective = Collective::broadcast;
    args.dtype = DType::f32;
    args.ranks = 2;
    args.count = count_;
    args.in[0] = reinterpret_cast<const std::byte*>(array_[1]);
    args.out[0] = reinterpret_cast<std::byte*>(array_[1]);
    args.out[1] = reinterpret_cast<std::byte*>(array_[0]);
    const gpu::Launch launch = gpu::fused(args, multiprocessors_);
    return g_.launch(*launch.kernel, launch.shape, &args, stream_);
  }

  /// Times each case directly after a copy; its step is reset, so that all rounds do the same. The first
  /// round warms up.
  Status table() {
    fmt::print("{:<38} {:>9} {:>10} {:>10} {:>8}\n", "# case", "B/step", "Gparam/s", "GB/s", "of copy");
    std::vector<double> copies;
    for (const Case& c : cases_) {
      std::vector<double> rates, shares;
      for (int round = 0; round <= rounds_; ++round) {
        const gpu::Control start{.step = 400, .lr = 1e-4};
        OURO_TRY(g_.copy(control_, &start, sizeof start, stream_));
        const Result<double> copied = seconds([&] { return copy(); }, 1);
        OURO_TRY(copied.status());
        const Result<double> took =
            seconds([&] { return g_.launch(*c.launch.kernel, c.launch.shape, c.args(), stream_); }, c.steps);
        OURO_TRY(took.status());
        if (round == 0) continue;
        const double n = static_cast<double>(c.parameters),
                     copy_rate = 8.0 * static_cast<double>(count_) / *copied;
        copies.push_back(copy_rate);
        rates.push_back(n / *took);
        shares.push_back(c.bytes * n / *took / copy_rate);
      }
      fmt::print("{:<38} {:>9} {:>10.3f} {:>10.1f} {:>7.1f}%\n", c.name, c.bytes, median(rates) / 1e9,
                 c.bytes * median(rates) / 1e9, 100 * median(shares));
    }
    fmt::print("{:<38} {:>9} {:>10} {:>10.1f}\n", "copy kernel", 8, "", median(copies) / 1e9);
    return {};
  }

  static constexpr std::uint64_t kTensors = 512;
  Gpu& g_;
  const int device_, rounds_;
  const bool quick_;
  int multiprocessors_ = 1;
  std::uint64_t count_ = 0;
  std::vector<void*> owned_;
  float* array_[6] = {};  // p, g, m, v, accumulator, message
  gpu::Control* control_ = nullptr;
  gpu::SurveyState* survey_state_ = nullptr;
  gpu::Stream stream_;
  gpu::Event from_, to_;
  std::vector<Case> cases_;
};

int main_of(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const std::optional<int> device = number(argc, argv, quick ? 2 : 1, 0, 0, 1023);
  const bool right = device && argc <= (quick ? 3 : 2);
  if (const auto code = help_or_refuse(argc, argv, right, "bench_gpu_optimiser [--quick] [DEVICE]"))
    return *code;
  Gpu& g = gpu::gpu();
  if (g.devices() == 0) {
    fmt::print("SKIP: no CUDA device: {}\n", g.version());
    return 77;
  }
  const Status status = Optimisers(g, *device, quick).run();
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}

}  // namespace
}  // namespace ouro::bench

int main(int argc, char** argv) { return ouro::bench::main_of(argc, argv); }

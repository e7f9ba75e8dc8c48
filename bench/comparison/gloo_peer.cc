// compare_gloo: Gloo over TCP on the loopback interface, with its own algorithms; ranks find each other
// through files. Started by bench/compare.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <bit>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "bench/comparison/harness.h"

namespace ouro::compare {
namespace {

/// Gloo has no bfloat16; its templates take any type with these operators.
struct Bf16 {
  std::uint16_t bits = 0;
  float value() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
  static Bf16 round(float f) {
    const auto x = std::bit_cast<std::uint32_t>(f);
    return {static_cast<std::uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16)};  // NaN does not occur here
  }
  friend Bf16 operator+(Bf16 a, Bf16 b) { return round(a.value() + b.value()); }
};

template <class T>
void add(void* out, const void* a, const void* b, std::size_t n) {
  auto* o = static_cast<T*>(out);
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b);
  for (std::size_t i = 0; i < n; ++i) o[i] = x[i] + y[i];
}
template <class T>
void add_to(T* a, const T* b, std::size_t n) {
  add<T>(a, a, b, n);
}
template <class T>
const gloo::ReductionFunction<T>* sum() {
  static const gloo::ReductionFunction<T> f(gloo::CUSTOM, &add_to<T>);
  return &f;
}

class GlooPeer : public Peer {
 public:
  std::string library() const override {
    constexpr int v = GLOO_VERSION;
    return "Gloo " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
           std::to_string(v % 100) + " over TCP on lo";
  }
  bool needs_idle_cores() const override { return true; }

  Error start(const Launch& launch) override {
    return guarded([&] {
      gloo::transport::tcp::attr where;
      where.iface = "lo";
      auto device = gloo::transport::tcp::CreateDevice(where);
      gloo::rendezvous::FileStore store(launch.directory);
      auto context = std::make_shared<gloo::rendezvous::Context>(launch.rank, launch.ranks);
      context->connectFullMesh(store, device);
      context_ = std::move(context);
    });
  }

  void* allocate(Buffer kind, std::size_t bytes) override {
    return kind == Buffer::private_memory ? private_memory(bytes) : nullptr;
  }

  Error prepare(const Call& c, bool& supported) override {
    return guarded(
        [&] { supported = c.element == Element::float32 ? prepare_as<float>(c) : prepare_as<Bf16>(c); });
  }

  bool run(const Call& c) override {
    error_ = guarded([&] { c.element == Element::float32 ? run_as<float>(c) : run_as<Bf16>(c); });
    return error_.empty();
  }

  Error error() const override { return error_; }
  void stop() override {
    made_.clear();
    context_.reset();
  }

 private:
  template <class F>
  static Error guarded(F f) {
    try {
      f();
    } catch (const std::exception& e) {
      return e.what();
    }
    return {};
  }

  /// An algorithm of the older kind: an object bound to its buffer, in which it works in place.
  struct Bound {
    std::vector<std::byte> staged;  ///< its buffer, where that is not the caller's output
    std::unique_ptr<gloo::Algorithm> algorithm;
  };

  /// False: there is no such operation. The algorithm object lives as long as the context: a late message of
  /// a peer to a destroyed object would block the connection for ever.
  template <class T>
  bool prepare_as(const Call& c) {
    bound_ = nullptr;
    if (c.in_count > INT_MAX || c.out_count > INT_MAX) return false;
    const bool sums = c.collective == Collective::all_reduce,
               scatters = c.collective == Collective::reduce_scatter;
    if (!sums && !c.algorithm.empty()) return false;
    if (sums && (c.algorithm == "ring" || c.algorithm == "bcube")) return true;
    if (sums && c.algorithm != "ring-chunked" && c.algorithm != "halving-doubling") return false;
    if (!sums && !scatters) return true;
    bound_ = &made_[{c.collective, c.algorithm, c.element, c.in_count}];
    if (bound_->algorithm) return true;  // every call of a launch has the same output buffer
    const int n = static_cast<int>(c.in_count);
    std::vector<T*> buffer{static_cast<T*>(c.out)};
    if (scatters) {
      // Reduces in its input and leaves the result at its front, so the input is a copy, not the caller's.
      bound_->staged.resize(c.in_bytes());
      buffer[0] = reinterpret_cast<T*>(bound_->staged.data());
      const std::vector<int> blocks(static_cast<std::size_t>(context_->size), static_cast<int>(c.block));
      bound_->algorithm =
          std::make_unique<gloo::ReduceScatterHalvingDoubling<T>>(context_, buffer, n, blocks, sum<T>());
    } else if (c.algorithm == "ring-chunked") {
      bound_->algorithm = std::make_unique<gloo::AllreduceRingChunked<T>>(context_, buffer, n, sum<T>());
    } else {
      bound_->algorithm = std::make_unique<gloo::AllreduceHalvingDoubling<T>>(context_, buffer, n, sum<T>());
    }
    return true;
  }

  template <class T>
  void run_as(const Call& c) {
    auto *in = static_cast<T*>(c.in), *out = static_cast<T*>(c.out);
    switch (c.collective) {
      case Collective::all_reduce:
        if (bound_) {
          if (in != out) std::memcpy(out, in, c.in_bytes());
          return bound_->algorithm->run();
        } else {
          gloo::AllreduceOptions o(context_);
          o.setAlgorithm(c.algorithm == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                               : gloo::AllreduceOptions::Algorithm::BCUBE);
          if (in != out) o.setInput(in, c.in_count);
          o.setOutput(out, c.out_count);
          o.setReduceFunction(&add<T>);
          return gloo::allreduce(o);
        }
      case Collective::broadcast: {
        gloo::BroadcastOptions o(context_);
        o.setOutput(out, c.out_count);
        o.setRoot(0);
        return gloo::broadcast(o);
      }
      case Collective::all_gather: {
        gloo::AllgatherOptions o(context_);
        o.setInput(in, c.in_count);
        o.setOutput(out, c.out_count);
        return gloo::allgather(o);
      }
      case Collective::reduce_scatter:
        std::memcpy(bound_->staged.data(), in, c.in_bytes());
        bound_->algorithm->run();
        std::memcpy(out, bound_->staged.data(), c.out_bytes());
        return;
      case Collective::all_to_all: {
        gloo::AlltoallOptions o(context_);
        o.setInput(in, c.in_count);
        o.setOutput(out, c.out_count);
        return gloo::alltoall(o);
      }
    }
  }

  std::shared_ptr<gloo::Context> context_;
  std::map<std::tuple<Collective, std::string, Element, std::size_t>, Bound> made_;
  Bound* bound_ = nullptr;  ///< of the current call, if it needs one
  Error error_;
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  ouro::compare::GlooPeer peer;
  return ouro::compare::run_harness(argc, argv, peer);
}

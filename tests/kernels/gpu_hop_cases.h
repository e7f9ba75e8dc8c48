// Cases for the hop kernel, for any Runner: each source, destination, width and aliasing of a step, against
// the host loops that the host executor uses for the same step.
#pragma once
#include "kernels/arith/cases.h"
#include "tests/kernels/gpu_collect_cases.h"

namespace ouro::gpu {

/// The form of a step, apart from type, reduction and sizes.
struct HopShape {
  enum class Array { none, narrow, wide };
  Array incoming = Array::none, mine = Array::none, send = Array::none;
  bool store = false, keep = false;
  double weight = 1;
  /// Destinations replace sources as in executors: store over mine, keep over mine, send over incoming.
  bool in_place = false;
};

/// Multiplies accumulators by a weight, as `arith` defines.
struct Weigh {
  Bytes& acc;
  std::size_t count;
  double weight;
  template <class R>
  void operator()() const {
    for (std::size_t i = 0; i < count; ++i) {
      typename R::Acc a;
      std::memcpy(&a, &acc[i * sizeof a], sizeof a);
      a = arith::settle(arith::weigh(a, weight));
      std::memcpy(&acc[i * sizeof a], &a, sizeof a);
    }
  }
};

class HopCase {
 public:
  using Array = HopShape::Array;
  HopCase(Runner& runner, DType t, OpKind op, std::size_t count, Layout lay, HopShape shape)
      : image_(runner),
        lay_(lay),
        shape_(shape),
        size_(size_of(t)),
        wide_(kernels::accumulator_bytes(t, op)) {
    args_.dtype = t;
    args_.op = op;
    args_.ranks = 3;
    args_.premul = factors(3)[2];
    args_.weight = shape.weight;
    args_.count = count;
    args_.incoming_wide = shape.incoming == Array::wide;
    args_.mine_wide = shape.mine == Array::wide;
    args_.send_wide = shape.send == Array::wide;
  }
  void run(int multiprocessors) {
    const std::size_t n = args_.count;
    const kernels::Reduction plain = {args_.dtype, args_.op, args_.ranks, {}};
    const kernels::Reduction scaled = {args_.dtype, args_.op, args_.ranks, args_.premul};
    const Bytes incoming = source(shape_.incoming, 1, &args_.incoming),
                mine = source(shape_.mine, 2, &args_.mine);
    const bool both = args_.incoming != nullptr && args_.mine != nullptr;

    // Computes the wide value with the host loops; a narrow incoming value is first widened, without
    // a factor.
    Bytes in_acc(n * wide_), acc(n * wide_), out(n * size_);
    if (shape_.incoming == Array::narrow) kernels::widen(plain, in_acc.data(), incoming.data(), n);
    if (shape_.incoming == Array::wide) in_acc = incoming;
    if (both && args_.mine_wide)
      kernels::reduce_acc(plain, acc.data(), in_acc.data(), mine.data(), args_.weight, n);
    else if (both)
      kernels::reduce_input(scaled, acc.data(), in_acc.data(), mine.data(), args_.weight, n);
    else if (shape_.mine == Array::narrow)
      kernels::widen(scaled, acc.data(), mine.data(), n);
    else if (shape_.mine == Array::wide)
      acc = mine;
    else if (args_.weight == 1)
      acc = in_acc;
    else
      arith::with_reduction(args_.dtype, args_.op, Weigh{acc = in_acc, n, args_.weight});
    kernels::finish(plain, out.data(), acc.data(), n);
    if (both && args_.weight == 1) {  // the loops that store in one pass must agree
      Bytes once(out.size());
      if (args_.mine_wide)
        kernels::reduce_acc_finish(plain, once.data(), in_acc.data(), mine.data(), n);
      else
        kernels::reduce_input_finish(scaled, once.data(), in_acc.data(), mine.data(), n);
      ASSERT_EQ(once, out);
    }
    // A narrow value that stays narrow must be copied unchanged.
    const bool moves = !both && (args_.incoming == nullptr || args_.weight == 1) && !shape_.keep &&
                       !args_.incoming_wide && !args_.mine_wide && shape_.send != Array::wide;
    if (moves) out = args_.incoming != nullptr ? incoming : mine;

    const std::size_t store = shape_.store ? destination(false, 3, args_.mine, args_.mine_wide) : 0;
    const std::size_t keep = shape_.keep ? destination(true, 4, args_.mine, args_.mine_wide) : 0;
    const std::size_t send =
        shape_.send != Array::none ? destination(args_.send_wide, 5, args_.incoming, args_.incoming_wide) : 0;
    Bytes want = image_.bytes();
    const auto write = [&](std::size_t at, const Bytes& data) {
      if (!data.empty()) std::memcpy(&want[at], data.data(), data.size());
    };
    if (shape_.store) write(store, out);
    if (shape_.keep) write(keep, acc);
    if (shape_.send != Array::none) write(send, args_.send_wide ? acc : out);
    if (shape_.store) args_.store = image_.device(store);
    if (shape_.keep) args_.keep = image_.device(keep);
    if (shape_.send != Array::none) args_.send = image_.device(send);
    image_.expect(hop(args_, multiprocessors), &args_, want, text());
  }

 private:
  std::size_t skew(bool wide, int i) const {
    if (lay_.skew != Layout::Skew::together) return lay_.skew_of(i, wide ? wide_ : size_);
    return wide ? 3 * wide_ % 16 : 3 * size_ % 16;  // three elements into a vector, whatever their size
  }
  Bytes source(Array kind, std::uint64_t seed, const std::byte** where) {
    if (kind == Array::none) return {};
    Bytes data = reference::random_elements(args_.dtype, args_.count, seed);
    if (kind == Array::wide) {
      Bytes acc(args_.count * wide_);
      kernels::widen({args_.dtype, args_.op, 3, factors(2)[1]}, acc.data(), data.data(), args_.count);
      data = acc;
    }
    const std::size_t at = image_.room(data.size(), skew(kind == Array::wide, static_cast<int>(seed)));
    image_.put(at, data);
    *where = image_.device(at);
    return data;
  }
  /// A new array, or, in place, that of a source of the same width; each source is used only once.
  std::size_t destination(bool wide, int i, const std::byte* source, bool source_wide) {
    if (shape_.in_place && source != nullptr && wide == source_wide && source != taken_) {
      taken_ = source;
      return image_.offset(source);
    }
    return image_.room(args_.count * (wide ? wide_ : size_), skew(wide, i));
  }
  std::string text() const {
    return std::string("hop ") + name(args_.dtype) + ' ' + name(args_.op) + " count " +
           std::to_string(args_.count) + " incoming " + std::to_string(static_cast<int>(shape_.incoming)) +
           " mine " + std::to_string(static_cast<int>(shape_.mine)) + " store " +
           std::to_string(shape_.store) + " keep " + std::to_string(shape_.keep) + " send " +
           std::to_string(static_cast<int>(shape_.send)) + " weight " + std::to_string(shape_.weight) +
           " in place " + std::to_string(shape_.in_place) + ' ' + lay_.text();
  }

  Image image_;
  Layout lay_;
  HopShape shape_;
  std::size_t size_, wide_;
  HopArgs args_;
  const std::byte* taken_ = nullptr;
};

/// Calls f with every shape of a step that has a source and a destination.
template <class F>
void every_shape(const F& f) {
  using Array = HopShape::Array;
  for (Array incoming : {Array::none, Array::narrow, Array::wide})
    for (Array mine : {Array::none, Array::narrow, Array::wide})
      for (Array send : {Array::none, Array::narrow, Array::wide})
        for (int i = 0; i < 8; ++i) {
          const HopShape shape = {incoming, mine, send, (i & 1) != 0, (i & 2) != 0, 1, (i & 4) != 0};
          if (incoming == Array::none && mine == Array::none) continue;
          if (send == Array::none && !shape.store && !shape.keep) continue;
          f(shape);
        }
}

inline void every_hop(Runner& runner) {
  int turn = 0;
  for (DType t : reference::kAllTypes)
    for (OpKind op : reference::kAllOps) {
      if (!applies(op, t)) continue;
      every_shape([&](HopShape shape) {
        for (int i = 0; i < (hot(t, op) ? 24 : 2); ++i) {
          if (testing::Test::HasFatalFailure()) return;
          Layout lay = layout(turn % 4);
          if (size_of(t) == 1 && lay.skew == Layout::Skew::bytewise) lay.skew = Layout::Skew::apart;
          const std::vector<std::size_t> sizes = runner.sizes();
          HopCase(runner, t, op, sizes[static_cast<std::size_t>(turn / 4) % sizes.size()], lay, shape)
              .run(runner.multiprocessors());
          ++turn;
        }
      });
      ++turn;
    }
}

inline void weighted_hops(Runner& runner) {
  for (DType t : reference::kAllTypes)
    for (OpKind op : {OpKind::sum, OpKind::avg, OpKind::max}) {
      if (!applies(op, t)) continue;
      for (double weight : {0.5, 0.3})
        every_shape([&](HopShape shape) {
          if (testing::Test::HasFatalFailure() || shape.incoming == HopShape::Array::none) return;
          shape.weight = weight;
          HopCase(runner, t, op, 157, layout(0), shape).run(runner.multiprocessors());
        });
    }
}

}  // namespace ouro::gpu

// All-reduce of small regions by packets: every rank stores its input into the memory of all others, eight
// bytes and their flags at a time, and folds what it receives. One hop, no fence, no barrier. Used by
// resident_host.cc and resident.cu. The equivalent flow, which is its proof and test oracle, is
// flow::OneShotAllReduce: post, then reduce_posted in rank order.
#pragma once
#include "kernels/flow/step.h"
#include "kernels/gpu/resident_channel.h"
#include "kernels/gpu/resident_cut.h"
#include "kernels/gpu/resident_loops.h"

namespace ouro::gpu {

/// The flag is the number of the operation, so nothing has to be reset. There are two sets of packets, used
/// alternately: a rank that has received all packets of operation s knows that all ranks have finished s-1,
/// whose packets those of s+1 will overwrite.
template <class Block>
class ResidentPackets : private ResidentChannel<Block> {
  using Channel = ResidentChannel<Block>;

 public:
  OURO_HD ResidentPackets(const ResidentArgs& args, const Block& block, ResidentShared& shared,
                          std::uint64_t element)
      : Channel(args, block, shared) {
    const flow::Extent share = resident_share(args.count, args.channels, block.block(), element);
    in_ = args.in + share.offset * element;
    out_ = args.out + share.offset * element;
    bytes_ = share.count * element;
    packets_ = (bytes_ + 7) / 8;
  }
  using Channel::enter;

  /// Assigns the operation its number.
  OURO_HD void begin() {
    number_ = shared_.state.operations + 1;
    b_.sync();
    if (b_.thread() == 0) shared_.state.operations = number_;
  }
  OURO_HD void leave() { Channel::leave(); }

  /// Sends this rank's input to all others. `factor`: the reduction multiplies by this rank's factor, which
  /// is sent too.
  OURO_HD void give(bool factor) const {
    const std::uint64_t own = place(a_.rank);
    const auto to_all = [&](std::uint64_t j, std::uint64_t data) {
      for (int d = 1; d < n_; ++d) {
        const int p = flow::wrap(a_.rank + d, n_);
        store_packet(reinterpret_cast<Packet*>(this->part(p) + own) + j, data, flag());
      }
    };
    for (std::uint64_t j = first(); j < packets_; j += stride()) to_all(kData + j, mine(j));
    // A flag has 32 bits. All packets are rewritten from time to time, so that none still holds an old flag
    // when the numbers wrap around to it.
    const bool refresh = number_ % kRefresh < 2;
    for (std::uint64_t j = first(); j < (factor || refresh ? kData : kFactor); j += stride())
      to_all(j, j == kTag      ? a_.tag
                : j == kFactor ? __builtin_bit_cast(std::uint64_t, a_.premul.real)
                               : static_cast<std::uint64_t>(a_.premul.integer));
    if (refresh)
      for (std::uint64_t j = packets_ + first(); j < a_.layout.packet_bytes / 8; j += stride())
        to_all(kData + j, 0);
  }

  /// Checks that all ranks are in the same operation, and collects their factors. A packet that does not
  /// arrive fails the wait.
  OURO_HD void check(bool factor) {
    for (int r = b_.thread(); r < n_; r += b_.threads()) {
      if (factor) shared_.factor[r] = a_.premul;
      if (r == a_.rank) continue;
      const std::uint64_t tag = take(r, kTag);
      if (!failed_ && tag != a_.tag) failed_ = this->fail(ResidentFault::mismatch, r);
      if (!factor) continue;
      const std::uint64_t real = take(r, kFactor), integer = take(r, kFactor + 1);
      shared_.factor[r] = {__builtin_bit_cast(double, real), static_cast<std::int64_t>(integer)};
    }
  }

  /// Each thread folds the part that it has sent; in place, no other thread reads that part of the input.
  template <class R>
  OURO_HD void fold() {
    n_ <= 2 ? fold_of<R, 2>() : n_ <= 4 ? fold_of<R, 4>() : fold_of<R, 8>();
  }

  /// Any reduction: packets are unpacked into scratch, and the loops then process n plain arrays.
  OURO_HD void fold(const Cold<ColdTypes::all>& numbers) {
    std::byte* const scratch = this->part(a_.rank) + a_.layout.scratch_at;
    for (int r = 0; r < n_; ++r) {
      std::byte* const array = scratch + static_cast<std::uint64_t>(r) * a_.layout.packet_bytes;
      for (std::uint64_t j = first(); j < packets_ && !failed_; j += stride())
        if (r != a_.rank) store_at(array + 8 * j, take(r, kData + j));
      if (b_.thread() == 0) shared_.source[r] = r == a_.rank ? in_ : array;
    }
    if (b_.any(failed_)) return;
    ResidentJob job;
    job.many = shared_.source;
    job.many_count = n_;
    job.factor = shared_.factor;
    job.ranks = n_;
    job.store = {out_, true};
    job.count = bytes_ / numbers.element();
    numbers.reduce(b_, job);
  }

 private:
  using Channel::a_;
  using Channel::b_;
  using Channel::n_;
  using Channel::shared_;

  static constexpr std::uint64_t kRefresh = 1 << 20;
  /// The layout of packets: the operation's tag, two with this rank's factor, then data.
  static constexpr std::uint64_t kTag = 0, kFactor = 1, kData = 3;

  /// Eight bytes as elements, converted in registers.
  template <class T>
  struct Eight {
    static constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    using Unsigned = std::conditional_t<
        sizeof(T) == 1, std::uint8_t,
        std::conditional_t<sizeof(T) == 2, std::uint16_t,
                           std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
    std::uint64_t bits;
    OURO_HD T at(int i) const {
      return __builtin_bit_cast(T, static_cast<Unsigned>(bits >> (i * kBits % 64)));
    }
    OURO_HD void put(int i, T x) {
      bits |= std::uint64_t{__builtin_bit_cast(Unsigned, x)} << (i * kBits % 64);
    }
  };

  OURO_HD std::uint64_t first() const { return static_cast<std::uint64_t>(b_.thread()); }
  OURO_HD std::uint64_t stride() const { return static_cast<std::uint64_t>(b_.threads()); }
  OURO_HD std::uint32_t flag() const { return static_cast<std::uint32_t>(number_); }
  /// The offset of the packets from `rank`, in a channel's part.
  OURO_HD std::uint64_t place(int rank) const {
    const std::uint64_t set =
        (number_ & 1) * static_cast<std::uint64_t>(n_) + static_cast<std::uint64_t>(rank);
    return a_.layout.packets_at + set * a_.layout.packet_set_bytes();
  }
  OURO_HD std::uint64_t mine(std::uint64_t j) const {
    if (8 * (j + 1) <= bytes_ && aligned_to(in_, 8)) return load_at<std::uint64_t>(in_ + 8 * j);
    std::uint64_t data = 0;
    for (int i = 0; i < 8 && 8 * j + static_cast<std::uint64_t>(i) < bytes_; ++i)
      data |= std::uint64_t{load_at<std::uint8_t>(in_ + 8 * j + i)} << (8 * i);
    return data;
  }
  OURO_HD void leave_result(std::uint64_t j, std::uint64_t data) const {
    if (8 * (j + 1) <= bytes_ && aligned_to(out_, 8)) return store_at(out_ + 8 * j, data);
    for (int i = 0; i < 8 && 8 * j + static_cast<std::uint64_t>(i) < bytes_; ++i)
      store_at(out_ + 8 * j + i, static_cast<std::uint8_t>(data >> (8 * i)));
  }
  /// Packet j from rank r.
  OURO_HD const Packet* packet(int r, std::uint64_t j) const {
    return reinterpret_cast<const Packet*>(this->part(a_.rank) + place(r)) + j;
  }
  /// Whether packets j of kAtOnce ranks have arrived. Nothing separates the loads, so all are in flight at
  /// the same time. `late`: set to a rank whose packet has not arrived.
  template <int kAtOnce>
  OURO_HD bool poll(int base, std::uint64_t j, std::uint64_t* data, int* late) const {
    Packet seen[kAtOnce];
    unrolled<kAtOnce>([&](int u) {
      const int r = base + u < n_ ? base + u : n_ - 1;
      seen[u] = peek_packet(packet(r, kData + j));
    });
    bool all = true;
    unrolled<kAtOnce>([&](int u) {
      const int r = base + u;
      const bool arrived = has_arrived(seen[u], flag(), &data[u]);
      if (arrived || r == a_.rank || r >= n_) return;
      all = false;
      *late = r;
    });
    return all;
  }
  /// Waits for a packet and returns its data.
  OURO_HD std::uint64_t take(int r, std::uint64_t j) {
    const Packet* const from = packet(r, j);
    std::uint64_t data = 0;
    failed_ |= this->spin(r, [&] { return load_packet(from, flag(), &data); });
    return data;
  }

  template <class R, int kAtOnce>
  OURO_HD void fold_of() {
    using T = typename R::Element;
    constexpr int kCount = 8 / static_cast<int>(sizeof(T));
    for (std::uint64_t j = first(); j < packets_; j += stride()) {
      const std::uint64_t own = mine(j);
      typename R::Acc sum[kCount] = {};
      for (int base = 0; base < n_; base += kAtOnce) {
        std::uint64_t data[kAtOnce] = {};
        int late = base;
        failed_ |= this->spin(late, [&] { return poll<kAtOnce>(base, j, data, &late); });
        if (failed_) return;
        unrolled<kAtOnce>([&](int u) {
          const int r = base + u;
          if (r >= n_) return;
          const Eight<T> x{r == a_.rank ? own : data[u]};
          unrolled<kCount>([&](int i) {
            const auto lifted = collect::lift<R>(x.at(i), {});
            sum[i] = r == 0 ? lifted : R::combine(sum[i], lifted);
          });
        });
      }
      Eight<T> result{0};
      unrolled<kCount>([&](int i) { result.put(i, collect::finish<R>(sum[i], n_)); });
      leave_result(j, result.bits);
    }
  }

  const std::byte* in_;
  std::byte* out_;
  std::uint64_t bytes_, packets_;  // size of this channel's share
  std::uint64_t number_ = 0;
  bool failed_ = false;  // state of this thread
};

template <class R, class Block>
OURO_HD void run_packets(const ResidentArgs& args, const Block& block, ResidentShared& shared) {
  ResidentPackets<Block> rank(args, block, shared, sizeof(typename R::Element));
  if (!rank.enter()) return;
  rank.begin();
  rank.give(R::kScaled);
  rank.check(R::kScaled);
  rank.template fold<R>();
  rank.leave();
}
template <class Block>
OURO_HD void run_packets(const ResidentArgs& args, const Block& block, ResidentShared& shared,
                         const Cold<ColdTypes::all>& numbers) {
  ResidentPackets<Block> rank(args, block, shared, numbers.element());
  if (!rank.enter()) return;
  rank.begin();
  const bool factor = args.op == OpKind::premulsum;
  rank.give(factor);
  rank.check(factor);
  rank.fold(numbers);
  rank.leave();
}

}  // namespace ouro::gpu

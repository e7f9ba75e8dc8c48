// compare_bare: the collectives by a program that has shared memory and nothing else. It checks no arguments,
// compares no calls, notices no failures, and serves one group of float32 sums. Its time is what the machine
// allows a library that does all of that. Started by bench/compare.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/comparison/bare_rounds.h"
#include "bench/comparison/harness.h"

namespace ouro::compare {
namespace {

__attribute__((target_clones("avx512f", "avx2", "default"))) void add(float* out, const float* a,
                                                                      const float* b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

class BarePeer : public Peer {
 public:
  std::string library() const override { return "shared memory alone"; }

  Error start(const Launch& launch) override {
    rank_ = launch.rank, n_ = launch.ranks;
    return rounds_.start(launch);
  }

  void* allocate(Buffer kind, std::size_t bytes) override {
    if (kind == Buffer::private_memory) return private_memory(bytes);
    Common made{.bytes = bytes, .of = {}};
    for (int r = 0; r < n_; ++r) {  // all ranks allocate the same, in the same order
      auto* const at = static_cast<std::byte*>(
          rounds_.map("memory-" + std::to_string(commons_.size()) + "-" + std::to_string(r), bytes));
      if (!at) return nullptr;
      made.of.push_back(at);
    }
    commons_.push_back(std::move(made));
    return commons_.back().of[static_cast<std::size_t>(rank_)];
  }

  Error prepare(const Call& c, bool& supported) override {
    const std::string copy = c.algorithm.substr(0, c.algorithm.find('-'));
    two_shots_ = c.algorithm.ends_with("-two");
    const bool ring = c.algorithm.ends_with("-ring");
    // All rounds of a point have places of one size. No round has more data than the input and the output.
    const std::size_t most = std::min(kSlot, std::max(c.in_bytes(), c.out_bytes()));
    rounds_.use(copy == "stream"  ? Copy::stream
                : copy == "plain" ? Copy::plain
                                  : Copy::rep,
                ring ? (most + 63) / 64 * 64 : 0);
    in_ = common(c.in), out_ = common(c.out);
    supported = c.element == Element::float32 && (!two_shots_ || c.collective == Collective::all_reduce) &&
                (rounds_.kind() != Copy::stream || c.block * sizeof(float) > kEager) &&
                (!ring || c.block * sizeof(float) > kEager);
    return {};
  }

  bool run(const Call& c) override {
    if (n_ == 1) {
      if (c.in != c.out) std::memcpy(c.out, c.in, c.in_bytes());
      return true;
    }
    // A block of a few bytes is quicker in a record than in place, after a hand-off more.
    const bool direct = in_ && out_ && c.block * sizeof(float) > kEager;
    switch (c.collective) {
      case Collective::all_reduce:
        direct ? reduce_direct(c) : two_shots_ ? reduce_two(c) : reduce_one(c);
        break;
      case Collective::broadcast:
        broadcast(c, direct);
        break;
      case Collective::all_gather:
        move(c, direct, false);
        break;
      case Collective::all_to_all:
        move(c, direct, true);
        break;
      case Collective::reduce_scatter:
        direct ? scatter_direct(c) : scatter_staged(c);
        break;
    }
    return true;
  }

  Error error() const override { return {}; }
  void stop() override {}

 private:
  /// Registered memory: the same allocation of each rank.
  struct Common {
    std::size_t bytes;
    std::vector<std::byte*> of;
  };

  const Common* common(const void* at) const {
    for (const Common& c : commons_)
      if (c.of[static_cast<std::size_t>(rank_)] == at) return &c;
    return nullptr;
  }

  struct Part {
    std::size_t offset, bytes;
  };
  static Part part(std::size_t all, std::size_t i, std::size_t capacity) {
    return {i * capacity, std::min(capacity, all - i * capacity)};
  }
  static std::size_t rounds_of(std::size_t all, std::size_t capacity) {
    return (all + capacity - 1) / capacity;
  }
  static float* at(void* data, std::size_t bytes) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(data) + bytes);
  }

  /// Sums what all ranks have at `source(r)` into `out`, in tiles. `to(done)`: where a finished tile goes
  /// besides.
  template <class Source, class Further>
  void sum(float* out, std::size_t bytes, Source&& source, Further&& further) {
    for (std::size_t done = 0; done < bytes; done += kTile) {
      const std::size_t now = std::min(kTile, bytes - done), count = now / sizeof(float);
      // In place `out` may be the source of a later sum.
      float* const to = rounds_.kind() == Copy::stream || n_ > 2 ? tile_ : out + done / sizeof(float);
      add(to, source(0) + done / sizeof(float), source(1) + done / sizeof(float), count);
      for (int r = 2; r < n_; ++r) add(to, to, source(r) + done / sizeof(float), count);
      if (to == tile_) rounds_.put(out + done / sizeof(float), to, now);
      further(done, to, now);
    }
  }

  // ---- staged ----

  /// Each rank reads all inputs.
  void reduce_one(const Call& c) {
    const std::size_t all = c.in_bytes();
    rounds_.pipeline(
        rounds_of(all, kSlot),
        [&](std::size_t i, std::uint64_t round) {
          const Part p = part(all, i, kSlot);
          rounds_.put(rounds_.open(round, p.bytes), at(c.in, p.offset), p.bytes);
          rounds_.publish(round);
        },
        [&](std::size_t i, std::uint64_t round) {
          const Part p = part(all, i, kSlot);
          for (int d = 1; d < n_; ++d) rounds_.await((rank_ + d) % n_, round);
          const auto source = [&](int r) {
            return r == rank_ ? at(c.in, p.offset) : at(rounds_.place(r, round, p.bytes), 0);
          };
          sum(at(c.out, p.offset), p.bytes, source, [](auto...) {});
          rounds_.take(round);
        });
  }
  /// Each rank reads its slice of all inputs, and the others' sums.
  void reduce_two(const Call& c) {
    const std::size_t all = c.in_bytes(), n = static_cast<std::size_t>(n_);
    for (std::size_t i = 0; i < rounds_of(all, kSlot); ++i, rounds_.advance(2)) {
      const Part p = part(all, i, kSlot);
      const std::size_t share = (p.bytes / sizeof(float) + n - 1) / n * sizeof(float);
      const auto slice = [&](int r) {
        const std::size_t from = std::min(p.bytes, static_cast<std::size_t>(r) * share);
        return Part{from, std::min(share, p.bytes - from)};
      };
      const Part mine = slice(rank_);
      std::byte* const slot = rounds_.open(rounds_.current(), p.bytes);
      rounds_.put(slot, at(c.in, p.offset), mine.offset);
      rounds_.put(slot + mine.offset + mine.bytes, at(c.in, p.offset + mine.offset + mine.bytes),
                  p.bytes - mine.offset - mine.bytes);
      rounds_.publish(rounds_.current());
      for (int d = 1; d < n_; ++d) rounds_.await((rank_ + d) % n_, rounds_.current());
      std::byte* const result = rounds_.open(rounds_.current() + 1, p.bytes);
      const auto source = [&](int r) {
        return r == rank_ ? at(c.in, p.offset + mine.offset)
                          : at(rounds_.place(r, rounds_.current(), p.bytes), mine.offset);
      };
      sum(at(c.out, p.offset + mine.offset), mine.bytes, source,
          [&](std::size_t done, const float* tile, std::size_t bytes) {
            rounds_.put(result + done, tile, bytes);
          });
      rounds_.publish(rounds_.current() + 1);
      for (int d = 1; d < n_; ++d) {
        const int r = (rank_ + d) % n_;
        rounds_.await(r, rounds_.current() + 1);
        rounds_.put(at(c.out, p.offset + slice(r).offset), rounds_.place(r, rounds_.current() + 1, p.bytes),
                    slice(r).bytes);
      }
      rounds_.take(rounds_.current() + 1);
    }
  }
  void scatter_staged(const Call& c) {
    const std::size_t block = c.block * sizeof(float), others = static_cast<std::size_t>(n_ - 1);
    const std::size_t capacity = kSlot / others / 64 * 64;
    rounds_.pipeline(
        rounds_of(block, capacity),
        [&](std::size_t i, std::uint64_t round) { write_blocks(c, part(block, i, capacity), round); },
        [&](std::size_t i, std::uint64_t round) {
          const Part p = part(block, i, capacity);
          for (int d = 1; d < n_; ++d) rounds_.await((rank_ + d) % n_, round);
          const auto source = [&](int r) {
            return r == rank_ ? at(c.in, static_cast<std::size_t>(r) * block + p.offset) : piece(r, round, p);
          };
          sum(at(c.out, p.offset), p.bytes, source, [](auto...) {});
          rounds_.take(round);
        });
  }
  /// The parts `p` of the blocks for all others, one behind the other, that of the next rank first.
  void write_blocks(const Call& c, Part p, std::uint64_t round) {
    const std::size_t block = c.block * sizeof(float);
    std::byte* to = rounds_.open(round, p.bytes * static_cast<std::size_t>(n_ - 1));
    for (int d = 1; d < n_; ++d, to += p.bytes)
      rounds_.put(to, at(c.in, static_cast<std::size_t>((rank_ + d) % n_) * block + p.offset), p.bytes);
    rounds_.publish(round);
  }
  /// What rank r has written so for this one.
  float* piece(int r, std::uint64_t round, Part p) const {
    const auto d = static_cast<std::size_t>((rank_ - r + n_) % n_ - 1);
    return at(rounds_.place(r, round, p.bytes * static_cast<std::size_t>(n_ - 1)), d * p.bytes);
  }

  // ---- staged or direct ----

  void broadcast(const Call& c, bool direct) {
    const std::size_t all = c.out_bytes();
    if (direct) {
      if (rank_ == 0) rounds_.open(rounds_.current(), 0), rounds_.publish(rounds_.current());
      if (rank_ != 0)
        rounds_.await(0, rounds_.current()), rounds_.put(c.out, out_->of[0], all),
            rounds_.take(rounds_.current());
      if (rank_ == 0) rounds_.take(rounds_.current());
      rounds_.advance(1);
      return rounds_.barrier();
    }
    for (std::size_t i = 0; i < rounds_of(all, kSlot); ++i, rounds_.advance(1)) {
      const Part p = part(all, i, kSlot);
      if (rank_ == 0) {
        rounds_.put(rounds_.open(rounds_.current(), p.bytes), at(c.out, p.offset), p.bytes);
        rounds_.publish(rounds_.current());
      } else {
        rounds_.await(0, rounds_.current());
        std::memcpy(at(c.out, p.offset), rounds_.place(0, rounds_.current(), p.bytes), p.bytes);
      }
      rounds_.take(rounds_.current());
    }
  }
  /// all_to_all (`blocks`: the input has one for each rank) and all_gather.
  void move(const Call& c, bool direct, bool blocks) {
    const std::size_t block = c.block * sizeof(float);
    const auto mine = static_cast<std::size_t>(rank_) * block;
    const auto keep = [&] { rounds_.put(at(c.out, mine), at(c.in, blocks ? mine : 0), block); };
    if (direct) {
      rounds_.barrier();
      keep();
      for (int d = 1; d < n_; ++d) {
        const auto r = static_cast<std::size_t>((rank_ + d) % n_);
        rounds_.put(at(c.out, r * block), in_->of[r] + (blocks ? mine : 0), block);
      }
      if (rounds_.kind() == Copy::stream) _mm_sfence();
      return rounds_.barrier();
    }
    const std::size_t capacity = blocks ? kSlot / static_cast<std::size_t>(n_ - 1) / 64 * 64 : kSlot;
    rounds_.pipeline(
        rounds_of(block, capacity),
        [&](std::size_t i, std::uint64_t round) {
          const Part p = part(block, i, capacity);
          if (blocks) return write_blocks(c, p, round);
          rounds_.put(rounds_.open(round, p.bytes), at(c.in, p.offset), p.bytes);
          rounds_.publish(round);
        },
        [&](std::size_t i, std::uint64_t round) {
          const Part p = part(block, i, capacity);
          for (int d = 1; d < n_; ++d) {
            const int r = (rank_ + d) % n_;
            rounds_.await(r, round);
            const void* const from =
                blocks ? static_cast<void*>(piece(r, round, p)) : rounds_.place(r, round, p.bytes);
            void* const to = at(c.out, static_cast<std::size_t>(r) * block + p.offset);
            rounds_.kind() == Copy::stream ? rounds_.put(to, from, p.bytes)
                                           : void(std::memcpy(to, from, p.bytes));
          }
          rounds_.take(round);
        });
    keep();
  }

  // ---- direct ----

  void reduce_direct(const Call& c) {
    const std::size_t all = c.in_bytes(), n = static_cast<std::size_t>(n_);
    rounds_.barrier();
    if (!two_shots_ && c.in != c.out) {
      const auto source = [&](int r) { return at(in_->of[static_cast<std::size_t>(r)], 0); };
      sum(at(c.out, 0), all, source, [](auto...) {});
    } else {
      const std::size_t share = (all / sizeof(float) + n - 1) / n * sizeof(float);
      const std::size_t from = std::min(all, static_cast<std::size_t>(rank_) * share),
                        bytes = std::min(share, all - from);
      const auto source = [&](int r) { return at(in_->of[static_cast<std::size_t>(r)], from); };
      sum(at(c.out, from), bytes, source, [&](std::size_t done, const float* tile, std::size_t now) {
        for (int d = 1; d < n_; ++d)
          rounds_.put(out_->of[static_cast<std::size_t>((rank_ + d) % n_)] + from + done, tile, now);
      });
    }
    if (rounds_.kind() == Copy::stream) _mm_sfence();
    rounds_.barrier();
  }
  void scatter_direct(const Call& c) {
    const std::size_t block = c.block * sizeof(float), mine = static_cast<std::size_t>(rank_) * block;
    rounds_.barrier();
    const auto source = [&](int r) { return at(in_->of[static_cast<std::size_t>(r)], mine); };
    sum(at(c.out, 0), block, source, [](auto...) {});
    if (rounds_.kind() == Copy::stream) _mm_sfence();
    rounds_.barrier();
  }

  BareRounds rounds_;
  int rank_ = 0, n_ = 1;
  bool two_shots_ = false;
  std::vector<Common> commons_;
  const Common *in_ = nullptr, *out_ = nullptr;
  alignas(64) float tile_[kTile / sizeof(float)];
};

}  // namespace
}  // namespace ouro::compare

int main(int argc, char** argv) {
  static ouro::compare::BarePeer peer;
  return ouro::compare::run_harness(argc, argv, peer);
}

// A block of many lanes on one host thread, in an order that is shuffled at each barrier. Used by the tests
// of the kernels' bodies.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace ouro::gpu {

/// One lane of a block whose body has no barrier: lanes run one after the other to completion.
struct LaneBlock {
  int thread_, threads_, block_, blocks_;
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
};
template <class Body>
void run_lanes(int threads, int block, int blocks, std::mt19937_64& random, const Body& body) {
  std::vector<int> order(static_cast<std::size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const int t : order) body(LaneBlock{t, threads, block, blocks});
}

/// Lanes with barriers: each has a stack of its own, and is switched out at a barrier.
class Fibers {
 public:
  explicit Fibers(std::uint64_t seed) : random_(seed) {}
  /// Runs body(lane) for each lane; all lanes must call sync() the same number of times.
  void run(int lanes, const std::function<void(int)>& body) {
    body_ = &body;
    lanes_.resize(static_cast<std::size_t>(lanes));
    for (Lane& l : lanes_) {
      if (l.stack == nullptr) l.stack = std::make_unique<std::byte[]>(kStack);
      l.ended = false;
      getcontext(&l.context);
      l.context.uc_stack.ss_sp = l.stack.get();
      l.context.uc_stack.ss_size = kStack;
      l.context.uc_link = &home_;
      const auto self = reinterpret_cast<std::uintptr_t>(this);
      makecontext(&l.context, reinterpret_cast<void (*)()>(&Fibers::enter), 2, static_cast<unsigned>(self),
                  static_cast<unsigned>(self >> 32));
    }
    std::vector<int> order(lanes_.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t ended = 0; ended < lanes_.size();) {
      said_ = says_, says_ = false;
      std::shuffle(order.begin(), order.end(), random_);
      const std::size_t before = ended;
      for (const int t : order) {
        Lane& l = lanes_[static_cast<std::size_t>(t)];
        now_ = t;
        if (!l.ended) swapcontext(&home_, &l.context);
        ended += l.ended;
      }
      if (ended != before && ended != lanes_.size()) throw std::logic_error("lanes end while others wait");
    }
  }
  void sync() {
    Lane& l = lanes_[static_cast<std::size_t>(now_)];
    swapcontext(&l.context, &home_);
  }
  /// sync() that returns whether any lane passed true.
  bool any(bool mine) {
    says_ |= mine;
    sync();
    return said_;
  }

 private:
  static constexpr std::size_t kStack = 128 << 10;
  struct Lane {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    bool ended = false;
  };
  static void enter(unsigned low, unsigned high) {
    auto* const self = reinterpret_cast<Fibers*>(std::uintptr_t{high} << 32 | low);
    const int lane = self->now_;
    (*self->body_)(lane);
    self->lanes_[static_cast<std::size_t>(lane)].ended = true;
  }

  std::mt19937_64 random_;
  const std::function<void(int)>* body_ = nullptr;
  std::vector<Lane> lanes_;
  ucontext_t home_;
  int now_ = 0;
  bool says_ = false, said_ = false;
};
struct FiberBlock {
  Fibers* fibers;
  int thread_, threads_, block_, blocks_;
  int thread() const { return thread_; }
  int threads() const { return threads_; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
  void sync() const { fibers->sync(); }
  bool any(bool mine) const { return fibers->any(mine); }
};

}  // namespace ouro::gpu

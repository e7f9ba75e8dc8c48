// Words between GPUs and hosts: arrival records and the words of streams on the leader's path, and the flags
// and packets of resident kernels, whose bodies also run on the host.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/gpu/resident_memory.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/leader_words.h"
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/member.h"

namespace explore {
namespace devices {

using namespace ouro;
using At = Fault::At;
using What = Fault::What;

/// A writer hands chunks over by one flag, and a reader returns them by another.
class Flags final : public Program {
 public:
  int fibers() const override { return 2; }
  Rules rules() const override { return {.sleeps = false}; }
  void set_up() override {
    full_ = make<std::uint64_t>("flag.full");
    freed_ = make<std::uint64_t>("flag.freed");
    data_ = make<std::uint64_t>("flag.data", 2);
  }
  void run(int fiber) override {
    for (std::uint64_t k = 1; k <= 3; ++k)
      if (fiber == 0) {
        await(freed_, k - 1);
        data_[0] = k, data_[1] = 10 * k;
        gpu::store_release(full_, k, false);
      } else {
        await(full_, k);
        check(data_[0] == k && data_[1] == 10 * k, "a wrong chunk");
        gpu::store_release(freed_, k, false);
      }
  }

 private:
  static void await(const std::uint64_t* flag, std::uint64_t at_least) {
    while (gpu::load_acquire(flag, false) < at_least) gpu::pause();
  }
  std::uint64_t *full_ = nullptr, *freed_ = nullptr, *data_ = nullptr;
};

/// Packets that contain their own flags, in alternating places; the answer says that a place may be reused.
class Packets final : public Program {
 public:
  explicit Packets(std::uint32_t rounds) : rounds_(rounds) {}
  int fibers() const override { return 2; }
  Rules rules() const override { return {.sleeps = false}; }
  void set_up() override {
    for (int side = 0; side < 2; ++side) {
      packets_[side] = make<gpu::Packet>("packets", 2);
      for (int i = 0; i < 2; ++i)
        label(&packets_[side][i].half[0], 8, "packet.first"),
            label(&packets_[side][i].half[1], 8, "packet.second");
    }
  }
  void run(int fiber) override {
    for (std::uint32_t flag = 1; flag <= rounds_;
         ++flag) {  // each waits for the packet of the other, as in an all-reduce
      gpu::store_packet(&packets_[fiber][flag % 2], value(fiber, flag), flag);
      std::uint64_t data = 0;
      while (!gpu::load_packet(&packets_[1 - fiber][flag % 2], flag, &data)) gpu::pause();
      check(data == value(1 - fiber, flag), "a wrong packet");
    }
  }

 private:
  static std::uint64_t value(int side, std::uint32_t flag) {
    return static_cast<std::uint64_t>(side + 1) << 60 | static_cast<std::uint64_t>(flag) << 40 | flag;
  }
  const std::uint32_t rounds_;
  gpu::Packet* packets_[2] = {};
};

/// Allocates and labels the words and records of all ranks.
void make_device_words(int ranks) {
  job = new Job{.ranks = ranks};
  job->device_words = *SharedSegment::create(rt::GpuWords::bytes(ranks), "device words");
  // The arena zeroes sparse memory only where fibers used it, but set_up() writes here too.
  std::memset(job->device_words->data(), 0, job->device_words->bytes());
  const auto open = *rt::GpuWords::open(job->device_words, ranks);
  label(&open->arrival(0, 0),
        sizeof(rt::GpuArrival) * rt::GpuWords::kArrivals * static_cast<std::size_t>(ranks), "gpu record");
  for (int r = 0; r < ranks; ++r)
    label(open->ready(r).host, 4, "ready"), label(open->done(r).host, 4, "done"),
        label(open->come_to(r).host, 4, "come to");
  label(open->finished().host, 4, "finished");
  label(&open->led(), 8, "led");
}

rt::GpuTeam* make_team(const rt::Members& members) {
  static rt::ControlPage no_page;
  return new rt::GpuTeam{.context = bare_context(no_page),
                         .members = members,
                         .waiter = *new RankWaiter(make<std::uint32_t>("abort")),
                         .rank = members.rank(),
                         .size = members.size(),
                         .key = 1,
                         .deadline = std::chrono::hours(1)};
}

/// All-reduces on the leader's path: ranks announce them, the last one to arrive leads, and streams wait for
/// words. A rank also plays its stream: it writes words and waits for them as streams do.
class Leader final : public Program {
 public:
  /// Without capture, numbering continues after `before` operations.
  Leader(int ranks, int operations, bool captured, std::uint32_t before = 0)
      : ranks_(ranks), operations_(operations), captured_(captured), before_(before) {
    for (int r = 0; r < ranks; ++r) groups_.push_back(&members_of(r, ranks));
    plan_.folded = 4711;
    plan_.op.collective = Collective::all_reduce;
  }
  int fibers() const override { return ranks_; }
  Rules rules() const override { return {.sleeps = false}; }
  void set_up() override {
    make_device_words(ranks_);
    const auto words = *rt::GpuWords::open(job->device_words, ranks_);
    *words->finished().host = before_;
    for (int r = 0; r < ranks_; ++r) *words->come_to(r).host = before_;
    buffers_ = make<std::uint64_t>("device memory", static_cast<std::size_t>(ranks_) * 2);
    for (int r = 0; r < ranks_; ++r)
      arrivals_[r] = new rt::GpuArrivals(*make_team(*groups_[static_cast<std::size_t>(r)]));
  }
  void run(int fiber) override {
    rt::GpuArrivals& arrivals = *arrivals_[fiber];
    for (int k = 0; k < operations_; ++k) {
      bool last = false;
      const rt::GpuRef in{static_cast<std::uint64_t>(fiber + 1), static_cast<std::uint64_t>(k), 0};
      check(arrivals.announce(plan_, static_cast<std::uint64_t>(k) + 1, 0, false, in, in, &last).ok(),
            "ranks of one operation disagree");
      const rt::LeaderWords words(*arrivals.words(), ranks_, captured_,
                                  before_ + static_cast<std::uint32_t>(k) + 1);
      if (last)
        lead(fiber, k, arrivals, words);
      else
        follow(fiber, k, words);
      check(output(fiber) == sum(k), "a wrong result");
    }
  }

 private:
  std::uint64_t& input(int r) { return buffers_[2 * r]; }
  std::uint64_t& output(int r) { return buffers_[2 * r + 1]; }
  static std::uint64_t value(int r, int k) { return static_cast<std::uint64_t>(100 * (r + 1) + k); }
  std::uint64_t sum(int k) const {
    std::uint64_t s = 0;
    for (int r = 0; r < ranks_; ++r) s += value(r, k);
    return s;
  }
  // Executes stream operations on words: what precedes a write is visible to anyone who has waited for it.
  static void run(const std::vector<gpu::MemOp>& ops) {
    using Kind = gpu::MemOp::Kind;
    for (const gpu::MemOp& op : ops) {
      const std::atomic_ref word(*static_cast<std::uint32_t*>(op.address));
      const auto there = [&](std::uint32_t now) {
        return op.kind == Kind::wait_equal ? now == op.value : static_cast<std::int32_t>(now - op.value) >= 0;
      };
      if (op.kind == Kind::write)
        word.store(op.value, std::memory_order_release);
      else
        while (!there(word.load(std::memory_order_acquire))) std::this_thread::yield();
    }
  }
  void follow(int rank, int k, const rt::LeaderWords& words) {
    std::vector<gpu::MemOp> ops;
    words.follow(rank, &ops);
    input(rank) = value(rank, k);  // stands for work that was in the stream before
    run(ops);
  }
  void lead(int rank, int k, rt::GpuArrivals& arrivals, const rt::LeaderWords& words) {
    for (int r = 0; r < ranks_; ++r) {
      const rt::GpuArrival record = arrivals.record(r);
      check(record.in.id == static_cast<std::uint64_t>(r + 1) &&
                record.in.offset == static_cast<std::uint64_t>(k),
            "a record of another operation");
    }
    arrivals.release_records();
    input(rank) = value(rank, k);
    std::vector<gpu::MemOp> before, after;
    words.gather(rank, &before);
    words.release(rank, &after);
    run(before);
    std::uint64_t total = 0;
    for (int r = 0; r < ranks_; ++r) total += input(r);
    for (int r = 0; r < ranks_; ++r) output(r) = total;
    run(after);
  }

  const int ranks_, operations_;
  const bool captured_;
  const std::uint32_t before_;
  std::vector<const rt::Members*> groups_;
  rt::Plan plan_;
  std::uint64_t* buffers_ = nullptr;
  rt::GpuArrivals* arrivals_[4] = {};
};

/// Rank 0 is 64 operations ahead, and wraps around to the records that rank 1, which leads all operations,
/// is reading.
class Records final : public Program {
 public:
  Records() {
    plan_.folded = 4711;
    plan_.op.collective = Collective::all_reduce;
    for (int r = 0; r < 2; ++r) groups_.push_back(&members_of(r, 2));
  }
  int fibers() const override { return 2; }
  Rules rules() const override { return {.sleeps = false}; }
  void set_up() override {
    make_device_words(2);
    for (int r = 0; r < 2; ++r)
      arrivals_[r] = new rt::GpuArrivals(*make_team(*groups_[static_cast<std::size_t>(r)]));
    for (std::uint64_t k = 0; k < rt::GpuWords::kArrivals; ++k) announce(0, k);
  }
  void run(int fiber) override {
    const std::uint64_t first = fiber == 0 ? rt::GpuWords::kArrivals : 0;
    for (std::uint64_t k = first; k < first + 2; ++k) announce(fiber, k);
  }

 private:
  void announce(int rank, std::uint64_t k) {
    bool last = false;
    const rt::GpuRef at{static_cast<std::uint64_t>(rank + 1), k, 0};
    check(arrivals_[rank]->announce(plan_, k + 1, 0, false, at, at, &last).ok(),
          "ranks of one operation disagree");
    check(last == (rank == 1), "the wrong rank leads");
    if (!last) return;
    check(arrivals_[1]->record(0).in.offset == k, "a record of another operation");
    arrivals_[1]->release_records();
  }
  rt::Plan plan_;
  std::vector<const rt::Members*> groups_;
  rt::GpuArrivals* arrivals_[2] = {};
};

}  // namespace devices

void add_devices(std::vector<Protocol>* all) {
  using namespace devices;
  all->push_back({"devices.flags",
                  "chunks between resident kernels (load_acquire, store_release of kernels/gpu)",
                  new Flags,
                  true,
                  {{"a chunk is handed over without release", "flag.full", At::store, What::relax},
                   {"a chunk is taken without acquire", "flag.full", At::load, What::relax},
                   {"memory is given back without release", "flag.freed", At::store, What::relax},
                   {"memory is reused without acquire", "flag.freed", At::load, What::relax},
                   {"memory is reused one round early", "flag.freed", At::load, What::add, 1}}});
  all->push_back(
      {"devices.packets",
       "packets with flags between resident kernels (store_packet, load_packet)",
       new Packets(2),
       true,
       {{"the second half is taken for there", "packet.second", At::load, What::add, std::int64_t{2} << 32},
        {"the second half is not written", "packet.second", At::store, What::drop}}});
  all->push_back({"devices.packets_again",
                  "the same until the first place is used again",
                  new Packets(3),
                  false,
                  {{"the second half is not written", "packet.second", At::store, What::drop}}});
  all->push_back({"devices.leader",
                  "two all-reduces of two ranks on the leader's path (GpuArrivals, GpuWords, LeaderWords)",
                  new Leader(2, 2, false),
                  true,
                  {{"ranks are counted in without order", "device words", At::change, What::relax},
                   {"two ranks count themselves in at once", "device words", At::change, What::tear},
                   {"a stream says where it is without release", "come to", At::store, What::relax},
                   {"a stream waits for another too briefly", "come to", At::load, What::add, 1},
                   {"a stream says it is done without release", "finished", At::store, What::relax},
                   {"a stream waits without acquire", "finished", At::load, What::relax}}});
  all->push_back({"devices.leader_captured",
                  "the same, captured: words are set and cleared",
                  new Leader(2, 2, true),
                  true,
                  {{"a stream says it is ready without release", "ready", At::store, What::relax},
                   {"a stream says it is done without release", "done", At::store, What::relax},
                   {"a stream waits without acquire", "done", At::load, What::relax}}});
  all->push_back({"devices.leader_round",
                  "the same, not captured, where numbers begin again at 0",
                  new Leader(2, 2, false, 0xfffffffe),
                  true,
                  {{"a stream says it is done without release", "finished", At::store, What::relax}}});
  all->push_back(
      {"devices.records",
       "operations of a rank that is 64 ahead: it waits until its records have been read (announce, led)",
       new Records,
       true,
       {{"records are released without release", "led", At::store, What::relax},
        {"the look for room does not acquire", "led", At::load, What::relax},
        {"records are used one operation early", "led", At::load, What::add, 1}}});
  all->push_back({"devices.leader_three",
                  "the same of three ranks",
                  new Leader(3, 2, false),
                  false,
                  {{"ranks are counted in without order", "device words", At::change, What::relax}}});
}

}  // namespace explore

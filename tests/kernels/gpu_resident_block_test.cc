// Tests of the resident kernels' blocks: several host threads are one block, with the barriers that a
// device has, so that a race detector sees the interaction of a block's threads. Also tests of the kernels
// that use pointers.
#include <pthread.h>

#include <atomic>

#include "kernels/gpu/resident_list.h"
#include "tests/kernels/gpu_resident_cases.h"

namespace ouro::gpu::resident_test {
namespace {

constexpr int kThreads = 3;

/// State that the threads of one block share.
struct Team {
  pthread_barrier_t barrier;
  std::atomic<bool> said[3] = {};
  ResidentShared shared;
  Team() { pthread_barrier_init(&barrier, nullptr, kThreads); }
  ~Team() { pthread_barrier_destroy(&barrier); }
};

struct TeamBlock {
  Team& team;
  int thread_, block_, blocks_;
  mutable int turn = 0;
  int thread() const { return thread_; }
  int threads() const { return kThreads; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
  void sync() const { pthread_barrier_wait(&team.barrier); }
  bool any(bool mine) const {
    const int now = turn, before = (turn + 2) % 3;
    turn = (turn + 1) % 3;
    if (mine) team.said[now] = true;
    sync();
    // All have read it, and no thread sets it before the next barrier.
    if (thread_ == 0) team.said[before] = false;
    return team.said[now];
  }
};

void run_teams(const std::vector<std::unique_ptr<Operation>>& operations, int n, int channels,
               void (*entry)(const ResidentArgs&, const TeamBlock&, ResidentShared&)) {
  std::vector<std::unique_ptr<Team>> teams;
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < channels; ++c) {
      teams.push_back(std::make_unique<Team>());
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&operations, entry, r, c, t, channels, team = teams.back().get()] {
          const TeamBlock block{*team, t, c, channels};
          for (const auto& o : operations) {
            entry(o->args[static_cast<std::size_t>(r)], block, team->shared);
            block.sync();  // a launch ends when all its threads have ended
          }
        });
    }
  for (std::thread& t : threads) t.join();
}

/// The kernels that serve every operation that has none of its own.
void run_any(const ResidentArgs& args, const TeamBlock& block, ResidentShared& shared) {
  if (traits_of(args.collective).reduces_all())
    ResidentEntries::any_float(args, block, shared);
  else
    ResidentEntries::any_moves(args, block, shared);
}

/// All flows in the order of the list, twice: over fresh state, and over the state that the first pass
/// has left.
TEST(ResidentBlock, EveryFlowGivesTheExpectedResult) {
  constexpr int kRanks = 3, kChannels = 2;
  for (const Aliasing aliasing : {Aliasing::separate, Aliasing::exact}) {
    World w(kRanks, kChannels, 2);
    std::vector<std::unique_ptr<Operation>> operations;
    for (const std::size_t count : {1500, 17})
      for (const Row& row : rows()) {
        if (row.packets || row.uneven || (aliasing == Aliasing::exact && !row.in_place)) continue;
        const OpKind op = count == 17 ? OpKind::premulsum : OpKind::sum;
        Case c{row.collective, row.algorithm, DType::f32, op, count, 1, aliasing};
        c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
        if (count == 17) c.declines = 1;
        operations.push_back(make(w, c, kChannels));
      }
    ASSERT_EQ(std::count(operations.begin(), operations.end(), nullptr), 0);
    run_teams(operations, kRanks, kChannels, run_any);
    for (const auto& o : operations) check(*o, w);
    if (HasFatalFailure()) return;
  }
}

/// Blocks of any lengths, by the kernels for them.
TEST(ResidentBlock, UnevenBlocksGiveTheExpectedResult) {
  constexpr int kRanks = 5, kChannels = 2;
  using Entry = void (*)(const ResidentArgs&, const TeamBlock&, ResidentShared&);
  const auto runs = [&](Collective collective, DType type, OpKind op, Entry entry) {
    World w(kRanks, kChannels, 2);
    std::vector<std::unique_ptr<Operation>> operations;
    for (const std::size_t count : {1500, 17, 0, 333}) {
      Case c{collective, uneven_over_slots(collective), type, op, count};
      c.pointers = true, c.uneven = 1;
      c.shift = count % 3, c.uneven += static_cast<unsigned>(count);
      if (count % 4 == 1) c.declines = 3;
      if (count == 17 && collective != Collective::all_to_all) c.aliasing = Aliasing::exact;
      operations.push_back(make(w, c, kChannels));
    }
    ASSERT_EQ(std::count(operations.begin(), operations.end(), nullptr), 0);
    run_teams(operations, kRanks, kChannels, entry);
    for (const auto& o : operations) check(*o, w);
  };
  runs(Collective::all_to_all, DType::bf16, OpKind::sum, ResidentEntries::uneven_all_to_all<TeamBlock>);
  runs(Collective::all_gather, DType::u8, OpKind::sum, ResidentEntries::uneven_all_gather<TeamBlock>);
  runs(Collective::reduce_scatter, DType::f32, OpKind::sum,
       ResidentEntries::uneven_reduce_scatter_f32<TeamBlock>);
  runs(Collective::reduce_scatter, DType::f32, OpKind::premulsum, ResidentEntries::any_float<TeamBlock>);
}

/// By pointer no data passes through the staging buffers; if a rank declines, all of it does. A launch
/// records what its host has mapped, for the next launch.
TEST(ResidentPointers, DataBypassesTheStagingBuffersUnlessARankDeclines) {
  constexpr int kRanks = 3, kNumber = 5;
  for (const int declines : {-1, 1})
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter,
                                        Collective::all_gather, Collective::broadcast}) {
      World w(kRanks, 1, 2);
      Case c{collective, Algorithm::direct, DType::f32, OpKind::sum, 500};
      c.pointers = true, c.declines = declines;
      std::vector<std::unique_ptr<Operation>> operations;
      operations.push_back(make(w, c, 1));
      ASSERT_NE(operations[0], nullptr);
      ResidentArgs& a = operations[0]->args[2];
      a.learned = 1;
      a.learn[0] = {.mapping = {w.at(0).arena, 77}, .peer = 0, .number = kNumber};
      run_and_check(w, operations, 1);
      EXPECT_EQ(mapping(w, 2, 0, kNumber)->at, w.at(0).arena);
      EXPECT_EQ(mapping(w, 2, 0, kNumber)->bytes, 77u);
      bool staged = false;
      for (int r = 0; r < kRanks; ++r) {
        const std::byte* const pages = w.at(r).arena + ResidentLayout::kHeaderBytes + w.layout.pages_at;
        staged |= std::any_of(pages, pages + ResidentLayout::kStagingSlots * w.layout.staging_bytes,
                              [](std::byte b) { return b != std::byte{}; });
      }
      EXPECT_EQ(staged, declines >= 0) << name(collective);
    }
}

/// A peer gives an address that is not within what has been mapped of it.
TEST(ResidentPointers, AddressesBeyondTheMappingAreRefused) {
  constexpr int kRanks = 2;
  for (const std::uint64_t wrong :
       {ResidentRef::make(2, 0), ResidentRef::make(ResidentRef::kListed + 1, 0), ResidentRef::make(3, 4)}) {
    World w(kRanks, 1, 2);
    Case c{Collective::all_reduce, Algorithm::direct, DType::f32, OpKind::sum, 100};
    c.pointers = true;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, 1, 50'000'000));
    const Buffers& theirs = operations[0]->ranks[1];
    *mapping(w, 0, 1, 3) = {theirs.in, theirs.given.size()};
    operations[0]->args[1].in_ref = wrong;
    run(operations, kRanks, 1, [](int) { return false; });
    EXPECT_EQ(w.at(0).error.fault, ResidentFault::reference);
    EXPECT_EQ(w.at(0).error.peer, 1);
    EXPECT_EQ(w.at(1).error.fault, ResidentFault::deadline);
    EXPECT_EQ(w.at(1).error.peer, 0);
  }
}

/// An uneven all_to_all whose blocks all have `each` elements.
std::unique_ptr<Operation> make_pairs(World& w, Case c, std::uint64_t each, std::uint64_t deadline_ns) {
  c.algorithm = Algorithm::direct;
  auto o = make(w, c, 1, deadline_ns);
  if (o == nullptr) return o;
  for (ResidentArgs& a : o->args) {
    a.algorithm = Algorithm::pairwise, a.uneven = true, a.count = each;
    std::fill_n(a.in_counts, w.layout.ranks, each), std::fill_n(a.out_counts, w.layout.ranks, each);
    const auto launch = resident(a);
    EXPECT_TRUE(launch.ok()) << launch.status().message();
    if (!launch.ok()) return nullptr;
    o->kernel = launch->kernel;
  }
  return o;
}

/// If the numbers of elements differ that a sender and a reader pass for a block, the reader fails and writes
/// nothing, whether the operation would run by pointer or over slots.
TEST(ResidentUneven, DifferentCountsFailWithoutWriting) {
  constexpr int kRanks = 2;
  for (const int declines : {-1, 0})
    for (const std::uint64_t sent : {101, 0, 99}) {
      World w(kRanks, 1, 2);
      Case c{Collective::all_to_all, Algorithm::pairwise, DType::f32, OpKind::sum, 100};
      c.pointers = true, c.declines = declines;
      std::vector<std::unique_ptr<Operation>> operations;
      operations.push_back(make_pairs(w, c, 100, 50'000'000));
      ASSERT_NE(operations[0], nullptr);
      operations[0]->args[1].in_counts[0] = sent;
      run(operations, kRanks, 1, [](int) { return false; });
      EXPECT_EQ(w.at(0).error.fault, ResidentFault::counts);
      EXPECT_EQ(w.at(0).error.peer, 1);
      EXPECT_EQ(w.at(0).error.sent, sent);
      EXPECT_EQ(w.at(0).error.expected, 100u);
      EXPECT_EQ(w.at(1).error.fault, ResidentFault::deadline) << "it waits for a rank that has left";
      const Buffers& mine = operations[0]->ranks[0];
      EXPECT_TRUE(std::all_of(mine.out + 400, mine.out + 800, [](std::byte b) { return b == kUntouched; }));
    }
}

/// A peer may write any numbers. Rank 0 has mapped 1,000 bytes of rank 1's memory and expects 100 floats. The
/// test writes the line of rank 1, which itself never arrives.
TEST(ResidentUneven, InvalidNumbersNeverLeaveTheMapping) {
  constexpr int kRanks = 2;
  constexpr std::uint64_t kMapped = 1000, kEnd = std::uint64_t{1} << 62;
  struct Said {
    std::uint64_t ref, at, count;
    ResidentFault fault;
  };
  const std::uint64_t mine = ResidentRef::make(3, 0);
  for (const Said& said :
       {Said{mine, 150, 100, ResidentFault::deadline}, Said{mine, 151, 100, ResidentFault::reference},
        Said{mine, kEnd, 100, ResidentFault::reference},
        Said{mine, ~std::uint64_t{0}, 100, ResidentFault::reference},
        Said{mine, kEnd - 50, 100, ResidentFault::reference},
        Said{mine, 0, kEnd + 100, ResidentFault::counts},
        Said{ResidentRef::make(3, 601), 0, 100, ResidentFault::reference},
        Said{ResidentRef::make(3, 2000), 0, 100, ResidentFault::reference},
        Said{ResidentRef::make(2, 0), 0, 100, ResidentFault::reference},
        Said{ResidentRef::make(ResidentRef::kListed, 0), 0, 100, ResidentFault::reference}}) {
    World w(kRanks, 1, 2);
    Case c{Collective::all_to_all, Algorithm::pairwise, DType::f32, OpKind::sum, 100};
    c.pointers = true;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make_pairs(w, c, 100, 50'000'000));
    ASSERT_NE(operations[0], nullptr);
    const ResidentArgs& a = operations[0]->args[0];
    Bytes theirs(kMapped, std::byte{7});
    *mapping(w, 0, 1, 3) = {theirs.data(), kMapped};
    std::byte* const part = w.at(0).arena + ResidentLayout::kHeaderBytes;
    auto& names = *reinterpret_cast<ResidentNames*>(part + w.layout.names_at + ResidentLayout::kLine);
    names.in[0] = said.ref, names.at[0] = said.at, names.count[0] = said.count;
    auto& arrival = *reinterpret_cast<ResidentArrival*>(part + w.layout.arrivals_at + ResidentLayout::kLine);
    arrival.word[0] = std::uint64_t{a.tag} << 48 | 2;  // round 0 is posted
    run(operations, kRanks, 1, [](int r) { return r == 1; });
    EXPECT_EQ(w.at(0).error.fault, said.fault) << said.at << " " << said.count;
    EXPECT_EQ(w.at(0).error.peer, 1);
    const Buffers& b = operations[0]->ranks[0];
    const std::byte expected = said.fault == ResidentFault::deadline ? std::byte{7} : kUntouched;
    EXPECT_TRUE(std::all_of(b.out + 400, b.out + 800, [&](std::byte x) { return x == expected; })) << said.at;
  }
}

TEST(ResidentUneven, InvalidArgumentsAreRefused) {
  World w(3, 2, 2);
  Case c{Collective::all_to_all, Algorithm::pairwise, DType::f32, OpKind::sum, 10};
  c.pointers = true, c.uneven = 1;
  const auto reason = [&](auto&& change) {
    const auto good = make(w, c, 2);
    if (good == nullptr) return Reason::ring_corrupt;
    ResidentArgs a = good->args[0];
    change(a);
    return resident(a).status().reason();
  };
  EXPECT_EQ(reason([](ResidentArgs&) {}), Reason::none);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.by_pointer = false; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.algorithm = Algorithm::direct; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { ++a.count; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.in_counts[0] += 1, a.count += 1; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.in_counts[1] = std::uint64_t{1} << 61; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.out = const_cast<std::byte*>(a.in); }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.collective = Collective::broadcast; }), Reason::unsupported);
  c.collective = Collective::all_gather, c.algorithm = Algorithm::direct;
  EXPECT_EQ(reason([](ResidentArgs&) {}), Reason::none);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.by_pointer = false; }), Reason::none);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.in_counts[1] = 0; }), Reason::invalid);
}

void run_packets_by(void (*entry)(const ResidentArgs&, const TeamBlock&, ResidentShared&), DType t,
                    OpKind op) {
  constexpr int kRanks = 3, kChannels = 2;
  World w(kRanks, kChannels, 2);
  std::vector<std::unique_ptr<Operation>> operations;
  for (const std::size_t count : {1, 700, 13, 400}) {
    Case c{Collective::all_reduce, Algorithm::oneshot, t, op, count};
    c.packets = true;
    c.aliasing = count % 2 == 0 ? Aliasing::exact : Aliasing::separate;
    operations.push_back(make(w, c, kChannels));
  }
  ASSERT_EQ(std::count(operations.begin(), operations.end(), nullptr), 0);
  run_teams(operations, kRanks, kChannels, entry);
  for (const auto& o : operations) check(*o, w);
}
TEST(ResidentBlock, PacketKernelOfOneTypeGivesTheExpectedResult) {
  run_packets_by(ResidentEntries::packets_bf16<TeamBlock>, DType::bf16, OpKind::sum);
}
TEST(ResidentBlock, GeneralPacketKernelGivesTheExpectedResult) {
  run_packets_by(ResidentEntries::any_packets<TeamBlock>, DType::f64, OpKind::premulsum);
}

}  // namespace
}  // namespace ouro::gpu::resident_test

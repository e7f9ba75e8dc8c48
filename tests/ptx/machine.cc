// Runs grids: the lane that runs is drawn anew after every few instructions. See machine.h.
#include "tests/ptx/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ptx {
namespace {

constexpr std::size_t kWarp = 32;
constexpr std::uint64_t kUndefined = 0xdeadbeefcafe5a5a;  // initial value of registers

/// Allocates below 4 GiB, because addresses of shared memory may be 32 bits wide. The system follows the hint
/// if the range is free.
void* low_memory(std::size_t bytes) {
  for (std::uint64_t at = 0x20000000; at < 0xf0000000; at += 0x100000) {
    void* const p =
        mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) break;
    if (reinterpret_cast<std::uint64_t>(p) + bytes < std::uint64_t{1} << 32) return p;
    munmap(p, bytes);
  }
  throw Violation("no memory below 4 GiB for a block");
}

void enter(Lane& lane, const Function& f, const std::byte* parameters) {
  Frame& frame = lane.frames.emplace_back();
  frame.function = &f;
  frame.registers.assign(static_cast<std::size_t>(f.registers), kUndefined);
  for (const auto& [slot, value] : f.constants) frame.registers[static_cast<std::size_t>(slot)] = value;
  if (f.local_bytes > 0) frame.local = std::make_unique<std::byte[]>(f.local_bytes + 16);
  const std::uint64_t local = (reinterpret_cast<std::uint64_t>(frame.local.get()) + 15) / 16 * 16;
  if (f.local_bytes > 0)
    lane.machine->memory().add(reinterpret_cast<void*>(local), f.local_bytes, Space::local,
                               "local memory of " + f.name);
  for (const Variable& v : f.variables) {
    const std::uint64_t base = v.space == Space::param ? reinterpret_cast<std::uint64_t>(parameters)
                               : v.space == Space::shared
                                   ? reinterpret_cast<std::uint64_t>(lane.block->shared)
                                   : local;
    frame.registers[static_cast<std::size_t>(v.slot)] = base + v.at;
  }
  lane.function = &f;
  lane.r = frame.registers.data();
  lane.pc = 0;
}

}  // namespace

void run_branch(Lane& lane, const Instr& i) { lane.pc = i.target; }

void run_call(Lane&, const Instr& i) { throw Violation("unknown opcode call (of " + i.callee->name + ")"); }

void run_return(Lane& lane, const Instr&) { lane.machine->end(lane); }

Machine::Machine(Chooser& chooser, int lanes)
    : chooser_(chooser), memory_(chooser, lanes + 1), capacity_(lanes + 1) {
  host_.known = memory_.nothing();
}
Machine::~Machine() = default;

void Machine::run(const std::vector<Stream>& streams) {
  streams_ = &streams;
  at_.assign(streams.size(), 0);
  grids_.clear();
  grids_.resize(streams.size());
  ends_.assign(streams.size(), host_);
  begun_ = executed_;
  for (std::size_t s = 0; s < streams.size(); ++s) start(static_cast<int>(s));
  for (std::uint64_t turn = 0; !running_.empty() || !asleep_.empty(); ++turn) {
    if (!asleep_.empty() && (running_.empty() || asleep_.begin()->first <= turn)) {
      running_.push_back(asleep_.begin()->second);
      asleep_.erase(asleep_.begin());
    }
    now_ = turn;
    const std::size_t which = static_cast<std::size_t>(chooser_.pick(static_cast<int>(running_.size())));
    Lane& lane = *running_[which];
    const int span = chooser_.pick(4) == 0 ? 1 + chooser_.pick(8) : 1 + chooser_.pick(200);
    step(lane, span);
    if (executed_ - begun_ > limit)
      throw Violation("a hang: " + std::to_string(limit) + " instructions; a lane is at " +
                      lane.function->place(lane.function->code[static_cast<std::size_t>(lane.pc)]));
  }
  for (const auto& grid : grids_)
    if (grid != nullptr && grid->live > 0) throw Violation("a hang: all that is left waits at barriers");
  for (const Observer& o : ends_) memory_.follow(host_, o);
}

/// Starts the next launch of a stream.
void Machine::start(int stream) {
  const Stream& s = (*streams_)[static_cast<std::size_t>(stream)];
  const std::size_t at = at_[static_cast<std::size_t>(stream)]++;
  auto& grid = grids_[static_cast<std::size_t>(stream)];
  if (at >= s.launches.size()) {
    grid.reset();
    return;
  }
  grid = std::make_unique<Grid>();
  grid->launch = &s.launches[at];
  grid->stream = stream, grid->device = s.device, grid->number = ++grid_numbers_;
  grid->order.resize(static_cast<std::size_t>(grid->launch->blocks));
  std::iota(grid->order.begin(), grid->order.end(), 0);
  for (std::size_t i = grid->order.size(); i > 1; --i)
    std::swap(grid->order[i - 1], grid->order[static_cast<std::size_t>(chooser_.pick(static_cast<int>(i)))]);
  grid->live = grid->launch->blocks;
  start_blocks(*grid);
}

void Machine::start_blocks(Grid& grid) {
  // Blocks that do not wait for each other may run in any order, even one at a time.
  const int most = grid.launch->together ? grid.launch->blocks : 1 + chooser_.pick(3);
  while (grid.next < grid.launch->blocks && static_cast<int>(grid.blocks.size()) < most)
    start_block(grid, grid.order[static_cast<std::size_t>(grid.next++)]);
}

void Machine::start_block(Grid& grid, int index) {
  const Launch& launch = *grid.launch;
  auto block = std::make_unique<Block>();
  block->grid = &grid, block->index = index, block->live = launch.threads;
  block->parameters = launch.arguments;
  memory_.add(block->parameters.data(), block->parameters.size(), Space::param, "parameters");
  block->shared_bytes = launch.function->shared_bytes;
  if (block->shared_bytes > 0) {
    void* const p = low_memory(block->shared_bytes);
    block->shared = static_cast<std::byte*>(p);
    std::memset(p, 0x5a, block->shared_bytes);
    memory_.add(p, block->shared_bytes, Space::shared, "shared memory");
  }
  const int number = block_ids_++;
  for (int t = 0; t < launch.threads; ++t) {
    auto lane = std::make_unique<Lane>();
    lane->machine = this, lane->block = block.get(), lane->thread = t;
    Observer& o = lane->observer;
    o.place = {ids_++, number, grid.device};
    if (o.place.id >= capacity_) throw Violation("more lanes than the machine was made for");
    o.known = o.launched = ends_[static_cast<std::size_t>(grid.stream)].known;
    o.grid = grid.number;
    enter(*lane, *launch.function, block->parameters.data());
    block->lanes.push_back(lane.get());
    running_.push_back(lane.get());
    lanes_.push_back(std::move(lane));
  }
  grid.blocks.push_back(block.get());
  blocks_.push_back(std::move(block));
}

void Machine::stop(Lane& lane) { std::erase(running_, &lane); }

void Machine::arrive(Lane& lane, const Instr& i) {
  Block& b = *lane.block;
  lane.state = Lane::State::waits;
  lane.barrier = &i;
  stop(lane);
  if (++b.waiting == b.live) meet(b);
}

void Machine::meet(Block& b) {
  if (b.live != static_cast<int>(b.lanes.size()))
    throw Violation("a barrier where lanes of the block have ended");
  bool any = false;
  std::vector<Observer*> all;
  for (std::size_t t = 0; t < b.lanes.size(); ++t) {
    Lane& l = *b.lanes[t];
    const Instr& i = *l.barrier;
    if (&i != b.lanes[t / kWarp * kWarp]->barrier) throw Violation("a warp that is divided at a barrier");
    if (i.which != b.lanes[0]->barrier->which) throw Violation("barriers of different kinds meet");
    any |= l.said;
    all.push_back(&l.observer);
  }
  memory_.meet(all);
  b.waiting = 0;
  for (Lane* l : b.lanes) {
    if (l->barrier->to[0] >= 0) l->r[l->barrier->to[0]] = any;
    l->state = Lane::State::runs;
    running_.push_back(l);
  }
}

void Machine::end(Lane& lane) {
  Block& b = *lane.block;
  lane.state = Lane::State::ended;
  stop(lane);
  lane.frames.clear();
  if (--b.live == 0) return finish_block(b);
  if (b.waiting == b.live) throw Violation("lanes end while others of their block wait at a barrier");
}

void Machine::finish_block(Block& b) {
  Grid& grid = *b.grid;
  std::vector<Observer*> all;
  for (Lane* l : b.lanes) all.push_back(&l->observer);
  memory_.meet(all);
  memory_.follow(ends_[static_cast<std::size_t>(grid.stream)], *all[0]);
  memory_.remove(b.parameters.data());
  if (b.shared != nullptr) {
    memory_.remove(b.shared);
    munmap(b.shared, b.shared_bytes);
  }
  std::erase(grid.blocks, &b);
  std::erase_if(lanes_, [&](const auto& l) { return l->block == &b; });
  std::erase_if(blocks_, [&](const auto& x) { return x.get() == &b; });
  if (--grid.live == 0)
    start(grid.stream);
  else
    start_blocks(grid);
}

/// Faults are found by what other lanes do between two strong accesses or fences of a lane: now and then a
/// lane is paused there for long, the more rarely the more of them it has executed.
bool Machine::pause(Lane& lane) {
  if (chooser_.pick(4 + lane.strong++) == 0) {
    asleep_.emplace(now_ + 1 + static_cast<std::uint64_t>(chooser_.pick(3000)), &lane);
    stop(lane);
    return true;
  }
  return chooser_.pick(3) == 0;
}

void Machine::step(Lane& lane, int instructions) {
  const Instr* i = nullptr;
  try {
    while (instructions-- > 0) {
      i = &lane.function->code[static_cast<std::size_t>(lane.pc++)];
      ++executed_;
      if (i->guard >= 0 && ((lane.r[i->guard] & 1) != 0) == i->unless) continue;
      const bool last = i->run == run_return;
      i->run(lane, *i);
      if (last || lane.state != Lane::State::runs) return;
      if (i->strong && pause(lane)) return;
      if (lane.yields) {
        lane.yields = false;
        return;
      }
    }
  } catch (const Violation& v) {
    throw Violation(std::string(v.what()) + "\n  at " + lane.function->place(*i) + "\n  block " +
                    std::to_string(lane.block->index) + " lane " + std::to_string(lane.thread));
  }
}

}  // namespace ptx

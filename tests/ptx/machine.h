// Grids, blocks and lanes, and the order in which they run. Used by cases and litmus tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/ptx/memory.h"

namespace ptx {

struct Block;
class Machine;

/// One call of a function: its registers, and its memory for parameters and local variables.
struct Frame {
  const Function* function = nullptr;
  int pc = 0;
  std::vector<std::uint64_t> registers;
  std::unique_ptr<std::byte[]> local;
};

struct Lane {
  enum class State : std::uint8_t { runs, waits, ended } state = State::runs;
  bool yields = false;  ///< asks for another lane to run
  Machine* machine = nullptr;
  Block* block = nullptr;
  int thread = 0;
  const Function* function = nullptr;
  std::uint64_t* r = nullptr;  ///< registers of the innermost call
  int pc = 0;
  std::deque<Frame> frames;
  Observer observer;
  int strong = 0;  ///< strong accesses and fences that it has executed
  // State at a barrier.
  const Instr* barrier = nullptr;
  bool said = false;
  // The load that is being repeated, and the value that it read last.
  const Instr* looked = nullptr;
  std::uint64_t saw = 0;
};

struct Grid;
struct Block {
  Grid* grid = nullptr;
  int index = 0, waiting = 0, live = 0;
  std::vector<Lane*> lanes;
  std::vector<std::byte> parameters;
  std::byte* shared = nullptr;
  std::size_t shared_bytes = 0;
};

/// A kernel launch.
struct Launch {
  const Function* function = nullptr;
  int blocks = 1, threads = 32;
  std::vector<std::byte> arguments;
  /// Its blocks wait for each other, or for another grid's, so all of them are resident at once.
  bool together = false;
};
/// Launches on one device, each of which starts when the one before it has ended.
struct Stream {
  int device = 0;
  std::vector<Launch> launches;
};

struct Grid {
  const Launch* launch = nullptr;
  int stream = 0, device = 0, number = 0;
  int next = 0, live = 0;
  std::vector<int> order;  ///< order in which its blocks start
  std::vector<Block*> blocks;
};

class RandomChooser final : public Chooser {
 public:
  explicit RandomChooser(std::uint64_t seed) : random_(seed) {}
  int pick(int n) override { return n <= 1 ? 0 : static_cast<int>(random_() % static_cast<unsigned>(n)); }

 private:
  std::mt19937_64 random_;
};

class Machine {
 public:
  /// `lanes`: maximum number of lanes of all launches that run at the same time.
  Machine(Chooser& chooser, int lanes);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Memory& memory() { return memory_; }
  /// Runs all streams to their ends. A Violation says what was wrong, and where. Everything that the host
  /// does afterwards is ordered after all of it.
  void run(const std::vector<Stream>&);

  std::uint64_t executed() const { return executed_; }
  std::uint64_t limit = 400'000'000;  ///< maximum number of instructions of a run; more count as a hang
  /// If set, called for each load and store with the lane, the instruction and the address of the first byte.
  std::function<void(const Lane&, const Instr&, std::uint64_t)> watch;

  void arrive(Lane&, const Instr&);
  void end(Lane&);

 private:
  void start(int stream);
  void start_blocks(Grid&);
  void start_block(Grid&, int index);
  void finish_block(Block&);
  void meet(Block&);
  void stop(Lane&);
  bool pause(Lane&);
  void step(Lane&, int instructions);

  Chooser& chooser_;
  Memory memory_;
  const std::vector<Stream>* streams_ = nullptr;
  std::vector<std::size_t> at_;  // number of launches that each stream has started
  std::vector<Observer> ends_;   // for each stream: everything that its launches did
  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> running_;
  std::multimap<std::uint64_t, Lane*> asleep_;  // by the turn in which they resume
  std::uint64_t now_ = 0;
  Observer host_;
  int ids_ = 1, block_ids_ = 0, grid_numbers_ = 0, capacity_;
  std::uint64_t executed_ = 0, begun_ = 0;
  friend void run_timer(Lane&, const Instr&);
};

}  // namespace ptx

// What a seed determines: a job, its hosts and paths, and what is done to them and when. Used by the run and
// by the judge.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulate/engine/world.h"

namespace simulate {

/// One event that is injected into the job. Ranks and hosts have the same numbers.
struct Injection {
  enum class Kind : std::uint8_t {
    kill,     ///< the process ends; its system tells the others
    lose,     ///< the host ends; nobody is told
    suspend,  ///< all processes stop at about the same time, and continue later
    stop,     ///< the process stops, but its system does not
    part,     ///< no packets between `side` and the others, in both directions
    one_way,  ///< no packets from `rank` to `other`
    reset,    ///< a connection between the two is reset by a third party
    slow,     ///< packets of the rank take longer
    far,      ///< packets between the two take longer, in both directions
  };
  Kind kind = Kind::kill;
  Nanos when = 0, lasts = 0;
  int rank = 0, other = 0;
  std::uint64_t side = 0;  ///< bit mask of ranks
  Nanos delay = 0;
  /// Whether calls may fail because of it; otherwise it must not be noticed.
  bool serious() const;
  std::string text() const;
};

struct Scenario {
  explicit Scenario(std::uint64_t seed);
  std::uint64_t seed;
  int ranks = 2, steps = 0;
  Nanos delay = 0, jitter = 0, most_latency = 0, pause = 0;
  double loss = 0, preempted = 0, clock_error = 0;
  std::size_t send_room = 0, receive_room = 0, count = 0;
  std::uint32_t slot_bytes = 0;
  int connections = 1;
  std::int64_t silent_fail_ms = 5000;
  std::vector<Nanos> starts;  ///< start times of the ranks
  std::vector<Injection> injections;
  bool groups = false;  ///< each step also creates groups, uses them, and destroys them
  bool serious() const;
  std::string text() const;

 private:
  void draw_churn(Random&);
  void draw_tree(Random&);
  void draw_rivals(Random&);
};

}  // namespace simulate

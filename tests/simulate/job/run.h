// The run of one seed. Used by the program, which gives each a process of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace simulate {

struct Outcome {
  std::uint64_t digest = 0;  ///< hash of the log of events
  std::uint64_t events = 0, calls = 0, failed_calls = 0, shrinks = 0, connections = 0;
  double seconds = 0;  ///< virtual time
  std::string wrong;   ///< "" if everything is as it must be
};

/// `trace`: prints the log of events to stderr.
Outcome run(std::uint64_t seed, bool trace);

}  // namespace simulate

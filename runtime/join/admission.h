// Admission: who may join a job, as a pure state machine without sockets or clocks. Rank 0's process
// (bootstrap.cc) feeds it; tests drive it through every state.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

class Admission {
 public:
  enum class Verdict {
    admitted,   ///< the rank is in
    turn_away,  ///< this one is refused, the job goes on forming
    give_up,    ///< the job cannot form: everybody is told why
  };
  struct Decision {
    Verdict verdict = Verdict::admitted;
    Status why;  ///< not ok unless admitted
  };

  /// `host` and `pid` are rank 0's own; it is seated from the start.
  Admission(const wire::Nonce& job, int world, std::string settings, std::string host, int pid);

  Decision consider(const wire::Join&);
  /// Takes an admission back: what came with the request was not usable after all.
  void vacate(int rank);
  /// A seated rank ended before the job was complete.
  Status lost(int rank) const;
  /// A rank that is missing has ended, as its launcher says.
  Status absent(int rank, int code) const;
  /// The time to join is over.
  Status expired(double seconds) const;
  bool complete() const { return admitted_ == static_cast<int>(entries_.size()); }
  int admitted() const { return admitted_; }
  std::vector<int> missing() const;

 private:
  struct Entry {
    bool taken = false;
    std::string host;
    int pid = 0;
  };
  std::string describe(int rank, const std::string& host, int pid) const;
  wire::Nonce job_;
  std::string settings_;
  std::vector<Entry> entries_;
  int admitted_ = 1;
};

}  // namespace ouro::rt

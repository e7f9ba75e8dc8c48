// Admission: which ranks may join a job, as a pure state machine without sockets or clocks. Used on rank 0 by
// bootstrap.cc and rendezvous_server.cc; tests drive it through every state.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

class Admission {
 public:
  enum class Verdict {
    admitted,   ///< the rank has joined
    turn_away,  ///< this request is refused, the job continues to form
    give_up,    ///< the job cannot form: all ranks receive the reason
  };
  struct Decision {
    Verdict verdict = Verdict::admitted;
    Status why;  ///< not ok unless admitted
  };

  /// `host` and `pid` are those of rank 0, which is admitted from the start.
  Admission(const wire::Nonce& job, int world, std::string settings, std::string host, int pid);

  Decision consider(const wire::Join&);
  /// Revokes an admission because something that was sent with the request is not usable after all.
  void vacate(int rank);
  /// The failure if two processes say that they are the same rank: another rank is then missing, and waiting
  /// for it would be in vain.
  static Status twice(int rank, const std::string& first_host, int first_pid, const std::string& host,
                      int pid);
  /// The failure if an admitted rank ends before the job is complete.
  Status lost(int rank) const;
  /// The failure if a missing rank has ended, as its launcher says.
  Status absent(int rank, int code) const;
  /// The failure when the time to join is over.
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
  wire::Nonce job_;
  std::string settings_;
  std::vector<Entry> entries_;
  int admitted_ = 1;
};

}  // namespace ouro::rt

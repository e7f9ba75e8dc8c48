// The launcher's part in finding where ranks meet: which offers each host has reached, and the one to take.
// Pure. Used by remote.cc.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tools/run/rendezvous.h"

namespace ouro::run {

class RendezvousChoice {
 public:
  explicit RendezvousChoice(std::vector<std::string> hosts);
  /// Of the first host, which reaches its own addresses.
  void offer(std::vector<Offer> offers);
  const std::vector<Offer>& offers() const { return offers_; }
  /// Host `host` has reached the offers of these indexes; those out of range do not count.
  void reached(std::size_t host, const std::vector<int>& indexes);
  bool has_answered(std::size_t host) const { return answers_[host].given; }
  bool complete() const;
  /// Once complete: the first offer that all hosts have reached. Error invalid: who reached which.
  Result<Offer> choose() const;

 private:
  struct Answer {
    std::string host;
    bool given = false;
    std::vector<char> reached;  // by offer: 1 or 0
  };
  std::vector<Offer> offers_;
  std::vector<Answer> answers_;
};

}  // namespace ouro::run

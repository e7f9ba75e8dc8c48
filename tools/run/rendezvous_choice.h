// The launcher's part in finding the meeting place of the ranks: records which offers each host has reached
// and picks one. Pure. Used by remote.cc.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tools/run/rendezvous.h"

namespace ouro::run {

class RendezvousChoice {
 public:
  explicit RendezvousChoice(std::vector<std::string> hosts);
  /// Sets the offers of the first host, which counts as having reached all of them.
  void offer(std::vector<Offer> offers);
  const std::vector<Offer>& offers() const { return offers_; }
  /// Host `host` has reached the offers with these indexes; indexes out of range are ignored.
  void reached(std::size_t host, const std::vector<int>& indexes);
  bool has_answered(std::size_t host) const { return answers_[host].given; }
  bool complete() const;
  /// Call once complete: the first offer that all hosts have reached. Error invalid: the text says which host
  /// reached which offers.
  Result<Offer> choose() const;

 private:
  struct Answer {
    std::string host;
    bool given = false;
    std::vector<char> reached;  // by index of the offer: 1 or 0
  };
  std::vector<Offer> offers_;
  std::vector<Answer> answers_;
};

}  // namespace ouro::run

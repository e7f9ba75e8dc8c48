// MatchedMessage: a message that is set aside for one receiver, until the last handle to it is destroyed.
// Used by the API.
#pragma once
#include <memory>
#include <utility>

#include "runtime/group/group.h"

namespace ouro::rt {

class MatchedMessage {
 public:
  explicit MatchedMessage(std::weak_ptr<Group> group) : group_(std::move(group)) {}
  /// `key`: from Group::match.
  void hold(std::uint64_t key) { key_ = key; }
  MatchedMessage(const MatchedMessage&) = delete;
  MatchedMessage& operator=(const MatchedMessage&) = delete;
  ~MatchedMessage() {
    if (key_ == 0) return;
    if (const auto group = group_.lock()) group->put_back(key_);
  }
  bool is_of(const std::shared_ptr<Group>& g) const { return group_.lock() == g; }
  std::uint64_t key() const { return key_; }

 private:
  std::weak_ptr<Group> group_;
  std::uint64_t key_ = 0;
};

}  // namespace ouro::rt

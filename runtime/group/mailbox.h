// Mailbox: messages of a group as its callers see them. Used by Group and GpuOperations.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/member_records.h"
#include "runtime/group/messages.h"
#include "runtime/group/messages_in_flight.h"
#include "transport/net/fabric.h"

namespace ouro::rt {

/// Posts messages and drives them to their end with the message engine (Messages), which it makes on first
/// use. Thread-safe.
class Mailbox {
  friend struct TestAccess;
  friend class MessageSet;

 public:
  using MakeLinks = std::function<Result<std::unique_ptr<transport::Links>>()>;
  /// `fabric`: of a group on several hosts, or nullptr; `faults`: of this rank, or nullptr.
  Mailbox(const CoreShare& cores, MemberRecords& members, FailureDetector& detector,
          transport::Fabric* fabric, Faults* faults, MakeLinks make_links);

  /// Checks a message's arguments. `memory`: the caller's, of the host or of a device. Errors: invalid.
  Status check(const MessageRequest&, const void* memory = nullptr) const;
  Status check(const Message& m) const { return check(m.request, m.callers_memory()); }
  /// Counts messages in flight. Callers hold a MessagesInFlight::One from before post() until complete()
  /// has returned.
  MessagesInFlight& in_flight() { return in_flight_; }
  // All Message objects live until they are done or the call has returned.
  /// Checks the messages and hands them to the engine; does not wait.
  Status post(const std::vector<Message*>&);
  /// Drives traffic until all are done; on failure withdraws those that are not. `deadline` 0: the group's.
  Status complete(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  /// Makes progress, then as Messages::peek.
  Result<std::optional<Envelope>> probe(int source, int tag);
  /// As probe, but sets the message that it finds aside. See Messages::match.
  Result<std::optional<Messages::Match>> match(int source, int tag);
  void put_back(std::uint64_t key);

  /// `after` is released when the others have received what was sent to them (transport::Links).
  void linger(std::shared_ptr<void> after);
  /// Waits until all messages in flight have ended, each within its deadline; no new ones may begin. Receives
  /// end as `revoked` once nobody is left who could send to them. `finishing` publishes that this rank
  /// sends no more.
  void drain(const std::function<void()>& finishing);
  /// Called after drain(): destroys the links.
  void close();

 private:
  class MessageWaiter;
  /// Whether a message can never do what it still has to do: its peer has left; or this rank closes the
  /// group, and no member that has not left will send anything more.
  bool in_vain(const Message&);
  bool all_sends_over(bool ask);
  /// Fails the group because a message's peer has left, in good order, before it did its part.
  Status left(const Message&);
  /// Errors: those of making its links; revoked (after close()).
  Result<Messages*> engine();
  Status strike(const std::vector<Message*>&, Messages&);

  const CoreShare& cores_;
  MemberRecords& members_;
  FailureDetector& detector_;
  transport::Fabric* const fabric_;
  Faults* const faults_;
  bool only_remote_ = false;  // no other member is on this host
  const MakeLinks make_links_;
  MessagesInFlight in_flight_;
  std::atomic<std::uint64_t> posted_{0};  // of those in flight, how many have been handed to the engine
  std::mutex mutex_;
  bool closed_ = false;
  std::unique_ptr<Messages> messages_;
};

}  // namespace ouro::rt

// Messages of a group as its callers see them. Used by Group and GpuOperations.
#pragma once
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

namespace ouro::rt {

/// Posts messages and drives them to their end, by the message engine, which it makes on first use.
/// Thread-safe.
class Mailbox {
  friend struct TestAccess;

 public:
  using MakeLinks = std::function<Result<std::unique_ptr<transport::Links>>()>;
  /// `fabric`: of a group on several hosts, or nullptr; `faults`: of this rank, or nullptr.
  Mailbox(const CoreShare& cores, MemberRecords& members, FailureDetector& detector,
          transport::Fabric* fabric, Faults* faults, MakeLinks make_links);

  /// What is wrong with a message's arguments. Errors: invalid.
  Status check(const Message&) const;
  /// What is posted is held in flight from before post() until complete() has returned.
  MessagesInFlight& in_flight() { return in_flight_; }
  // All Message objects live until they are done or the call has returned.
  /// Checks and hands over; does not wait.
  Status post(const std::vector<Message*>&);
  /// Drives traffic until all are done; those that are not when it fails are withdrawn. 0: the group's
  /// deadline.
  Status complete(const std::vector<Message*>&, std::chrono::milliseconds deadline);
  Result<std::optional<Envelope>> probe(int source, int tag);
  /// As probe; what is found is set aside. See Messages::match.
  Result<std::optional<Messages::Match>> match(int source, int tag);
  void put_back(std::uint64_t key);

  /// `after` goes when others have what was sent to them (transport::Links).
  void linger(std::shared_ptr<void> after);
  /// What is in flight ends, each message within its deadline; nothing begins any more.
  void drain();
  /// After drain(): the links go.
  void close();

 private:
  class MessageWaiter;
  /// A message's peer has gone, in good order, before it did its part.
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
  std::mutex mutex_;
  bool closed_ = false;
  std::unique_ptr<Messages> messages_;
};

}  // namespace ouro::rt

// MessageSet: messages of one group that are in flight at the same time without a thread for each. Used by
// the API (ouro::MessageSet is a handle to one).
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "runtime/group/group.h"
#include "runtime/group/messages.h"
#include "runtime/group/messages_in_flight.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

/// One thread drives all messages of the set, while there are any. Thread-safe.
class MessageSet {
 public:
  using Then = std::function<void(const Status&, const Envelope&)>;
  /// Throws if there is no thread.
  explicit MessageSet(std::shared_ptr<Group>);
  ~MessageSet();  ///< as that of a group: what is in flight ends as revoked, and so does the group
  MessageSet(const MessageSet&) = delete;
  MessageSet& operator=(const MessageSet&) = delete;

  const std::shared_ptr<Group>& group() const { return group_; }
  /// Posts a message, in the order of the calls of a thread. `then` is called once, here or in the set's
  /// thread, unless this returns an error.
  Status add(const Message&, Then then);
  /// Ends receives for which nothing has arrived as revoked, waits for all other messages, and
  /// refuses new ones.
  void close();

 private:
  class SetWaiter;
  struct SetMessage : Message {
    SetMessage(const Message& m, MessagesInFlight& all, Then t) : Message(m), held(all), then(std::move(t)) {}
    MessagesInFlight::One held;
    Then then;
    Clock::time_point until;
    enum class Stage { posting, open, over } stage = Stage::posting;  // guarded by mutex_
    std::list<SetMessage*>::iterator at;                              // while it is open
    std::shared_ptr<SetMessage> keep;                                 // until it is over
  };
  void serve();
  Status check();
  void finish(SetMessage&, const Status&);
  void finish_ended(Messages&);
  /// Takes messages that are not done back, and ends them with `why`.
  void give_up(Messages&, const Status& why, const std::function<bool(SetMessage&)>& take_back);
  bool inherited() const { return group_->context()->inherited(); }

  const std::shared_ptr<Group> group_;
  Mailbox& mailbox_;
  EndedMessages ended_;
  std::mutex mutex_;  // guards what follows; taken before the engine's
  std::condition_variable at_rest_;
  std::list<SetMessage*> open_;  // in the order of their deadlines
  std::size_t unfinished_ = 0;
  bool serving_ = false, closed_ = false;
  Clock::time_point left_since_{};
  HostStream stream_;  // ends first
};

}  // namespace ouro::rt

// Messages: mailboxes over links with their doorbells, and the death of a peer, which the watch
// thread reports.
#include <atomic>
#include <vector>

#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/member.h"

namespace explore {
namespace messages {

using namespace ouro;
using At = Fault::At;
using What = Fault::What;

struct Setting {
  /// Number of messages that rank 0 sends to rank 1, and that rank 1 sends back.
  std::size_t first = 1, second = 0;
  std::size_t bytes = 64;  ///< size of each; a slot holds 64
  bool sleeps = false, brief = false, wakes = false;
  bool dies = false;  ///< rank 1 may die at any step
  int ranks = 2;      ///< every rank except rank 0 sends `second` messages to it
};

/// Two ranks that each send and receive in one call.
class Exchange final : public Program {
 public:
  explicit Exchange(Setting s) : s_(s) {
    for (int r = 0; r < s.ranks; ++r) groups_.push_back(&members_of(r, s.ranks));
  }
  int fibers() const override { return s_.ranks + s_.dies; }
  Rules rules() const override {
    return {.sleeps = s_.sleeps || s_.wakes,
            .brief = s_.brief,
            .may_miss_wakes = !s_.wakes,
            .mortal = s_.dies ? 2u : 0u};
  }
  void set_up() override {
    job = new Job{.ranks = s_.ranks, .late_sleepers = !s_.wakes};
    job->make_links();
    const Pages& pages = *new Pages(s_.ranks);
    for (int r = 0; r < s_.ranks; ++r) {
      members_[r] = new Member(pages, *groups_[static_cast<std::size_t>(r)]);
      ended_[r] = false;
    }
  }
  void run(int fiber) override {
    if (fiber == s_.ranks) return bury();
    std::vector<rt::Message*> all;
    for (int peer = 0; peer < s_.ranks; ++peer) {
      if (peer == fiber || (peer != 0 && fiber != 0)) continue;
      for (std::size_t i = 0; i < (fiber == 0 ? s_.first : s_.second); ++i)
        all.push_back(message(fiber, peer, true, i));
      for (std::size_t i = 0; i < (fiber == 0 ? s_.second : s_.first); ++i)
        all.push_back(message(fiber, peer, false, i));
    }
    rt::Mailbox& mailbox = members_[fiber]->mailbox;
    Status s = mailbox.post(all);
    if (s.ok()) s = mailbox.complete(all, {});
    if (!s.ok()) return check(s_.dies && s.reason() == Reason::peer_dead, "messages fail");
    for (const rt::Message* m : all) {
      const rt::MessageRequest& r = m->request;
      for (std::size_t b = 0; b < s_.bytes && !r.sends; ++b)
        check(m->carrier.on_host()[b] == value(r.peer, r.tag, b), "a wrong message");
    }
    ended_[fiber] = true;
  }
  void finish() override {
    for (int r = 0; r < s_.ranks; ++r) check(s_.dies || ended_[r], "a rank has not come to its end");
  }

 private:
  static std::byte value(int from, int tag, std::size_t b) {
    return static_cast<std::byte>(from * 80 + tag * 10 + static_cast<int>(b % 8) + 1);
  }
  rt::Message* message(int rank, int peer, bool sends, std::size_t tag) const {
    auto* const data = new std::byte[s_.bytes];
    for (std::size_t b = 0; b < s_.bytes && sends; ++b) data[b] = value(rank, static_cast<int>(tag), b);
    return new rt::Message({.sends = sends, .peer = peer, .tag = static_cast<int>(tag), .bytes = s_.bytes},
                           data);
  }
  /// The part of rank 0's watch thread: ends rank 1 and reports its death.
  void bury() {
    kill(1);
    members_[0]->job_members.note_death(1);
    members_[0]->detector.on_losses(
        {{.rank = 1, .reason = Reason::peer_dead, .text = "gone", .detector = "pidfd"}});
  }

  Setting s_;
  std::vector<const rt::Members*> groups_;
  Member* members_[4] = {};
  bool ended_[4] = {};
};

}  // namespace messages

void add_messages(std::vector<Protocol>* all) {
  using namespace messages;
  const Fault no_release{"a slot is published without release", "full", At::store, What::relax},
      no_acquire{"the look for a slot does not acquire", "full", At::load, What::relax};
  all->push_back({"messages.one",
                  "a message of three slots through two (Mailbox, Messages, doorbells)",
                  new Exchange({.bytes = 192, .brief = true}),
                  false,
                  {no_release,
                   no_acquire,
                   {"the doorbell is not rung", "doorbell", At::change, What::drop},
                   {"the doorbell rings before it says why", "doorbell", At::change, What::relax},
                   {"a slot is given back without release", "freed", At::store, What::relax},
                   {"the look for room does not acquire", "freed", At::load, What::relax},
                   {"a slot is used one chunk early", "freed", At::load, What::add, 1}}});
  all->push_back(
      {"messages.both",
       "two ranks that send to each other and receive",
       new Exchange({.first = 2, .second = 2, .sleeps = true}),
       false,
       {no_release, no_acquire, {"the doorbell is not rung", "doorbell", At::change, What::drop}}});
  all->push_back({"messages.two_senders",
                  "two ranks that send to a third: both ring its doorbell",
                  new Exchange({.first = 0, .second = 1, .brief = true, .ranks = 3}),
                  false,
                  {{"the doorbell is torn in two", "doorbell", At::change, What::tear}, no_release}});
  all->push_back({"messages.wakes",
                  "a message of two slots: no sleeper is left behind, the window of decision 0003 aside",
                  new Exchange({.bytes = 128, .wakes = true}),
                  false,
                  {{"who comes to sleep does not register", "doorbell.sleepers", At::change, What::drop},
                   {"sleepers are not woken", "doorbell", At::wake, What::drop},
                   {"a sleeper does not look again", "doorbell", At::wait, What::drop}}});
  all->push_back(
      {"messages.death",
       "a message to a rank that may die at any step: the sender ends (FailureDetector, abort word)",
       new Exchange({.bytes = 192, .brief = true, .dies = true}),
       false,
       {{"the abort word is not raised", "abort", At::store, What::drop}}});
}

}  // namespace explore

// MessageMatching alone: compared with lists that are walked, and what it returns in each case.
#include "runtime/group/message_matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ouro::rt {
namespace {

constexpr int kAny = MessageRequest::kAny;

MatchableReceive receive_of(int source, int tag, std::size_t bytes = 8) {
  return {.request = {.peer = source, .tag = tag, .bytes = bytes}};
}
UnexpectedMessage message_of(int source, int tag, std::size_t bytes = 8) {
  return {.envelope = {source, tag, bytes}};
}

/// Passes a message to matching as the engine does, and notes the receives that end because it does not fit.
MatchableReceive* arrive(MessageMatching& matching, UnexpectedMessage& m,
                         std::vector<MatchableReceive*>* refused = nullptr) {
  Status misfit;
  while (MatchableReceive* const r = matching.take_receive(m.envelope, &misfit)) {
    if (misfit.ok()) {
      MessageMatching::claim(m, *r);
      return r;
    }
    misfit = {};
    if (refused) refused->push_back(r);
  }
  matching.await_receive(m);
  return nullptr;
}

/// The same rules as walks over lists in the order of the calls.
class WalkedLists {
 public:
  static bool matches(const MessageRequest& r, const Envelope& e) {
    return (r.peer == kAny || r.peer == e.source) && r.tag == e.tag;
  }
  static bool fits(const MessageRequest& r, const Envelope& e) {
    const bool types = r.dtype == e.dtype || r.dtype == DType::u8 || e.dtype == DType::u8;
    return types && (r.exact ? r.bytes == e.bytes : e.bytes <= r.bytes);
  }
  MatchableReceive* take_receive(const Envelope& e, std::vector<MatchableReceive*>* refused) {
    for (auto at = receives.begin(); at != receives.end();) {
      MatchableReceive* const r = *at;
      if (!matches(r->request, e)) {
        ++at;
        continue;
      }
      at = receives.erase(at);
      if (fits(r->request, e)) return r;
      refused->push_back(r);
    }
    return nullptr;
  }
  UnexpectedMessage* first_message(int source, int tag) const {
    for (UnexpectedMessage* const m : messages)
      if (waits(m) && matches({.peer = source, .tag = tag}, m->envelope)) return m;
    return nullptr;
  }
  bool waits(UnexpectedMessage* m) const { return std::find(out.begin(), out.end(), m) == out.end(); }

  std::list<MatchableReceive*> receives;
  std::list<UnexpectedMessage*> messages;
  std::vector<UnexpectedMessage*> out;  // claimed or set aside: they keep their places
};

/// Makes random calls to MessageMatching and to the lists.
class RandomMatching {
 public:
  explicit RandomMatching(unsigned seed) : random_(seed) {}
  void step() {
    const bool receives_prevail = ++steps_ / 20 % 2 == 0;
    switch (random_() % 8) {
      case 0:
        return post();
      case 1:
        return message();
      case 2:
        return set_aside();
      case 3:
        return put_back();
      case 4:
        return withdraw();
      case 5:
        return complete();
      default:
        return receives_prevail ? post() : message();
    }
  }
  int claims = 0, refusals = 0;

 private:
  int below(unsigned n) { return static_cast<int>(random_() % n); }
  DType type() { return random_() % 3 == 0 ? DType::f32 : random_() % 2 ? DType::i32 : DType::u8; }

  void post() {
    receives_.push_back({.request = {.peer = below(3) - 1,
                                     .tag = below(2),
                                     .bytes = static_cast<std::size_t>(below(6)),
                                     .exact = random_() % 4 == 0,
                                     .dtype = type()}});
    MatchableReceive& r = receives_.back();
    if (!keys_.empty() && random_() % 3 == 0) r.request.matched = keys_[random_() % keys_.size()].first;
    UnexpectedMessage* expected = nullptr;
    bool taken = false;
    if (r.request.matched != 0) {
      for (const auto& [key, m] : keys_)
        if (key == r.request.matched) expected = m;
      taken = expected->claimed;
    } else {
      expected = lists_.first_message(r.request.peer, r.request.tag);
    }
    UnexpectedMessage* found = nullptr;
    const Status s = matching_.post(r, &found);
    const bool refused = expected && (taken || !WalkedLists::fits(r.request, expected->envelope));
    ASSERT_EQ(s.ok(), !refused) << s.message();
    if (refused) return;
    ASSERT_EQ(found, expected);
    if (!found) {
      lists_.receives.push_back(&r);
      return;
    }
    ++claims;
    ASSERT_EQ(r.claims, found);
    ASSERT_EQ(found->claimed, &r);
    if (found->key == 0) lists_.out.push_back(found);
  }
  void message() {
    messages_.push_back({.envelope = {below(2), below(2), static_cast<std::size_t>(below(4)), type()}});
    offer(messages_.back());
  }
  void offer(UnexpectedMessage& m) {
    std::vector<MatchableReceive*> refused, expected_refused;
    MatchableReceive* const expected = lists_.take_receive(m.envelope, &expected_refused);
    ASSERT_EQ(arrive(matching_, m, &refused), expected);
    ASSERT_EQ(refused, expected_refused);
    refusals += static_cast<int>(refused.size());
    if (std::find(lists_.messages.begin(), lists_.messages.end(), &m) == lists_.messages.end()) {
      if (expected) return;
      lists_.messages.push_back(&m);
    }
    if (!expected) std::erase(lists_.out, &m);
  }
  void set_aside() {
    const int source = below(3) - 1, tag = below(2);
    UnexpectedMessage* const expected = lists_.first_message(source, tag);
    ASSERT_EQ(matching_.peek(source, tag), expected);
    const auto match = matching_.set_aside(source, tag);
    ASSERT_EQ(match.has_value(), expected != nullptr);
    if (!match) return;
    lists_.out.push_back(expected);
    keys_.emplace_back(match->key, expected);
  }
  void put_back() {
    if (keys_.empty()) return;
    const auto at = keys_.begin() + below(static_cast<unsigned>(keys_.size()));
    const auto [key, m] = *at;
    keys_.erase(at);
    UnexpectedMessage* const freed = matching_.put_back(key);
    ASSERT_EQ(freed, m->claimed ? nullptr : m);
    if (freed) offer(*freed);
  }
  void withdraw() {
    if (receives_.empty()) return;
    auto at = receives_.begin();
    std::advance(at, below(static_cast<unsigned>(receives_.size())));
    UnexpectedMessage* const m = at->claims;
    UnexpectedMessage* const freed = matching_.withdraw(*at);
    lists_.receives.remove(&*at);
    receives_.erase(at);
    ASSERT_EQ(freed, m && m->key == 0 ? m : nullptr);
    if (freed) offer(*freed);
  }
  /// A message that a receive has claimed is received.
  void complete() {
    for (auto at = messages_.begin(); at != messages_.end(); ++at) {
      if (!at->claimed) continue;
      MatchableReceive* const r = at->claimed;
      matching_.forget(*at);
      ASSERT_EQ(r->claims, nullptr);
      std::erase_if(keys_, [&](const auto& k) { return k.second == &*at; });
      std::erase(lists_.out, &*at);
      lists_.messages.remove(&*at);
      messages_.erase(at);
      return;
    }
  }

  std::mt19937 random_;
  int steps_ = 0;
  MessageMatching matching_;
  WalkedLists lists_;
  std::list<MatchableReceive> receives_;
  std::list<UnexpectedMessage> messages_;
  std::vector<std::pair<std::uint64_t, UnexpectedMessage*>> keys_;
};

TEST(MessageMatching, DecidesAsLinearListsDo) {
  int claims = 0, refusals = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    RandomMatching both(seed);
    for (int step = 0; step < 100; ++step) {
      both.step();
      if (testing::Test::HasFatalFailure()) return;
    }
    claims += both.claims, refusals += both.refusals;
  }
  EXPECT_GT(claims, 1'000);
  EXPECT_GT(refusals, 1'000);
}

TEST(MessageMatching, EarlierOfNamedAndAnyReceiveGetsTheMessage) {
  for (const bool any_first : {true, false}) {
    MessageMatching matching;
    MatchableReceive any = receive_of(kAny, 1), named = receive_of(0, 1), other = receive_of(0, 2);
    UnexpectedMessage* found = nullptr;
    for (MatchableReceive* r : {&other, any_first ? &any : &named, any_first ? &named : &any}) {
      ASSERT_TRUE(matching.post(*r, &found).ok());
      ASSERT_EQ(found, nullptr);
    }
    UnexpectedMessage first = message_of(0, 1), second = message_of(0, 1);
    EXPECT_EQ(arrive(matching, first), any_first ? &any : &named);
    EXPECT_EQ(arrive(matching, second), any_first ? &named : &any);
    EXPECT_EQ(matching.waiting_receives(), 1);
  }
}

TEST(MessageMatching, MisfitNamesBothLengthsAndKeepsTheMessage) {
  MessageMatching matching;
  UnexpectedMessage message = message_of(2, 7, 16), *found = nullptr;
  ASSERT_EQ(arrive(matching, message), nullptr);
  MatchableReceive narrow = receive_of(2, 7, 8), longer = receive_of(2, 7, 24), right = receive_of(2, 7, 16);
  longer.request.exact = true;
  const Status overflow = matching.post(narrow, &found);
  EXPECT_EQ(overflow.reason(), Reason::invalid);
  EXPECT_NE(overflow.message().find("has 16 bytes; room for 8"), std::string::npos) << overflow.message();
  const Status inexact = matching.post(longer, &found);
  EXPECT_EQ(inexact.reason(), Reason::mismatch);
  EXPECT_EQ(inexact.failure()->rank, 2);
  EXPECT_EQ(matching.waiting_receives(), 0);
  ASSERT_TRUE(matching.post(right, &found).ok());
  EXPECT_EQ(found, &message);
}

TEST(MessageMatching, KeyReservesItsMessageUntilItIsPutBack) {
  MessageMatching matching;
  UnexpectedMessage first = message_of(0, 1), second = message_of(0, 1), *found = nullptr;
  arrive(matching, first), arrive(matching, second);
  const auto match = matching.set_aside(kAny, 1);
  ASSERT_TRUE(match);
  EXPECT_EQ(matching.peek(0, 1), &second);
  MatchableReceive by_key = receive_of(0, 1), again = receive_of(0, 1);
  by_key.request.matched = again.request.matched = match->key;
  ASSERT_TRUE(matching.post(by_key, &found).ok());
  EXPECT_EQ(found, &first);
  EXPECT_EQ(matching.post(again, &found).reason(), Reason::invalid) << "another receive has it";
  EXPECT_EQ(matching.withdraw(by_key), nullptr) << "the key still reserves it";
  EXPECT_EQ(matching.put_back(match->key), &first);
  matching.await_receive(first);
  EXPECT_EQ(matching.peek(0, 1), &first) << "it has kept its place";
  EXPECT_EQ(matching.put_back(match->key), nullptr);
  EXPECT_EQ(matching.post(again, &found).reason(), Reason::invalid) << "the key is removed";
}

TEST(MessageMatching, ReceivedMessageLeavesNoKey) {
  MessageMatching matching;
  MatchableReceive receive = receive_of(0, 1), again = receive_of(0, 1);
  UnexpectedMessage* found = nullptr;
  {
    UnexpectedMessage message = message_of(0, 1);
    arrive(matching, message);
    const auto match = matching.set_aside(0, 1);
    ASSERT_TRUE(match);
    receive.request.matched = again.request.matched = match->key;
    ASSERT_TRUE(matching.post(receive, &found).ok());
    matching.forget(message);
  }
  EXPECT_NE(matching.post(again, &found).message().find("was received before"), std::string::npos);
  EXPECT_EQ(matching.put_back(again.request.matched), nullptr);
}

TEST(MessageMatching, WithdrawnReceiveFreesTheMessageThatItHadClaimed) {
  MessageMatching matching;
  MatchableReceive first = receive_of(0, 1), second = receive_of(0, 1);
  UnexpectedMessage message = message_of(0, 1), *found = nullptr;
  arrive(matching, message);
  ASSERT_TRUE(matching.post(first, &found).ok());
  ASSERT_TRUE(matching.post(second, &found).ok());
  ASSERT_EQ(found, nullptr);
  EXPECT_EQ(matching.withdraw(first), &message);
  EXPECT_EQ(arrive(matching, message), &second);
}

TEST(MessageMatching, NextReceiveFromASourceIsUncertainBehindOneFromAnySource) {
  MessageMatching matching;
  MatchableReceive any = receive_of(kAny, 1), named = receive_of(0, 1), later = receive_of(kAny, 1);
  UnexpectedMessage* found = nullptr;
  EXPECT_EQ(matching.expected_from(0), nullptr);
  ASSERT_TRUE(matching.post(any, &found).ok());
  ASSERT_TRUE(matching.post(named, &found).ok());
  EXPECT_EQ(matching.expected_from(0), nullptr);
  EXPECT_EQ(matching.withdraw(any), nullptr);
  ASSERT_TRUE(matching.post(later, &found).ok());
  EXPECT_EQ(matching.expected_from(0), &named);
  EXPECT_EQ(matching.expected_from(1), nullptr);
}

TEST(MessageMatching, FullBacklogTakesOnlyWhatIsAskedFor) {
  MessageMatching matching;
  matching.limit_backlog(100);
  UnexpectedMessage message = message_of(0, 1, 60), *found = nullptr;
  matching.hold(message, 60);
  ASSERT_EQ(arrive(matching, message), nullptr);
  EXPECT_EQ(matching.backlog(), 60);
  EXPECT_TRUE(matching.may_take(1, 40, std::nullopt));
  EXPECT_FALSE(matching.may_take(1, 41, std::nullopt));
  EXPECT_TRUE(matching.may_take(1, 41, 1));
  EXPECT_TRUE(matching.may_take(1, 41, kAny));
  EXPECT_FALSE(matching.may_take(1, 41, 2));
  MatchableReceive named = receive_of(1, 5), any = receive_of(kAny, 5);
  ASSERT_TRUE(matching.post(named, &found).ok());
  EXPECT_TRUE(matching.may_take(1, 41, std::nullopt));
  EXPECT_FALSE(matching.may_take(2, 41, std::nullopt));
  ASSERT_TRUE(matching.post(any, &found).ok());
  EXPECT_TRUE(matching.may_take(2, 41, std::nullopt));
  matching.forget(message);
  EXPECT_EQ(matching.backlog(), 0);
}

}  // namespace
}  // namespace ouro::rt

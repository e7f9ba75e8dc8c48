// MatchQueue beside a plain list that is walked.
#include "runtime/group/match_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

namespace ouro::rt {
namespace {

struct Entry {
  MatchQueue<Entry>::Kinds kinds = {};
  MatchQueue<Entry>::Place place = {};
  bool queued = false, stays = false;  // in the model
  std::uint64_t order = 0;
};

class Pair {
 public:
  explicit Pair(std::size_t entries) : entries_(entries) {}
  void step(std::mt19937& random) {
    Entry& e = entries_[random() % entries_.size()];
    const MatchQueue<Entry>::Kinds kinds = {random() % 5, random() % 3};
    switch (random() % 4) {
      case 0:
        if (e.stays) return;
        queue_.append(e, kinds);
        e.kinds = kinds, e.order = ++last_, e.stays = e.queued = true;
        return;
      case 1:
        queue_.take_out(e);
        e.queued = false;
        return;
      case 2:
        if (!e.stays || e.queued) return;
        queue_.put_back(e);
        e.queued = true;
        return;
      default:
        queue_.remove(e);
        e.queued = e.stays = false;
    }
  }
  void compare() {
    std::size_t queued = 0;
    for (const Entry& e : entries_) queued += e.queued;
    ASSERT_EQ(queue_.size(), queued);
    for (std::size_t which = 0; which < 2; ++which)
      for (std::uint64_t kind = 0; kind < 6; ++kind) {
        const Entry* first = nullptr;
        for (const Entry& e : entries_)
          if (e.queued && e.kinds[which] == kind && (!first || e.order < first->order)) first = &e;
        ASSERT_EQ(queue_.first(which, kind), first) << which << " " << kind;
        if (first) {
          ASSERT_EQ(first->place.number(), first->order);
        }
      }
  }

 private:
  MatchQueue<Entry> queue_;
  std::vector<Entry> entries_;
  std::uint64_t last_ = 0;
};

TEST(MatchQueue, MatchesAsALinearListDoes) {
  std::mt19937 random(1);
  for (const std::size_t entries : {1, 2, 3, 12}) {
    Pair both(entries);
    for (int step = 0; step < 20'000; ++step) {
      both.step(random);
      both.compare();
      if (HasFatalFailure()) return;
    }
  }
}

/// Kinds that are not used any more are forgotten beyond a number, those of entries that are out are not.
TEST(MatchQueue, UnusedKindsAreForgottenAndHeldOnesKept) {
  MatchQueue<Entry> queue;
  Entry out, passing;
  queue.append(out, {1, 2});
  queue.take_out(out);
  for (std::uint64_t k = 0; k < 10'000; ++k) {
    queue.append(passing, {k, k});
    EXPECT_EQ(queue.first(0, k), &passing);
    queue.remove(passing);
    EXPECT_EQ(queue.first(0, k), nullptr);
  }
  queue.put_back(out);
  EXPECT_EQ(queue.first(0, 1), &out);
  EXPECT_EQ(queue.first(1, 2), &out);
}

}  // namespace
}  // namespace ouro::rt

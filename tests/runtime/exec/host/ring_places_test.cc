// Places in the ring of a staging buffer: posts of any four rounds in a row are apart, and all of it is used.
#include "runtime/exec/host/ring_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "runtime/core/link_view.h"

namespace ouro::rt {
namespace {

struct Post {
  std::size_t at, bytes;
};

TEST(RingPlaces, PlacesFollowEachOtherAndWrapAtTheEnd) {
  RingPlaces ring(1000);
  ring.begin(300, 0);
  EXPECT_TRUE(ring.used());
  const auto places = [&](int n) {
    std::vector<std::size_t> found;
    for (int i = 0; i < n; ++i) found.push_back(ring.place(static_cast<std::uint64_t>(i)));
    return found;
  };
  EXPECT_EQ(places(7), (std::vector<std::size_t>{0, 300, 600, 0, 300, 600, 0}));
  ring.begin(0, 2);
  EXPECT_FALSE(ring.used());
  ring.begin(200, 9);  // of which none were in the ring
  EXPECT_EQ(places(6), (std::vector<std::size_t>{600, 800, 0, 200, 400, 600}));
  ring.begin(500, 1);
  EXPECT_EQ(places(3), (std::vector<std::size_t>{0, 500, 0})) << "800 and 500 are too many";
  ring.begin(1000, 2);
  EXPECT_EQ(places(2), (std::vector<std::size_t>{0, 0}));
}

TEST(RingPlaces, OperationMayRestartBeforeItsFirstRound) {
  RingPlaces ring(1000), other(1000);
  for (RingPlaces* r : {&ring, &other}) r->begin(300, 0), r->begin(400, 2);
  ring.begin(400, 0);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(ring.place(i), other.place(i)) << i;
}

/// Random operations of random numbers of rounds, of posts of up to `longest` bytes.
TEST(RingPlaces, ConsecutiveRoundsDoNotOverlap) {
  for (const std::size_t longest : {64u, 640u, 8192u})
    for (const std::size_t bytes :
         {StagingView::least_ring(longest), StagingView::least_ring(longest) + 192, 16 * longest}) {
      std::mt19937 random(static_cast<unsigned>(longest + bytes));
      RingPlaces ring(bytes);
      std::deque<Post> open;  // not released by all
      std::size_t farthest = 0;
      std::uint64_t rounds = 0;
      for (int operation = 0; operation < 4000; ++operation) {
        const bool uses = random() % 8 != 0;
        const std::size_t lines = 1 + random() % (longest / 64), span = uses ? 64 * lines : 0;
        ring.begin(span, rounds);
        rounds = random() % (random() % 4 == 0 ? 40 : 3);
        for (std::uint64_t i = 0; i < rounds; ++i) {
          if (open.size() == StagingView::kSlots) open.pop_front();
          if (!uses) {
            open.push_back({0, 0});
            continue;
          }
          const Post post{ring.place(i), span};
          ASSERT_LE(post.at + span, bytes);
          ASSERT_EQ(post.at % 64, 0u);
          for (const Post& o : open)
            ASSERT_TRUE(o.bytes == 0 || post.at + span <= o.at || o.at + o.bytes <= post.at)
                << "operation " << operation << ", round " << i << ": " << span << " bytes at " << post.at
                << " beside " << o.bytes << " at " << o.at << " of " << bytes;
          open.push_back(post);
          farthest = std::max(farthest, post.at + span);
        }
      }
      EXPECT_GT(farthest, bytes - longest);
    }
}

}  // namespace
}  // namespace ouro::rt

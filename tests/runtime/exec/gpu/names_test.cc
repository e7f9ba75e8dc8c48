// By which number errors about the memory of other ranks' devices name a rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// A rank of this process that has left the job is named by its number in the group that needs its memory.
TEST(GpuFailureNames, RankThatLeftIsNamedByItsNumberInTheGroup) {
  OURO_NEEDS_GPU();
  const ForcedPath path("resident");
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  const int both[] = {1, 2};
  auto g = contexts[1].group(both, "both");
  ASSERT_TRUE(g.ok()) << g.status().message();
  contexts.pop_back();
  Floats x;
  ASSERT_TRUE(x.make(contexts[1], 1000).ok());
  EXPECT_THAT(all_reduce(*g, x.view(), x.view()), Fails(Reason::peer_dead, 1));
}

}  // namespace
}  // namespace ouro::test

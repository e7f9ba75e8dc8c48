// The litmus shapes of GPU protocols: the guarantees that they rely on hold in all executions that the PTX
// model allows, and each weakening is detected. The interpreter's memory produces the same outcomes, unless a
// shape says otherwise.
#include "tests/ptx/litmus.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ptx::litmus {
namespace {

TEST(PtxLitmus, ShapesHaveTheOutcomesThatProtocolsRelyOn) {
  for (const Shape& s : shapes())
    for (const std::string& f : judge(s).failures) ADD_FAILURE() << f;
}

/// Wrong claims about a shape are detected.
TEST(PtxLitmus, WrongClaimsAreFound) {
  const auto failures_of = [](Shape s, auto change) {
    change(s);
    return judge(s).failures.size();
  };
  const auto& all = shapes();
  const auto sb =
      std::find_if(all.begin(), all.end(), [](const Shape& s) { return s.name == std::string("SB"); });
  ASSERT_NE(sb, all.end());
  EXPECT_EQ(failures_of(*sb, [](Shape&) {}), 0u);
  EXPECT_EQ(failures_of(*sb, [](Shape& s) { s.never.push_back("r1=0 r2=0"); }), 1u);
  EXPECT_EQ(failures_of(*sb, [](Shape& s) { s.may.push_back("r1=2"); }), 1u);
  EXPECT_EQ(failures_of(*sb,
                        [](Shape& s) {
                          s.weakenings = {{"nothing weaker", "st.release", "st.release"}};
                        }),
            2u);
  const auto error = [&](const char* line) -> std::string {
    try {
      parse({"a shape", "", {{0, 0, line}}, {}, {}, {}});
    } catch (const Violation& v) {
      return v.what();
    }
    return {};
  };
  EXPECT_NE(error("fence.proxy.alias").find("unknown opcode fence.proxy.alias"), std::string::npos);
  EXPECT_NE(error("ld.relaxed.cluster.u32 r1, [x]").find("unknown opcode"), std::string::npos);
  EXPECT_THROW(failures_of(*sb,
                           [](Shape& s) {
                             s.weakenings = {{"nothing there", "atom", "red"}};
                           }),
               Violation);
}

}  // namespace
}  // namespace ptx::litmus

// The main() of test programs that ctest runs as a whole: returns 77 if every test was skipped, so that a
// failure or a crash after the first skip does not count as skipped.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (failed == 0 && all.skipped_test_count() > 0 && all.successful_test_count() == 0) return 77;
  return failed;
}

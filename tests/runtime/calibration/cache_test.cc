// The record that an earlier job has stored is found again, and refused if anybody else could have
// written it.
#include "runtime/calibration/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using testing::HasSubstr;

class Cache : public testing::Test {
 protected:
  Cache() {
    std::string pattern = testing::TempDir() + "ouro-calibration-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~Cache() override { std::filesystem::remove_all(root_); }
  /// Created with its parents when the first record is stored.
  std::string directory() const { return root_ + "/new/ouro"; }
  static std::string refusal(const CalibrationCache& cache) {
    const auto loaded = cache.load();
    return loaded.ok() ? "" : loaded.status().message();
  }
  std::string root_;
};

TEST_F(Cache, KeepsOneRecordForEachKey) {
  const CalibrationCache one(directory(), "one"), other(directory(), "other");
  const auto none = one.load();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  Calibration changed = invented_record();
  changed.context_switch = 900;
  ASSERT_TRUE(one.store(changed).ok());
  ASSERT_TRUE(one.store(invented_record()).ok());  // replaces the first record
  EXPECT_EQ(**one.load(), invented_record());
  EXPECT_FALSE((*other.load()).has_value());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory())) files += entry.is_regular_file();
  EXPECT_EQ(files, 1);
}

TEST_F(Cache, WithoutADirectoryKeepsNothing) {
  const CalibrationCache nowhere("", "key");
  EXPECT_TRUE(nowhere.store(invented_record()).ok());
  EXPECT_FALSE((*nowhere.load()).has_value());
}

TEST_F(Cache, RefusesFilesThatOtherUsersMayWrite) {
  const CalibrationCache cache(directory(), "key");
  ASSERT_TRUE(cache.store(invented_record()).ok());
  ASSERT_EQ(::chmod(cache.file().c_str(), 0622), 0);
  EXPECT_THAT(refusal(cache), HasSubstr("others may write to it (mode 622)"));
  ASSERT_EQ(::chmod(cache.file().c_str(), 0600), 0);
  ASSERT_EQ(::chmod(directory().c_str(), 0777), 0);
  EXPECT_THAT(refusal(cache), HasSubstr("others may write to it (mode 777)"));
  EXPECT_FALSE(cache.store(invented_record()).ok());
  ASSERT_EQ(::chmod(directory().c_str(), 0700), 0);
  EXPECT_EQ(refusal(cache), "");
  std::filesystem::rename(cache.file(), directory() + "/aside");
  std::filesystem::create_symlink("aside", cache.file());
  EXPECT_THAT(refusal(cache), HasSubstr("a symbolic link"));
}

TEST_F(Cache, RefusesDamagedRecordsAndThoseOfOtherMachines) {
  const CalibrationCache cache(directory(), "key");
  ASSERT_TRUE(cache.store(invented_record()).ok());
  const auto write = [&](const std::string& text) { std::ofstream(cache.file()) << text; };
  write("half a rec");
  EXPECT_THAT(refusal(cache), HasSubstr("not a JSON object"));
  write(to_json(invented_record(), "another key"));
  EXPECT_THAT(refusal(cache), HasSubstr("of another machine or system"));
  Calibration part = invented_record();
  part.pair[1].ring = {};
  write(to_json(part, "key"));
  EXPECT_THAT(refusal(cache), HasSubstr("figures are missing"));
}

TEST_F(Cache, StoreFailsIfTheDirectoryCannotBeMade) {
  std::ofstream(root_ + "/new") << "a file, where a directory is to be";
  EXPECT_FALSE(CalibrationCache(directory(), "key").store(invented_record()).ok());
}

TEST(CacheKey, NamesProcessorKernelAndTopology) {
  const std::string key = calibration_key("2 processors");
  EXPECT_THAT(key, HasSubstr("kernel "));
  EXPECT_THAT(key, HasSubstr("; 2 processors"));
  EXPECT_EQ(key, calibration_key("2 processors"));
}

}  // namespace
}  // namespace ouro::rt

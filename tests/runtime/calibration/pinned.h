// A directory for records of one test, and the variable that pins one. Used by the tests of calibration.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/calibration/record.h"

namespace ouro::test {

class PinnedRecords {
 public:
  PinnedRecords() : path_(testing::TempDir() + "ouro-records-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~PinnedRecords() {
    ::unsetenv("OURO_CALIBRATION");
    std::filesystem::remove_all(path_);
  }
  PinnedRecords(const PinnedRecords&) = delete;
  PinnedRecords& operator=(const PinnedRecords&) = delete;
  const std::string& path() const { return path_; }
  /// Jobs that begin now use this record. Returns its file.
  std::string pin(const rt::Calibration& c, const char* name = "record") const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file) << rt::to_json(c, "invented");
    ::setenv("OURO_CALIBRATION", file.c_str(), 1);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace ouro::test

// Two ranks on different (simulated) hosts in one process. Used by the tests of lingering and of scarcity.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {

/// Two ranks of this process that treat each other as ranks of other hosts, over the loopback interface.
class TwoHosts {
 public:
  TwoHosts() {
    setenv("OURO_INSECURE", "1", 1);
    setenv("OURO_SOCKET_IFNAME", "lo", 1);
  }
  ~TwoHosts() {
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
    for (const char* name : {"OURO_INSECURE", "OURO_SOCKET_IFNAME"}) unsetenv(name);
  }
  Result<Context> join(int rank) const {
    InitOptions o = options(rank, 2, id_);
    o.deadline = 2 * kHang;
    o.local_rank = 0, o.local_size = 1;
    o.host_id = "host-" + std::to_string(rank);
    o.rendezvous = "file:" + file_.string();
    return Context::create(o);
  }

  /// Joins both ranks; a context is empty if its rank cannot join, which fails the test.
  static std::vector<Context> contexts() {
    const TwoHosts hosts;
    std::vector<Context> all(2);
    on_threads(2, [&](int rank) {
      auto joined = hosts.join(rank);
      ASSERT_TRUE(joined.ok()) << joined.status().message();
      all[static_cast<std::size_t>(rank)] = std::move(*joined);
    });
    return all;
  }

 private:
  UniqueId id_ = new_id();
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("ouro-two-hosts-test-" + std::to_string(getpid()));
};

}  // namespace ouro::test

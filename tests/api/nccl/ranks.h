// Ranks of a communicator, driven in three ways: as processes, as threads, or by one thread in groups. Used
// by the tests of libnccl.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "nccl.h"

namespace ouro::test {

/// A call that must succeed; the first ends the test where it does not.
#define OURO_OK(call)                                          \
  do {                                                         \
    ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr); \
  } while (false)
#define EXPECT_OK(call)                                        \
  do {                                                         \
    EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr); \
  } while (false)

/// A value that its type has no name for, as programs in C may pass it.
template <class Enum>
Enum beyond(int value) {
  Enum e;
  static_assert(sizeof e == sizeof value);
  std::memcpy(&e, &value, sizeof e);
  return e;
}

enum class How { processes, threads, one_thread };
std::ostream& operator<<(std::ostream&, How);

/// One step of all ranks.
struct Step {
  std::string name;
  std::function<void(int rank)> prepare;                   ///< before
  std::function<ncclResult_t(int rank, ncclComm_t)> call;  ///< runs it, or defers it, for one rank
  std::function<void(int rank)> verify;                    ///< after
};
using Steps = std::function<std::vector<Step>(int size)>;

/// Makes `steps` known by `name` to child processes, too.
struct KnownSteps {
  KnownSteps(const char* name, Steps);
};
/// A child process goes through them; its exit code.
int run_steps(int rank, int size, ncclUniqueId id, const std::string& name);
/// All ranks go through all steps. One thread: the calls of a step stand in one group.
void run(How, int size, const std::string& name);

/// `body` for each rank, in a thread of its own, with a communicator that is made before and destroyed after,
/// unless the body sets it to null.
void in_threads(int size, const std::function<void(int rank, ncclComm_t&)>& body);

/// What a child process does; returns its exit code.
using Scenario = int (*)(int rank, int size, ncclUniqueId id, const std::string& argument);
struct KnownScenario {
  KnownScenario(const char* name, Scenario);
};
/// Child processes run a scenario as ranks 0 to size-1; their exit codes, or minus the signal that ended
/// them.
std::vector<int> spawn(int size, const std::string& scenario, const std::string& argument = "-");

/// Polls, at most for so long, until the communicator is at rest.
ncclResult_t settle(ncclComm_t comm, double seconds = 20);

}  // namespace ouro::test

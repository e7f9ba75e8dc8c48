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

/// A call that must succeed; the first of the two macros ends the test on failure.
#define OURO_OK(call)                                          \
  do {                                                         \
    ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr); \
  } while (false)
#define EXPECT_OK(call)                                        \
  do {                                                         \
    EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr); \
  } while (false)

/// A value outside of an enumeration, as C programs may pass it.
template <class Enum>
Enum beyond(int value) {
  Enum e;
  static_assert(sizeof e == sizeof value);
  std::memcpy(&e, &value, sizeof e);
  return e;
}

enum class How { processes, threads, one_thread };
std::ostream& operator<<(std::ostream&, How);

/// One step that all ranks make.
struct Step {
  std::string name;
  std::function<void(int rank)> prepare;                   ///< runs before the call
  std::function<ncclResult_t(int rank, ncclComm_t)> call;  ///< makes or defers the call for one rank
  std::function<void(int rank)> verify;                    ///< runs after the call
};
using Steps = std::function<std::vector<Step>(int size)>;

/// Registers `steps` by `name`, so that child processes can run them too.
struct KnownSteps {
  KnownSteps(const char* name, Steps);
};
/// Runs the steps in a child process; returns its exit code.
int run_steps(int rank, int size, ncclUniqueId id, const std::string& name);
/// Runs all steps on all ranks. one_thread: the calls of a step are in one group.
void run(How, int size, const std::string& name);

/// Runs `body` for each rank, in a thread of its own, with a communicator that is created before and
/// destroyed after it, unless the body sets it to null.
void in_threads(int size, const std::function<void(int rank, ncclComm_t&)>& body);

/// The program of a child process; returns its exit code.
using Scenario = int (*)(int rank, int size, ncclUniqueId id, const std::string& argument);
struct KnownScenario {
  KnownScenario(const char* name, Scenario);
};
/// Runs a scenario in child processes as ranks 0 to size-1; returns their exit codes, or minus the signal
/// that ended them.
std::vector<int> spawn(int size, const std::string& scenario, const std::string& argument = "-");

/// Polls until the communicator is no longer in progress, for at most `seconds`; returns its state.
ncclResult_t settle(ncclComm_t comm, double seconds = 20);

}  // namespace ouro::test

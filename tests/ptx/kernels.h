// The project's kernels as nvcc made them: which entry a Kernel is, a launch of it, faults in its text. Used
// by kernels_test.cc, updates_test.cc and collect_test.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/gpu.h"
#include "tests/ptx/machine.h"

namespace ptx {

/// What all runs of this process did.
struct Totals {
  std::uint64_t instructions = 0, strong = 0, stale = 0;
  std::vector<std::string> kernels;  ///< that ran, by their entries
  int planted = 0, found = 0;        ///< faults
};
Totals& totals();

/// OURO_PTX_FIRST, the seed of the order in which lanes run; 1 if it is not set.
std::uint64_t first_seed();
template <class Args>
std::vector<std::byte> bytes_of(const Args& args) {
  const auto* p = reinterpret_cast<const std::byte*>(&args);
  return {p, p + sizeof args};
}

/// PTX/NAME.ptx, PTX being OURO_PTX; empty where there is none.
std::string read_ptx(const std::string& name);
/// The entry of a kernel in this text, or nullptr.
const Function* entry_of(Module&, const ouro::gpu::Kernel&);

/// One run of streams over memory that `lay_out` names; adds to the totals. A Violation comes through.
void run_streams(std::uint64_t seed, const std::vector<Stream>&, const std::function<void(Memory&)>& lay_out,
                 std::uint64_t limit = 400'000'000,
                 const std::function<void(const Lane&, const Instr&, std::uint64_t)>& watch = {});

/// A change of one kernel's text: `from`, a regular expression, becomes `to`.
struct Fault {
  const char* what;
  std::string kernel;  ///< its name in all_kernels()
  std::string from, to;
  int which = -1;  ///< the n-th place only; -1: all of them
};
/// Plants it and calls `run` with seeds from 1 on until that says what was wrong. A failure of the test if
/// nothing is found, or if there is nothing to change.
void expect_found(const std::string& text, const Fault&,
                  const std::function<std::optional<std::string>(Module&, std::uint64_t seed)>& run,
                  std::uint64_t seeds = 20);

}  // namespace ptx

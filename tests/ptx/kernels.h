// The project's kernels as compiled by nvcc: the entry of each Kernel, a launch of it, faults in its text.
// Used by kernels_test.cc, updates_test.cc and collect_test.cc.
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

/// Totals of all runs of this process.
struct Totals {
  std::uint64_t instructions = 0, strong = 0, stale = 0;
  std::vector<std::string> kernels;  ///< entries of the kernels that ran
  int planted = 0, found = 0;        ///< number of faults
};
Totals& totals();

/// OURO_PTX_FIRST, the seed of the order in which lanes run; 1 if it is not set.
std::uint64_t first_seed();
template <class Args>
std::vector<std::byte> bytes_of(const Args& args) {
  const auto* p = reinterpret_cast<const std::byte*>(&args);
  return {p, p + sizeof args};
}

/// The content of NAME.ptx in the folder OURO_PTX; empty if there is none.
std::string read_ptx(const std::string& name);
/// The entry of a kernel in this text, or nullptr.
const Function* entry_of(Module&, const ouro::gpu::Kernel&);

/// Runs streams once, over memory that `lay_out` adds; adds to the totals. Throws the
/// interpreter's Violation.
void run_streams(std::uint64_t seed, const std::vector<Stream>&, const std::function<void(Memory&)>& lay_out,
                 std::uint64_t limit = 400'000'000,
                 const std::function<void(const Lane&, const Instr&, std::uint64_t)>& watch = {});

/// A change of one kernel's text: `to` replaces the regular expression `from`.
struct Fault {
  const char* what;
  std::string kernel;  ///< name of the kernel in all_kernels()
  std::string from, to;
  int which = -1;  ///< only the n-th match; -1: all of them
};
/// Plants the fault and calls `run` with seeds from 1 on until it reports what is wrong. Fails the test if
/// nothing is found, or if the fault has no match.
void expect_found(const std::string& text, const Fault&,
                  const std::function<std::optional<std::string>(Module&, std::uint64_t seed)>& run,
                  std::uint64_t seeds = 20);

}  // namespace ptx

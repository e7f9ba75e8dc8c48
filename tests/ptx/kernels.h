// The project's kernels as nvcc made them: which entry a Kernel is, and a launch of it. Used by
// kernels_test.cc and faults_test.cc.
#pragma once
#include <cstdint>
#include <functional>
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
};
Totals& totals();

/// PTX/NAME.ptx, PTX being OURO_PTX; empty where there is none.
std::string read_ptx(const std::string& name);
/// The entry of a kernel in this text, or nullptr.
const Function* entry_of(Module&, const ouro::gpu::Kernel&);
/// Changes in the text of one entry; false: there was nothing to change. `which`: the n-th place, or -1: all.
struct Edit {
  std::string from, to;
  int which = -1;
};
bool edit(std::string& text, std::string_view kernel, const Edit&);

/// One run of streams over memory that `lay_out` names; adds to the totals. A Violation comes through.
void run_streams(std::uint64_t seed, const std::vector<Stream>&, const std::function<void(Memory&)>& lay_out,
                 std::uint64_t limit = 400'000'000);

}  // namespace ptx

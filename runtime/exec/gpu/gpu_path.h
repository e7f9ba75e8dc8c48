// Which path an operation on device memory takes: from what all ranks have said of their GPUs, and from what
// the user forces. Used by the GPU executor; a pure function, so all ranks that agree on a call agree on it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/select.h"

namespace ouro::rt {

/// alone: a group of one rank. leader: all ranks have one GPU. resident: each has its own and can map the
/// others', and the collective is even. copies: the same, for all_gather and broadcast of many bytes.
/// stream: each can map the others' GPUs. hierarchy: within each host on its GPUs, and what has to cross, of
/// which each rank has its share, through the host. staged: through the host.
enum class GpuPath : std::uint8_t { alone, leader, resident, copies, stream, hierarchy, staged };
inline constexpr int kGpuPaths = 7;
/// As OURO_GPU_PATH spells them.
std::string_view name(GpuPath);
/// What is carried out on the path `copies`: each rank writes to the one after it alone.
flow::Algorithm copies_algorithm(Collective);

/// The GPUs of a group's ranks, as the control pages show them: the same on all ranks.
struct GpuTopology {
  int ranks = 1;
  int without = -1;        ///< a rank that has no GPU
  bool one = true;         ///< GPU for all
  bool reach = true;       ///< each can map the others'
  bool wrong = false;      ///< some pair, as the driver reports, but reads wrong data there
  bool values = true;      ///< streams can wait for values
  bool words = false;      ///< and do so in device memory: each rank's can, and each reaches the others'
  bool concurrent = true;  ///< kernels of all ranks run at the same time: those on one GPU are of one
                           ///< process, or share its context (MPS)
  bool apart = true;       ///< each rank has a GPU of its own
  bool queues = true;      ///< ranks that are threads on one GPU do not crowd its hardware queues
  bool waits = true;       ///< streams may wait: no process has too few hardware queues for that
  bool multicast = true;   ///< each has multicast objects
  int channels = 0;        ///< blocks of a rank that fit at the same time
  int mates =
      0;  ///< ranks of each of several hosts, whose GPUs do the part within it; 0: there is no such part
};
/// Whether the streams of the rank's process share so few hardware queues of its GPU that one which waits may
/// hold up all others.
bool crowded(const Context&, int world_rank);
/// Whether another rank is a thread of the same process and has the same GPU.
bool shares_gpu(const Context&, int world_rank);
/// Whether ranks w and v are threads of one process that share a limited number of hardware queues of a GPU:
/// a copy of one may lie behind a wait of the other's for the host, which waits for that copy.
bool tangled(const Context&, int w, int v);
GpuTopology gpu_topology(const Context&, const std::vector<int>& world_ranks);
/// From so many bytes of a result (of reduce_scatter: of all results) the path `hierarchy` is chosen: below,
/// two more launches take longer than copies that they save. A start value, not measured.
inline constexpr std::size_t kHierarchyFrom = 256 << 10;

/// Decides which path serves an operation; what is forced and cannot serve is an error.
class GpuPathChooser {
 public:
  /// `forced`: a path by name, which then takes all operations of groups of two ranks and more; or "auto".
  /// `copy_bytes`: of a result, from which on the path `copies` is chosen. `rank`: whose calls these are.
  /// `packets`: whether ranks that are threads on one GPU take the path `resident` for small all-reduces.
  GpuPathChooser(GpuTopology, std::string_view forced, std::size_t copy_bytes = SIZE_MAX, int rank = 0,
                 bool packets = true);

  /// `why`, if given, is filled in. Errors: `unsupported`, where a rank has no GPU, or where the forced path
  /// cannot serve this call: the text says why, and which paths can.
  Result<GpuPath> choose(const Operation&, const Choice&, std::string* why = nullptr) const;
  const GpuTopology& topology() const { return topology_; }
  bool forced() const { return forced_.has_value(); }

 private:
  /// Why a path cannot serve a call; nullptr if it can.
  const char* obstacle(GpuPath, const Operation&, const Choice&) const;
  /// Whether resident kernels can number the chunks of a call.
  bool resident_has_numbers(const Operation&, const Choice&) const;
  /// Why a switch between GPUs cannot carry it out, where resident kernels can.
  const char* switch_obstacle(const Operation&) const;
  /// Whether ranks on one GPU exchange an operation by packets: a launch each, where the leader's path has
  /// one more. Its arenas are as large as that needs.
  bool by_packets(const Operation&, const Choice&) const;
  Status refuse(GpuPath, const char* obstacle, const Operation&, const Choice&) const;

  GpuTopology topology_;
  std::optional<GpuPath> forced_;
  std::size_t copy_bytes_;
  int rank_;
  bool packets_;
};

}  // namespace ouro::rt

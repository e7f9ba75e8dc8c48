// References to exported device memory, and the handles with which another process maps it. Used by exports,
// imports and the GPU executors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::rt {

/// Refers to a buffer in an export of a rank.
struct GpuRef {
  std::uint64_t id = 0;       ///< of the export; 0: other processes cannot map the buffer
  std::uint64_t offset = 0;   ///< in the export
  std::uint64_t address = 0;  ///< valid in the process of that rank only
};

/// The handles of one export. They are sent over the authenticated local socket and nowhere else. One of the
/// three kinds is set.
struct ExportHandles {
  static constexpr std::size_t kMaxPieces = 65'536;  ///< of one export
  struct Piece {
    std::uint64_t bytes = 0;
    Fd fd;
  };
  std::uint64_t bytes = 0;         ///< size of the export
  Fd fd;                           ///< for a block: the descriptor of its VMM memory
  std::vector<Piece> pieces;       ///< for registered VMM memory: the descriptors of some pieces, in order
  gpu::IpcHandle ipc_handle = {};  ///< for other memory: the legacy handle of the allocation
};

/// Requests the handles of an export. If the export is in pieces, the answer has those of some of them, from
/// piece `first` on.
using RequestHandles = std::function<Result<ExportHandles>(std::size_t first)>;

}  // namespace ouro::rt

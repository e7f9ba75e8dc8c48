// The two ends of the conversation of bench_gpu_floor's two processes. Used by process_rows.cc and
// serve_process_rows.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/device/gpu.h"

namespace ouro::bench {

/// What the first process asks of the second.
struct Request {
  enum class Kind : std::uint8_t {
    open_ipc,   ///< open `handle`, then close it; replies with the times
    import_fd,  ///< map the descriptor, then unmap it; the same
    keep,       ///< map the descriptor and keep it for `hops`
    hops,       ///< enqueue `count` answers, reply, wait for their end, reply
  } kind = Kind::keep;
  std::size_t bytes = 0;
  gpu::IpcHandle handle = {};
  std::uint32_t turn = 0, count = 0;  ///< the words of the hops are turn + 1 to turn + count
  bool launches = false;              ///< a kernel in each hop
};
struct Reply {
  bool good = false;
  double map_us = 0, unmap_us = 0;
  char why[200] = {};
};

/// Where the two words of the hops are in the memory that both have mapped.
inline constexpr std::size_t kPing = 0, kPong = 128, kPeerBytes = std::size_t{2} << 20;

/// Sends or receives one message over a socket, with a descriptor if `fd` is one. Errors: peer_dead,
/// deadline.
Status send_message(int socket, const void* data, std::size_t bytes, int fd = -1);
Status receive_message(int socket, void* data, std::size_t bytes, Fd* fd = nullptr);

/// Enqueues the smallest kernel.
Status launch_small(gpu::Gpu&, gpu::Stream);

}  // namespace ouro::bench

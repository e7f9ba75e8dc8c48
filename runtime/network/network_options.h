// NetworkOptions: how a rank reaches other hosts, as its user has configured it. Used by Network
// and its parts.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "transport/wire/keys.h"

namespace ouro::rt {

struct NetworkOptions {
  wire::Nonce job{};
  int rank = 0, world = 1;
  std::uint32_t generation = 0;
  wire::Secret secret;         ///< of this job alone; none: that of the environment
  std::string rendezvous;      ///< "host:port", "ip:port" or "file:PATH"
  std::string host_id;         ///< ranks with the same id share memory
  std::string fabric = "tcp";  ///< or ucx
  bool tls = false;
  int gpu = -1;                     ///< this rank's device, or -1
  std::string gpu_direct = "auto";  ///< OURO_GPU_DIRECT: whether its memory is handed to the fabric
  int connections = 1;              ///< of the tcp fabric, to each peer
  bool checksums = true;
  std::chrono::milliseconds silent_warn{1000}, silent_fail{5000};
  std::chrono::milliseconds join{0};  ///< time within which all ranks start
};

}  // namespace ouro::rt

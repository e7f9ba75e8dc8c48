// Local control sockets: abstract AF_UNIX SEQPACKET names, frames with descriptors, and the check of the
// peer's user. Used by bootstrap and by the context's watch thread.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/core/wait.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

struct Credentials {
  int pid = 0;
  unsigned uid = 0;
};

/// A listening socket under an abstract name (no file; it ends with its owner). Errors: refused (the name is
/// taken), resource.
Result<Fd> listen_local(const std::string& name);
/// A connected socket; an invalid Fd if nothing listens (yet), or if there is no descriptor: errno
/// says which.
Fd connect_local(const std::string& name);
/// The true identity of the peer (SO_PEERCRED).
Credentials credentials(int fd);
/// Refuses a peer that runs under another user.
Status check_peer(int fd);

/// Sends one frame with up to kMaxFds descriptors, which the caller continues to own.
Status send_frame(int fd, const wire::Frame&, const std::vector<int>& fds = {});
struct Incoming {
  wire::Frame frame;
  std::vector<Fd> fds;
};
inline constexpr int kMaxFds = static_cast<int>(wire::Pieces::kMost);
/// Receives one frame; waits until `deadline`. Errors: peer-dead (hang-up), deadline, refused (a malformed
/// frame, or more descriptors than expected: all of them are closed), resource (no descriptor is left here
/// for those passed).
Result<Incoming> recv_frame(int fd, Clock::time_point deadline);

}  // namespace ouro::rt

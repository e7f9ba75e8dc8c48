// LostRank: a rank of another host that was given up. Used by the network and by those whom it notifies.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace ouro::rt {

/// A rank of another host that was given up, and the reason.
struct LostRank {
  int rank = -1;
  Reason reason = Reason::peer_dead;
  std::string text, detector;
};

}  // namespace ouro::rt

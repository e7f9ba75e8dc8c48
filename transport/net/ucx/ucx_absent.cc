// The ucx fabric in a build without UCX: requesting it is an error. See ucx.h.
#include "transport/net/ucx/ucx.h"

namespace ouro::transport {

Status ucx_usable() {
  return unsupported("OURO_FABRIC=ucx: this build has no UCX (configure with -DOURO_UCX=on); expected tcp");
}

Status hands_over(const DeviceQuery&) { return unsupported("this build has no UCX"); }

Result<std::unique_ptr<UcxFabric>> UcxFabric::create(Options) { return ucx_usable(); }

}  // namespace ouro::transport

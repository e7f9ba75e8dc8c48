// The ucx fabric of a build without UCX: asking for it is an error. See ucx.h.
#include "transport/net/ucx/ucx.h"

namespace ouro::transport {

Result<std::unique_ptr<UcxFabric>> UcxFabric::create(Options) {
  return Status(unsupported("OURO_FABRIC=ucx: this build has no UCX (configure with -DOURO_UCX=on)"));
}

}  // namespace ouro::transport

// Connections of the ucx fabric: how they are made, end, and are made again. See ucx_fabric.h.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/core/log.h"
#include "transport/net/ucx/ucx_fabric.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;
// Delay before an attempt to reconnect. Mostly a connection ends because the peer has died, which control
// lines detect within half a second. By then the peer is dropped, and no second endpoint was made, which
// would prevent a clean end of the worker (UcxWorker::abandon).
constexpr auto kAgain = 1s;

}  // namespace

void Ucx::connect(int peer, std::span<const std::uint8_t> address) {
  {
    std::lock_guard lock(exchange_.lock());
    if (address.empty()) return;
    Peer& p = peers_[static_cast<std::size_t>(peer)];
    p.takes_device = takes_ != Takes::none && address.front() == static_cast<std::uint8_t>(takes_);
    if (takes_ != Takes::none && !p.takes_device)
      OURO_INFO(NET, "GPU memory for rank {} goes through the host: it hands none to UCX, or another kind",
                peer);
    p.address.assign(address.begin() + 1, address.end());
  }
  kick(peer);
}

void Ucx::drop(int peer) {
  std::lock_guard lock(exchange_.lock());
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.dropped = true;
  close(p);
}

bool Ucx::connected(Peer& p) {
  if (p.dropped || p.address.empty() || !exchange_.talks_to(p.rank)) return false;
  if (!p.broken.ok()) {
    any_broken_ |= !p.reported;  // there were no links to it when it failed
    return false;
  }
  if (p.endpoint) return !p.ended;
  if (p.ended || (p.resumed && exchange_.gone(p.rank))) return false;
  if (p.pause > Clock::duration{} && Clock::now() < p.again) return false;
  p.anew |= p.resumed;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(p.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &p;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t why) {
    Peer& peer = *static_cast<Peer*>(arg);
    peer.fabric->ended(peer, peer.fabric->ucx_.what(why));
  };
  if (const ucs_status_t e = ucx_->ucp_ep_create(ucx_, &params, &p.endpoint); e != UCS_OK) {
    p.endpoint = nullptr;
    ended(p, ucx_.what(e));
    return false;
  }
  return true;
}

/// Also called from within UCX, so bury() does the rest.
void Ucx::break_with(Peer& p, Status why) {
  if (p.broken.ok()) p.broken = std::move(why);
  any_broken_ = true;
}

/// Also called from within UCX. Whether the peer is alive is decided elsewhere.
void Ucx::ended(Peer& p, std::string why) {
  if (!std::exchange(p.ended, true)) p.why = std::move(why);
  any_broken_ = true;
}

/// Prepares to reconnect: unfinished frames, which may not have arrived, are sent again on the
/// next connection.
void Ucx::resume(Peer& p) {
  OURO_INFO(NET, "the UCX connection of rank {} to rank {} has ended: {}", options_.rank, p.rank, p.why);
  close(p);
  exchange_.resume(p.rank);
  p.ended = false;
  p.resumed = true;
  const auto now = Clock::now();
  if (p.pause == Clock::duration{}) p.failing = now;
  p.pause = kAgain;
  p.again = now + p.pause;
  if (now - p.failing > options_.patience && exchange_.talks_to(p.rank))
    break_with(
        p, Status(Failure{.reason = Reason::link_lost,
                          .text = fmt::format("no connection could be made for {:.1f} s: {}",
                                              std::chrono::duration<double>(now - p.failing).count(), p.why),
                          .rank = p.rank,
                          .detector = "ucx"}));
}

void Ucx::bury() {
  std::erase_if(closing_, [&](void* request) {
    const bool done = ucx_->ucp_request_check_status(request) != UCS_INPROGRESS;
    if (done) ucx_->ucp_request_free(request);
    return done;
  });
  if (!std::exchange(any_broken_, false)) return;
  for (Peer& p : peers_) {
    if (p.ended && !p.dropped) resume(p);
    if (p.broken.ok()) continue;
    close(p);
    if (p.dropped || p.reported || !exchange_.talks_to(p.rank)) continue;
    p.reported = true;
    options_.failed(p.rank, p.broken);
  }
}

void Ucx::close(Peer& p, unsigned flags) {
  if (!p.endpoint) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  void* const request = ucx_->ucp_ep_close_nbx(std::exchange(p.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

}  // namespace ouro::transport

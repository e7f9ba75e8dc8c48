// Makes a network: the job's secret, the interface, the listener, the fabric. See network.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <thread>
#include <utility>

#include "runtime/core/deadline.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/network/interfaces.h"
#include "runtime/network/network.h"
#include "transport/net/tcp/tcp.h"
#include "transport/net/ucx/ucx.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds kNameComes = 60s, kAskAgain = 500ms;

std::string interface_of(const std::string& address) {
  auto all = list_interfaces();
  if (!all.ok()) return "";
  for (const Interface& i : *all)
    if (std::find(i.addresses.begin(), i.addresses.end(), address) != i.addresses.end()) return i.name;
  return "";
}

/// Name services learn of a cluster's hosts as these start, so a name may become known only after this rank
/// has started.
Result<std::string> rendezvous_in_time(const NetworkOptions& o) {
  const auto end = deadline_after(std::min(o.join, kNameComes));
  for (bool said = false;;) {
    auto place = rendezvous_address(o.rendezvous);
    const bool unknown = !place.ok() && place.status().reason() == Reason::peer_unresponsive;
    if (!unknown || Clock::now() >= end) return place;
    if (!std::exchange(said, true))
      OURO_WARN("rendezvous: {}; trying again for {:.0f} s", place.status().failure()->text,
                std::chrono::duration<double>(end - Clock::now()).count());
    std::this_thread::sleep_for(kAskAgain);
  }
}

transport::HandsOver hands_over(const std::string& word) {
  using transport::HandsOver;
  return word == "on" ? HandsOver::always : word == "off" ? HandsOver::never : HandsOver::automatic;
}

}  // namespace

Status fabric_usable(const std::string& fabric, bool tls) {
  if (fabric == "tcp") return {};
  OURO_TRY(transport::ucx_usable());
  return tls ? unsupported(fmt::format(
                   "OURO_SECURITY=tls: the fabric {} does not encrypt; expected OURO_FABRIC=tcp", fabric))
             : Status();
}

Result<std::unique_ptr<Network>> Network::create(NetworkOptions options) {
  std::unique_ptr<Network> net(new Network(std::move(options)));
  const NetworkOptions& o = net->options_;
  OURO_TRY(fabric_usable(o.fabric, o.tls));
  const bool given = env::chosen("OURO_SECRET_FILE") || env::chosen("OURO_SECRET");
  auto secret = o.secret && !given ? Result<wire::Secret>(o.secret) : job_secret();
  if (!secret.ok()) return secret.status();
  if (o.tls && !*secret)
    return Status(
        invalid("OURO_SECURITY=tls takes its keys from the job's secret, and with OURO_INSECURE=1 there is "
                "none: give one (OURO_SECRET_FILE)"));
  const bool in_file = o.rendezvous.starts_with("file:");
  auto place = in_file ? Result<std::string>(o.rendezvous) : rendezvous_in_time(o);
  if (!place.ok()) return place.status();
  net->place_ = std::move(*place);
  auto address = local_address(in_file ? "" : net->place_, false);
  if (!address.ok()) return address.status();
  net->interface_ = interface_of(*address);
  net->identity_ = {.job = o.job,
                    .generation = o.generation,
                    .rank = o.rank,
                    .world = o.world,
                    .host = log::host_name(),
                    .host_id = o.host_id,
                    .pid = getpid(),
                    .process = process_number(),
                    .secret = std::move(*secret)};
  LineListener::Options listening;
  listening.bind = address->find(':') == std::string::npos ? *address : fmt::format("[{}]", *address);
  auto listener = LineListener::open(net->io_, net->identity_, std::move(listening),
                                     [n = net.get()](Line line) { n->take(std::move(line)); });
  if (!listener.ok()) return listener.status();
  net->listener_ = std::move(*listener);
  OURO_TRY(net->make_fabric());
  OURO_INFO(NET, "rank {} listens on {} ({}), fabric {}", o.rank, net->endpoint(), net->interface_,
            net->fabric_->name());
  return net;
}

Status Network::make_fabric() {
  const auto failed = [this](int peer, Status why) {
    asio::post(io_, [this, peer, why = std::move(why)] { peers_->fabric_failed(peer, why); });
  };
  if (options_.fabric == "ucx") {
    auto ucx = transport::UcxFabric::create(
        {.rank = options_.rank,
         .world = options_.world,
         .checks = options_.checksums,
         .device = options_.gpu,
         .hands_over = hands_over(options_.gpu_direct),
         .devices = interface_,
         .patience = std::chrono::ceil<std::chrono::milliseconds>(2 * options_.silent_fail),
         .failed = failed});
    if (!ucx.ok()) return ucx.status();
    OURO_WARN("fabric ucx: whoever reaches interface {} can write into this process", interface_);
    fabric_ = std::move(*ucx);
    address_.assign(fabric_->address().begin(), fabric_->address().end());
    peers_ = std::make_unique<RemotePeers>(io_, *fabric_);
    return {};
  }
  auto tcp = std::make_unique<transport::TcpFabric>(transport::TcpFabric::Options{
      .world = options_.world,
      .connections = options_.connections,
      .checks = options_.checksums && !options_.tls,  // TLS has stronger ones
      .need = [this](int peer) { asio::post(io_, [this, peer] { data_->dial_peer(peer); }); },
      .failed = failed,
      .lost =
          [peer_of = options_.rank](int peer, std::string how) {
            OURO_INFO(NET, "a data connection of rank {} to rank {} has ended: {}", peer_of, peer, how);
          }});
  transport::TcpFabric& fabric = *tcp;
  fabric_ = std::move(tcp);
  peers_ = std::make_unique<RemotePeers>(io_, *fabric_);
  data_ = std::make_unique<DataLines>(io_, options_, identity_, *peers_, fabric);
  return {};
}

}  // namespace ouro::rt

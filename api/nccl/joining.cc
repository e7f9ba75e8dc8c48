// Makes a group of all ranks of a unique id. See joining.h.
#include "api/nccl/joining.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "runtime/network/interfaces.h"
#include "runtime/network/net_address.h"
#include "transport/wire/frames.h"

namespace ouro::nccl {
namespace {

/// Reserves a port of this host: bound, but not listening, until the rendezvous listens there.
struct KeptPort {
  Fd socket;
  std::string place;
};

Result<KeptPort> keep_port() {
  OURO_ASSIGN(const std::string address, own_address());
  OURO_ASSIGN(const rt::NetAddress at, rt::parse_address(address));
  KeptPort kept;
  kept.socket = Fd(::socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  rt::NetAddress own;
  own.length = sizeof own.at;
  if (!kept.socket || setsockopt(kept.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(kept.socket.get(), reinterpret_cast<const sockaddr*>(&at.at), at.length) != 0 ||
      getsockname(kept.socket.get(), reinterpret_cast<sockaddr*>(&own.at), &own.length) != 0)
    return Status(Reason::resource, fmt::format("no port on {}: {}", address, std::strerror(errno)));
  kept.place = rt::to_string(own);
  return kept;
}

/// Puts the result of the roll call into the options: which ranks are on this host, and where the hosts meet.
void place(const Roll& roll, int rank, InitOptions* o) {
  const HostKey& mine = roll.hosts[static_cast<std::size_t>(rank)];
  const auto here = std::count(roll.hosts.begin(), roll.hosts.end(), mine);
  if (here == std::ssize(roll.hosts)) return;
  o->local_size = static_cast<int>(here);
  o->local_rank = static_cast<int>(std::count(roll.hosts.begin(), roll.hosts.begin() + rank, mine));
  o->host_id = wire::hex(mine);
  o->rendezvous = roll.place;
}

/// Text that says what else may be the case if no process answers at this place.
const char* of_loopback(const std::string& place) {
  const auto at = rt::parse_address(place);
  const bool loopback = at.ok() && rt::is_loopback_address(rt::to_string(*at, false));
  return loopback ? "; or it is on another host, which had no network interface but its loopback" : "";
}

Result<Context> enter_job(ncclComm_t comm, int nranks, const Meeting& meeting, int rank) {
  InitOptions o;
  o.rank = rank, o.world_size = nranks, o.id = meeting.job;
  o.gpu = on_gpu(comm) ? comm->place.index : -1;
  o.gpu_blocks = comm->config.max_ctas;
  if (o.gpu_blocks > 0)
    OURO_INFO(INIT,
              "kernels that wait for those of other ranks have at most {} blocks (NCCL_MAX_CTAS, maxCTAs)",
              o.gpu_blocks);
  o.cancel = comm->cancelled;
  if (nranks == 1 || meeting.process_alone) return Context::create(o);
  Report report{.rank = rank, .world = nranks};
  std::memcpy(report.job.data(), meeting.job.bytes + 8, report.job.size());
  OURO_ASSIGN(report.host, own_host(rank));
  const bool made_here = report.host == meeting.made_on;  // false if this rank is to count as another host
  if (meeting.roll.places.empty())
    return made_here
               ? Context::create(o)
               : unsupported(fmt::format(
                     "the unique id was made on another host, for ranks of that host only, as no network "
                     "interface there can be used: it was asked for {} (NCCL_SOCKET_IFNAME, "
                     "NCCL_SOCKET_FAMILY there)",
                     meeting.why_here));
  OURO_TRY(env::valid());
  OURO_ASSIGN(const auto patience, env::real("OURO_JOIN_DEADLINE"));
  const auto deadline = std::chrono::milliseconds(static_cast<std::int64_t>(patience.value_or(300) * 1000));
  KeptPort port;
  if (rank == 0) {
    OURO_ASSIGN(port, keep_port());
    report.place = port.place;
    if (meeting.roll.waits) OURO_TRY(expect_ranks(meeting.roll, meeting.roll.places.front()).status());
  }
  OURO_ASSIGN(const auto roll, call_roll(meeting.roll, report, deadline, *comm->cancelled));
  if (roll) {
    place(*roll, rank, &o);
  } else if (!made_here) {
    return Status(
        Failure{.reason = Reason::peer_unresponsive,
                .text = fmt::format("the process that made the unique id, at {}, has ended; between hosts it "
                                    "has to live until all ranks have joined{}",
                                    meeting.roll.places.front(), of_loopback(meeting.roll.places.front())),
                .detector = "roll call"});
  } else {
    OURO_INFO(BOOTSTRAP,
              "the process that made the unique id has ended; all ranks are expected on this host");
  }
  return Context::create(o);
}

}  // namespace

ncclResult_t join(const char* function, ncclComm_t comm, int nranks, const Meeting& meeting, int rank) {
  auto context = enter_job(comm, nranks, meeting, rank);
  if (!context.ok()) return note(comm, function, context.status());
  auto family = std::make_shared<Family>(std::move(*context));
  Group group = std::move(family->context.world());
  if (!open(comm, std::move(family), std::move(group)))
    return note(comm, function, Status(Reason::revoked, "aborted while it was being made"));
  return ncclSuccess;
}

ncclResult_t join_as(const char* function, ncclComm_t parent, const ncclUniqueId& id, int nranks, int rank,
                     const Config& config, ncclComm_t* out) {
  auto meeting = meeting_of(&id, 1);
  if (!meeting.ok()) return fail(parent, function, meeting.status());
  const ncclComm_t comm = make_handle(config, rank, nranks, parent->place);
  ncclResult_t joined;
  {
    const EndsToo reach(parent, [comm](const char* why) { stop(comm, why); });
    joined = join(function, comm, nranks, *meeting, rank);
  }
  if (joined == ncclSuccess) {
    *out = comm;
  } else {
    (void)fail(parent, joined, last_error_of(comm));
    (void)retire(comm);
  }
  return joined;
}

}  // namespace ouro::nccl

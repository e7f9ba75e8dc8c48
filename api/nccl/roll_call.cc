// Reporting to the roll call. See roll_call.h.
#include "api/nccl/roll_call.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/core/deadline.h"
#include "runtime/core/fd.h"
#include "runtime/core/fork.h"
#include "runtime/network/net_address.h"

namespace ouro::nccl {
namespace roll {

namespace {
template <class T>
wire::View bytes_of(const T& x, std::size_t many = sizeof(T)) {
  return {reinterpret_cast<const std::uint8_t*>(&x), many};
}
}  // namespace

Result<wire::Key> mac_of(const RollId& id, const Hello& h) {
  return wire::hmac(id.key, {bytes_of(h, offsetof(Hello, mac))});
}
Result<wire::Key> mac_of(const RollId& id, const Hello& h, const Answer& a, wire::View follows) {
  return wire::hmac(id.key, {h.random, bytes_of(a, offsetof(Answer, mac)), follows});
}

}  // namespace roll

namespace {

using namespace std::chrono_literals;
constexpr auto kSlice = 20ms, kAgain = 100ms;
constexpr auto kReach = 5s;  // time limit of one connection attempt
constexpr auto kSpare = 2s;  // extra time to receive the answer that some ranks are missing
constexpr std::size_t kMostBytes = roll::kPlace + roll::kMostRanks * sizeof(HostKey);

/// One conversation with the listener; checks for cancellation while it waits.
class Caller {
 public:
  Caller(Clock::time_point end, const std::atomic<bool>& cancelled) : end_(end), cancelled_(cancelled) {}

  /// Errors: peer-unresponsive; sets `refused` if the host answers that no process listens at the port.
  Status connect(const rt::NetAddress& to, bool* refused) {
    socket_ = Fd(::socket(to.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_) return {Reason::resource, fmt::format("no socket: {}", std::strerror(errno))};
    close_in_children(socket_.get());
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.at), to.length) == 0) return {};
    int error = errno;
    if (error == EINPROGRESS) {
      OURO_TRY(wait_for(POLLOUT, std::min(end_, Clock::now() + kReach)));
      socklen_t size = sizeof error;
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    *refused = error == ECONNREFUSED;
    return error == 0 ? Status() : unreachable(std::strerror(error));
  }
  Status write(const void* data, std::size_t bytes) {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t n = ::send(socket_.get(), at, bytes, MSG_NOSIGNAL);
      if (n > 0) {
        at += n, bytes -= static_cast<std::size_t>(n);
      } else {
        OURO_TRY(again(n, POLLOUT));
      }
    }
    return {};
  }
  Status read(void* data, std::size_t bytes) {
    for (char* at = static_cast<char*>(data); bytes > 0;) {
      const ssize_t n = ::recv(socket_.get(), at, bytes, 0);
      if (n > 0) {
        at += n, bytes -= static_cast<std::size_t>(n);
      } else {
        OURO_TRY(again(n, POLLIN));
      }
    }
    return {};
  }

 private:
  static Status unreachable(std::string why) {
    return Status(
        Failure{.reason = Reason::peer_unresponsive, .text = std::move(why), .detector = "roll call"});
  }
  Status again(ssize_t n, short events) {
    if (n == 0) return unreachable("the process that made the unique id has ended the connection");
    if (errno != EAGAIN && errno != EINTR) return unreachable(std::strerror(errno));
    return wait_for(events, end_);
  }
  Status wait_for(short events, Clock::time_point end) {
    while (Clock::now() < end) {
      if (cancelled_.load()) return {Reason::revoked, "aborted while it was being made"};
      pollfd p{socket_.get(), events, 0};
      if (poll(&p, 1, static_cast<int>(kSlice.count())) > 0) return {};
    }
    return unreachable("no answer in time");
  }

  const Clock::time_point end_;
  const std::atomic<bool>& cancelled_;
  Fd socket_;
};

/// Connects to the first place that answers. nullopt: no process listens at any of them.
Result<std::optional<Caller>> reach(const RollId& id, Clock::time_point end,
                                    const std::atomic<bool>& cancelled) {
  Status last(Reason::peer_unresponsive, "the unique id has no address");
  for (;;) {
    bool all_refused = true;
    for (const std::string& place : id.places) {
      OURO_ASSIGN(const rt::NetAddress to, rt::parse_address(place));
      Caller caller(end + kSpare, cancelled);
      bool refused = false;
      last = caller.connect(to, &refused);
      if (last.ok()) return std::optional<Caller>(std::in_place, std::move(caller));
      if (last.reason() == Reason::revoked) return last;
      all_refused = all_refused && refused;
    }
    if (!id.waits && all_refused) return std::optional<Caller>();
    if (Clock::now() + kAgain >= end) break;
    std::this_thread::sleep_for(kAgain);
  }
  return Status(
      Failure{.reason = Reason::peer_unresponsive,
              .text = fmt::format("the process that made the unique id cannot be reached at {}: {}; it has "
                                  "to live until all ranks have joined "
                                  "(NCCL_SOCKET_IFNAME chooses interfaces)",
                                  fmt::join(id.places, ", "), last.failure()->text),
              .detector = "roll call"});
}

struct Answered {
  roll::Answer answer{};
  std::vector<std::uint8_t> follows;
};

/// Sends the report and reads the answer.
Result<Answered> converse(Caller& caller, const roll::Hello& hello) {
  Answered a;
  OURO_TRY(caller.write(&hello, sizeof hello));
  OURO_TRY(caller.read(&a.answer, sizeof a.answer));
  if (std::memcmp(a.answer.magic, roll::kAnswer, sizeof a.answer.magic) != 0 || a.answer.bytes > kMostBytes)
    return Status(Reason::refused, "what listens where the unique id says is not ouro");
  a.follows.resize(a.answer.bytes);
  OURO_TRY(caller.read(a.follows.data(), a.follows.size()));
  return a;
}

}  // namespace

Result<std::optional<Roll>> call_roll(const RollId& id, const Report& report,
                                      std::chrono::milliseconds deadline,
                                      const std::atomic<bool>& cancelled) {
  const auto end = deadline_after(deadline);
  roll::Hello hello{};
  std::memcpy(hello.magic, roll::kHello, sizeof hello.magic);
  hello.id = id.nonce, hello.job = report.job, hello.host = report.host;
  hello.rank = static_cast<std::uint32_t>(report.rank),
  hello.world = static_cast<std::uint32_t>(report.world);
  report.place.copy(hello.place, sizeof hello.place - 1);
  hello.pid = static_cast<std::uint32_t>(getpid());
  OURO_TRY(wire::random_bytes(hello.caller));
  Result<Answered> said(Answered{});
  for (;;) {
    OURO_ASSIGN(auto caller, reach(id, end, cancelled));
    if (!caller) return std::optional<Roll>();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    hello.patience_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, UINT32_MAX));
    OURO_TRY(wire::random_bytes(hello.random));
    OURO_ASSIGN(hello.mac, roll::mac_of(id, hello));
    said = converse(*caller, hello);
    // A listener at a well-known address may not have made this id yet, and then refuses it; and a listener
    // that is flooded by other programs may have closed a connection that had not identified itself yet.
    const bool too_early = id.waits && said.ok() && said->answer.reason != 0 && said->answer.bytes == 0;
    const bool ended = !said.ok() && said.status().reason() == Reason::peer_unresponsive;
    if ((!too_early && !ended) || Clock::now() >= end) break;
    std::this_thread::sleep_for(kAgain);
  }
  if (!said.ok()) return said.status();
  const auto& [answer, follows] = *said;
  OURO_ASSIGN(const wire::Key mac, roll::mac_of(id, hello, answer, follows));
  if (!wire::equal(mac, answer.mac))
    return Status(Reason::refused, "what listens where the unique id says does not know the id");
  if (answer.reason != 0)
    return Status(answer.reason <= static_cast<std::uint32_t>(Reason::device)
                      ? static_cast<Reason>(answer.reason)
                      : Reason::refused,
                  std::string(follows.begin(), follows.end()));
  Roll all;
  all.hosts.resize(static_cast<std::size_t>(report.world));
  if (follows.size() != roll::kPlace + all.hosts.size() * sizeof(HostKey))
    return Status(Reason::refused, "an answer of the wrong length");
  all.place.assign(follows.begin(), std::find(follows.begin(), follows.begin() + roll::kPlace, 0));
  std::memcpy(all.hosts.data(), follows.data() + roll::kPlace, all.hosts.size() * sizeof(HostKey));
  return std::optional<Roll>(std::move(all));
}

}  // namespace ouro::nccl

// Fuzz targets for libnccl.so.2: unique ids and configurations passed by a program, and both ends of the roll
// call. See targets.h.
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "api/nccl/config.h"
#include "api/nccl/unique_id.h"
#include "runtime/core/fd.h"
#include "runtime/network/net_address.h"
#include "tests/system/fuzz/support.h"
#include "tests/system/fuzz/targets.h"

namespace ouro::fuzz {
namespace {

using nccl::roll::Answer;
using nccl::roll::Hello;

nccl::RollId roll_id(std::string place) {
  return {.nonce = {1}, .key = {2}, .places = {std::move(place)}, .waits = false};
}

Fd stream_to(const std::string& place) {
  const auto to = rt::parse_address(place);
  require(to.ok());
  Fd s(::socket(to->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  require(s && ::connect(s.get(), reinterpret_cast<const sockaddr*>(&to->at), to->length) == 0);
  const timeval patience{5, 0};
  setsockopt(s.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return s;
}

/// Listens where a rank reports and sends a given answer, on request with a correct MAC.
class Impostor {
 public:
  Impostor() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto any = rt::parse_address("127.0.0.1:0");
    require(any.ok() && listener_ &&
            ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&any->at), any->length) == 0 &&
            ::listen(listener_.get(), 64) == 0);
    rt::NetAddress own;
    own.length = sizeof own.at;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own.at), &own.length);
    place_ = rt::to_string(own);
    std::thread([this] {
      for (;;) answer();
    }).detach();
  }
  const std::string& place() const { return place_; }
  void say(wire::Bytes what, bool signed_rightly) {
    std::lock_guard lock(mutex_);
    what_ = std::move(what), signed_ = signed_rightly;
  }

 private:
  void answer() {
    const Fd s(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (::recv(s.get(), &hello, sizeof hello, MSG_WAITALL) != sizeof hello) return;
    std::lock_guard lock(mutex_);
    wire::Bytes out = what_;
    if (Answer a; signed_ && out.size() >= sizeof a) {
      std::memcpy(&a, out.data(), sizeof a);
      std::memcpy(a.magic, nccl::roll::kAnswer, sizeof a.magic);
      a.bytes = static_cast<std::uint32_t>(out.size() - sizeof a);
      a.mac = *nccl::roll::mac_of(roll_id(place_), hello, a, wire::View(out).subspan(sizeof a));
      std::memcpy(out.data(), &a, sizeof a);
    }
    (void)!::send(s.get(), out.data(), out.size(), MSG_NOSIGNAL);
  }

  const Fd listener_;
  std::string place_;
  std::mutex mutex_;
  wire::Bytes what_;
  bool signed_ = false;
};

}  // namespace

/// Unique ids, 128 bytes each.
void nccl_ids(wire::View in) {
  const std::size_t many = std::min<std::size_t>(in.size() / sizeof(ncclUniqueId), 4);
  if (many == 0) return;
  std::vector<ncclUniqueId> ids(many);
  std::memcpy(ids.data(), in.data(), many * sizeof ids[0]);
  const auto m = nccl::meeting_of(ids.data(), static_cast<int>(many));
  require(m.ok() || m.status().reason() == Reason::invalid);
  if (!m.ok()) return;
  for (const std::string& place : m->roll.places) require(place.size() <= 56), (void)rt::parse_address(place);
}

/// A configuration with the length that it specifies, up to the size of the input. If the first byte is odd,
/// size and magic are corrected.
void nccl_config(wire::View in) {
  if (in.size() < 1 + 24) return;
  wire::Bytes all(in.begin() + 1, in.end());
  std::size_t size = 0;
  const unsigned magic = NCCL_API_MAGIC;
  if (in[0] % 2 == 1) {
    std::memcpy(all.data() + offsetof(ncclConfig_t, magic), &magic, sizeof magic);
    size = all.size();
    std::memcpy(all.data(), &size, sizeof size);
  }
  std::memcpy(&size, all.data(), sizeof size);
  if (size > all.size()) return;  // precondition of parse(): that many bytes exist
  alignas(ncclConfig_t) std::uint8_t given[4096];
  if (size > sizeof given) return;
  std::memcpy(given, all.data(), size);
  auto* const c = reinterpret_cast<ncclConfig_t*>(given);
  if (offsetof(ncclConfig_t, netName) + sizeof c->netName <= size && c->netName) c->netName = "Socket";
  if (offsetof(ncclConfig_t, commName) + sizeof c->commName <= size && c->commName) c->commName = "name";
  nccl::Config out;
  const ncclResult_t r = nccl::parse("fuzz", c, nccl::default_config(), &out);
  require(r == ncclSuccess || r == ncclInvalidArgument);
}

/// What a stranger, or a rank (first byte odd), sends to the listener of a roll call. Bits of the first byte:
/// the world (2) and the rank (4) are corrected; the report is sent twice, the second time as a rank of
/// another world (8) or unchanged (16), or by another caller (16 and 64); the rank waits for the others as
/// long as its patience lasts (32).
void roll_hello(wire::View in) {
  static const std::string place = *nccl::expect_ranks(roll_id(""), "127.0.0.1:0");
  if (in.empty()) return;
  wire::Bytes out(in.begin() + 1, in.end());
  if (Hello h; in[0] % 2 == 1 && out.size() >= sizeof h) {
    std::memcpy(&h, out.data(), sizeof h);
    std::memcpy(h.magic, nccl::roll::kHello, sizeof h.magic);
    h.id = {1};
    h.patience_ms = std::min(h.patience_ms, 20u);
    h.world = in[0] & 2 ? 1 + h.world % 2 : h.world;
    h.rank = in[0] & 4 ? h.rank % 2 : h.rank;
    h.mac = *nccl::roll::mac_of(roll_id(""), h);
    std::memcpy(out.data(), &h, sizeof h);
  }
  const Fd before = in[0] & (8 | 16) ? stream_to(place) : Fd(), s = stream_to(place);
  if (before) {
    (void)!::send(before.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (Hello h; in[0] % 2 == 1 && out.size() >= sizeof h && in[0] & (8 | 64)) {
      std::memcpy(&h, out.data(), sizeof h);
      if (in[0] & 8) ++h.world;
      if (in[0] & 64) ++h.caller[0];
      h.mac = *nccl::roll::mac_of(roll_id(""), h);
      std::memcpy(out.data(), &h, sizeof h);
    }
  }
  (void)!::send(s.get(), out.data(), out.size(), MSG_NOSIGNAL);
  if (!(in[0] & 32) || out.size() < sizeof(Hello)) ::shutdown(s.get(), SHUT_WR);
  std::array<char, 4096> said;
  ssize_t n = 0;
  while ((n = ::recv(s.get(), said.data(), said.size(), 0)) > 0)
    ;
  require(n == 0 || errno != EAGAIN);  // the listener has closed the connection
}

/// The answer to a rank that reports; if the first byte is odd, from a listener that knows the id. Bits of
/// the first byte: there is no listener (16), the rank waits for a listener (32), the rank has been told to
/// give up (64).
void roll_answer(wire::View in) {
  if (in.empty()) return;
  static auto& impostor = *new Impostor;
  impostor.say(wire::Bytes(in.begin() + 1, in.end()), in[0] % 2 == 1);
  const std::atomic<bool> cancelled{(in[0] & 64) != 0};
  const int world = 1 + in[0] / 2 % 4;
  const bool nobody = in[0] & 16;
  auto id = roll_id(nobody ? "127.0.0.1:1" : impostor.place());
  id.waits = in[0] & 32;
  // If the input is only this byte, the rank may also retry, which takes time.
  const std::chrono::milliseconds deadline(in.size() == 1 && in[0] & 128 ? 150 : 0);
  const auto all =
      nccl::call_roll(id, {.job = {3}, .rank = 0, .world = world, .host = {4}}, deadline, cancelled);
  if (!all.ok() || !*all) return;
  require((*all)->hosts.size() == static_cast<std::size_t>(world) &&
          (*all)->place.size() <= nccl::roll::kPlace);
}

}  // namespace ouro::fuzz

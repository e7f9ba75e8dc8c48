// Unique ids. See unique_id.h.
#include "api/nccl/unique_id.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "api/nccl/variables.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/network/interfaces.h"
#include "runtime/network/net_address.h"
#include "transport/wire/codec.h"

namespace ouro::nccl {
namespace {

/// The 128 bytes: an ouro::UniqueId, then fields of libnccl.
struct Layout {
  char magic[8];
  wire::Nonce nonce;
  std::array<std::uint8_t, 16> secret;
  char protocol[8];
  HostKey host;  ///< where it was made; zero: anywhere
  std::uint8_t kind, spare[7];
  char place[56];  ///< address where ranks report; kOneHost: why there is none
};
static_assert(sizeof(Layout) == sizeof(ncclUniqueId));
constexpr char kProtocol[8] = {'n', 'c', 'c', 'l', '-', 'i', 'd', '2'};
constexpr std::uint8_t kSeveral = 0, kProcess = 1, kFixed = 2, kOneHost = 3;  // Layout::kind
constexpr std::size_t kJobBytes = 40;  // size of the leading ouro::UniqueId part

HostKey key_of(const std::string& text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  HostKey key;
  std::memcpy(key.data(), &h, key.size());
  return key;
}

wire::View bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

Result<rt::Family> family() {
  const auto named = variable("NCCL_SOCKET_FAMILY");
  if (!named) return rt::Family::any;
  if (*named == "AF_INET") return rt::Family::ipv4;
  if (*named == "AF_INET6") return rt::Family::ipv6;
  return invalid(fmt::format("NCCL_SOCKET_FAMILY={}; expected AF_INET or AF_INET6", *named));
}

/// Which interfaces and addresses the user has asked for, as "eth7 AF_INET6"; "": any.
std::string asked_for() {
  const auto filter = rt::interface_filter();
  std::string text = filter.ok() ? *filter : "";
  if (const auto named = variable("NCCL_SOCKET_FAMILY")) text += (text.empty() ? "" : " ") + *named;
  return text;
}

/// The same with the interfaces that exist, in few words, for ranks of other hosts: "eth7, and has lo, eth0".
std::string asked_and_found() {
  std::string text = asked_for();
  if (text.empty()) text = "any";
  text += ", and has ";
  const auto all = rt::list_interfaces();
  for (std::size_t i = 0; all.ok() && i < all->size(); ++i) text += (i == 0 ? "" : ", ") + (*all)[i].name;
  return text;
}

RollId roll_of(const Layout& l) {
  RollId roll{.nonce = l.nonce, .key = l.kind == kFixed ? l.nonce : l.secret, .waits = l.kind == kFixed};
  if (l.kind != kOneHost && l.place[0] != '\0')
    roll.places.emplace_back(l.place, strnlen(l.place, sizeof l.place));
  return roll;
}

/// Fills in an id for NCCL_COMM_ID, which every process computes alike. It has no secret.
Status make_fixed(const std::string& place, Layout* l) {
  if (auto wrong = rt::parse_address(place); !wrong.ok())
    return invalid(
        fmt::format("NCCL_COMM_ID={}; expected ADDRESS:PORT, with an address of rank 0's host", place));
  static std::atomic<unsigned> made{0};
  l->nonce = key_of(fmt::format("NCCL_COMM_ID {} of user {}, {}", place, geteuid(), made++));
  l->secret = {}, l->host = {}, l->kind = kFixed;
  place.copy(l->place, sizeof l->place - 1);
  return {};
}

/// Fills in an id for ranks of this host only.
void make_for_this_host(const Status& why, Layout* l) {
  l->kind = kOneHost;
  std::string text = asked_and_found();
  constexpr std::size_t kRoom = sizeof l->place - 1;
  if (text.size() > kRoom) text.replace(kRoom - 3, std::string::npos, "...");
  text.copy(l->place, kRoom);
  static std::atomic<bool> logged{false};
  if (!asked_for().empty() && !logged.exchange(true))
    OURO_WARN(
        "unique ids are for ranks of this host only: {} (asked for {}: NCCL_SOCKET_IFNAME, "
        "NCCL_SOCKET_FAMILY)",
        why.failure()->text, asked_for());
  else
    OURO_INFO(BOOTSTRAP, "the unique id is for ranks of this host: {}", why.message());
}

}  // namespace

Result<std::string> own_address() {
  OURO_ASSIGN(const rt::Family wanted, family());
  return rt::address_for_others(wanted);
}

Result<ncclUniqueId> make_unique_id(Reach reach) {
  OURO_ASSIGN(const UniqueId job, UniqueId::create());
  Layout l{};
  std::memcpy(&l, job.bytes, kJobBytes);
  std::memcpy(l.protocol, kProtocol, sizeof kProtocol);
  l.host = key_of(own_host_id());
  l.kind = reach == Reach::process ? kProcess : kSeveral;
  if (const auto fixed = variable("NCCL_COMM_ID"); fixed && reach == Reach::several) {
    OURO_TRY(make_fixed(*fixed, &l));
  } else if (reach == Reach::several) {
    OURO_TRY(family().status());
    if (const auto address = own_address(); address.ok()) {
      OURO_ASSIGN(const std::string place, expect_ranks(roll_of(l), rt::with_port(*address, 0)));
      place.copy(l.place, sizeof l.place - 1);
    } else {
      make_for_this_host(address.status(), &l);
    }
  }
  ncclUniqueId id;
  std::memcpy(&id, &l, sizeof id);
  return id;
}

Result<Meeting> meeting_of(const ncclUniqueId* ids, int count) {
  for (int i = 0; i < count; ++i) {
    Layout l;
    std::memcpy(&l, &ids[i], sizeof l);
    if (std::memcmp(l.protocol, kProtocol, sizeof kProtocol) != 0)
      return invalid("unique id made by another library, or not made at all (mixed NCCL and ouro ranks?)");
  }
  Layout first;
  std::memcpy(&first, ids, sizeof first);
  Meeting m;
  m.roll = roll_of(first);
  m.process_alone = first.kind == kProcess;
  m.made_on = first.kind == kSeveral || first.kind == kOneHost ? first.host : HostKey{};
  if (first.kind == kOneHost)
    m.why_here = wire::printable(wire::view({first.place, strnlen(first.place, sizeof first.place)}));
  if (count > 1) {  // derives one name and secret from all; ids of NCCL_COMM_ID have no secret
    const wire::View all(reinterpret_cast<const std::uint8_t*>(ids),
                         static_cast<std::size_t>(count) * sizeof *ids);
    const auto mixed = [&](const char* what, std::array<std::uint8_t, 16>* out) -> Status {
      OURO_ASSIGN(const wire::Key k, wire::hmac(first.secret, {bytes_of(what), all}));
      std::copy_n(k.begin(), out->size(), out->begin());
      return {};
    };
    OURO_TRY(mixed("name", &first.nonce));
    if (first.kind != kFixed) OURO_TRY(mixed("secret", &first.secret));
  }
  std::memcpy(m.job.bytes, &first, kJobBytes);
  return m;
}

Result<HostKey> own_host(int rank) {
  OURO_ASSIGN(const auto named, env::text("OURO_HOSTID"));
  const std::string host = named.value_or(own_host_id());
  OURO_ASSIGN(const bool apart, flag("NCCL_SHM_DISABLE", false));
  return key_of(apart ? fmt::format("{}/rank {}", host, rank) : host);
}

}  // namespace ouro::nccl

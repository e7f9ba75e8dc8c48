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
  char place[56];  ///< address where ranks report
};
static_assert(sizeof(Layout) == sizeof(ncclUniqueId));
constexpr char kProtocol[8] = {'n', 'c', 'c', 'l', '-', 'i', 'd', '2'};
constexpr std::uint8_t kSeveral = 0, kProcess = 1, kFixed = 2;  // Layout::kind
constexpr std::size_t kJobBytes = 40;                           // size of the leading ouro::UniqueId part

HostKey key_of(const std::string& text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  HostKey key;
  std::memcpy(key.data(), &h, key.size());
  return key;
}

wire::View bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// The address by which others reach this host, of the family that NCCL_SOCKET_FAMILY names.
Result<std::string> own_address() {
  const auto family = variable("NCCL_SOCKET_FAMILY");
  if (family && *family != "AF_INET" && *family != "AF_INET6")
    return invalid(fmt::format("NCCL_SOCKET_FAMILY={}; expected AF_INET or AF_INET6", *family));
  if (family) {
    OURO_ASSIGN(const auto all, rt::list_interfaces());
    OURO_ASSIGN(const std::string filter, rt::interface_filter());
    return rt::choose_address(
        all, {.filter = filter, .ipv6_only = *family == "AF_INET6", .ipv4_only = *family == "AF_INET"});
  }
  return rt::address_for_others();
}

RollId roll_of(const Layout& l) {
  RollId roll{.nonce = l.nonce, .key = l.kind == kFixed ? l.nonce : l.secret, .waits = l.kind == kFixed};
  if (l.place[0] != '\0') roll.places.emplace_back(l.place, strnlen(l.place, sizeof l.place));
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

}  // namespace

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
    auto address = own_address();
    if (!address.ok() && variable("NCCL_SOCKET_FAMILY")) return address.status();
    if (address.ok()) {
      OURO_ASSIGN(const std::string place, expect_ranks(roll_of(l), rt::with_port(*address, 0)));
      place.copy(l.place, sizeof l.place - 1);
    } else {
      OURO_INFO(BOOTSTRAP, "the unique id is for ranks of this host: {}", address.status().message());
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
  m.made_on = first.kind == kSeveral ? first.host : HostKey{};
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
  const auto apart = variable("NCCL_SHM_DISABLE");
  return key_of(apart && *apart == "1" ? fmt::format("{}/rank {}", host, rank) : host);
}

}  // namespace ouro::nccl

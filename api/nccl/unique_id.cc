// Unique ids. See unique_id.h.
#include "api/nccl/unique_id.h"

#include <sys/stat.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::nccl {
namespace {

// The layout: an ouro::UniqueId (8 bytes of magic, 16 of random), 8 bytes of protocol tag, 16 of host.
constexpr std::size_t kRandom = 8, kTag = 24, kHost = 32;
constexpr char kProtocol[8] = {'n', 'c', 'c', 'l', '-', 'i', 'd', '1'};
using Host = std::array<char, 16>;

/// Ranks that see the same can share memory.
Host this_host() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) net.st_ino = 0;
  boot += "/" + std::to_string(net.st_ino);
  const XXH128_hash_t h = XXH3_128bits(boot.data(), boot.size());
  Host host;
  std::memcpy(host.data(), &h, host.size());
  return host;
}

}  // namespace

Result<ncclUniqueId> make_unique_id() {
  OURO_ASSIGN(const UniqueId job, UniqueId::create());
  ncclUniqueId id = {};
  std::memcpy(id.internal, job.bytes, kTag);
  std::memcpy(id.internal + kTag, kProtocol, sizeof kProtocol);
  const Host host = this_host();
  std::memcpy(id.internal + kHost, host.data(), host.size());
  return id;
}

Result<UniqueId> job_of(const ncclUniqueId* ids, int count) {
  const Host here = this_host();
  for (int i = 0; i < count; ++i) {
    if (std::memcmp(ids[i].internal + kTag, kProtocol, sizeof kProtocol) != 0)
      return invalid("unique id made by another library, or not made at all (mixed NCCL and ouro ranks?)");
    if (std::memcmp(ids[i].internal + kHost, here.data(), here.size()) != 0)
      return unsupported(
          "the unique id was made on another host, or in another network namespace, and communicators over "
          "several "
          "hosts are not there yet: run all ranks on one host, or use ouro's own interface");
  }
  UniqueId job;
  std::memcpy(job.bytes, ids[0].internal, kTag);
  if (count > 1) {  // one name of all of them
    const XXH128_hash_t h = XXH3_128bits(ids, static_cast<std::size_t>(count) * sizeof *ids);
    std::memcpy(job.bytes + kRandom, &h, sizeof h);
  }
  return job;
}

}  // namespace ouro::nccl

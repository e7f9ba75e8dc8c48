// Checks buffers against the process's memory mappings. See pointers.h.
#include "api/nccl/pointers.h"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>

namespace ouro::nccl {
namespace {

/// The first address of [from, to) that is not mapped with the required access; nullopt: all are.
std::optional<std::uintptr_t> first_hole(std::uintptr_t from, std::uintptr_t to, bool write) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return std::nullopt;
  for (std::string line; from < to && std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    char read = '-', writes = '-';
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %c%c", &begin, &end, &read, &writes) != 4)
      continue;
    if (end <= from) continue;
    if (begin > from || read != 'r' || (write && writes != 'w')) return from;
    from = end;
  }
  return from < to ? std::optional(from) : std::nullopt;
}

ncclResult_t check(const char* function, const Call& c, const char* which, const void* data,
                   std::size_t blocks, bool write) {
  std::size_t bytes = 0;
  if (!data || __builtin_mul_overflow(c.count * size_of(c.type), blocks, &bytes) || bytes == 0)
    return ncclSuccess;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const auto hole = first_hole(at, at + bytes, write);
  if (!hole) return ncclSuccess;
  return invalid_argument(c.comm, function, "{} {} of {} bytes: byte {} is not memory that can be {}", which,
                          data, bytes, *hole - at, write ? "written" : "read");
}

}  // namespace

ncclResult_t check_pointers(const char* function, const Call& c) {
  const CollectiveTraits traits = traits_of(c.collective);
  const auto blocks = [&](CollectiveTraits::Side side, MessageHalf half) -> std::size_t {
    if (c.half != MessageHalf::none) return c.half == half ? 1 : 0;
    return side.counts(c.comm->rank, c.root) ? side.elements(1, c.comm->size) : 0;
  };
  const std::size_t in = blocks(traits.in, MessageHalf::send), out = blocks(traits.out, MessageHalf::recv);
  if (const ncclResult_t wrong = check(function, c, "sendbuff", c.in, in, false); wrong != ncclSuccess)
    return wrong;
  return check(function, c, "recvbuff", c.out, out, true);
}

}  // namespace ouro::nccl

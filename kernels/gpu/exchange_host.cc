// Host side of the exchange kernel: its layout, its checks, and the same body run by host threads, one thread
// per block. Used by the exchange path, and by the emulated device through Kernel::host.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "kernels/gpu/exchange_body.h"
#include "kernels/gpu/exchange_entry.h"

namespace ouro::gpu {
namespace {

void exchange_messages(const void* args, int block, int blocks) {
  ExchangeShared shared;
  const HostBlock at{block, blocks};
  Exchange<HostBlock>(*static_cast<const ExchangeArgs*>(args), at, shared).run();
}

Status check_list(const ExchangeArgs& a, const std::uint32_t* first, std::uint32_t begin) {
  if (first[0] != begin) return invalid("exchange: the lists of transfers are not one after the other");
  for (int p = 0; p < a.layout.ranks; ++p)
    if (first[p + 1] < first[p])
      return invalid(fmt::format("exchange: the transfers with rank {} end before they begin", p));
  return {};
}

}  // namespace

Result<ExchangeLayout> exchange_layout(int ranks, int channels) {
  if (ranks < 1 || ranks > ExchangeLayout::kMaxRanks || channels < 1 ||
      channels > ExchangeLayout::kMaxChannels)
    return invalid(fmt::format("exchange: {} ranks and {} channels", ranks, channels));
  ExchangeLayout l;
  l.ranks = ranks, l.channels = channels;
  const auto n = static_cast<std::uint64_t>(ranks);
  // With more ranks slots are shorter, so that an arena does not grow beyond what eight ranks need.
  constexpr std::uint64_t kSlot = 16 << 10, kLeast = 2 << 10;
  l.slot_bytes =
      std::max(kLeast, n <= 8 ? kSlot : kSlot * 8 / n / ExchangeLayout::kLine * ExchangeLayout::kLine);
  std::uint64_t at = 0;
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t begin = at;
    at += (bytes + ExchangeLayout::kLine - 1) / ExchangeLayout::kLine * ExchangeLayout::kLine;
    return begin;
  };
  take(sizeof(ExchangeState));
  l.entries_at = take(n * ExchangeLayout::kEntries * sizeof(ExchangeEntry));
  l.freed_at = take(n * ExchangeLayout::kLine);
  l.slots_at = take(n * ExchangeLayout::kSlots * l.slot_bytes);
  l.channel_bytes = at;
  return l;
}

std::uint64_t exchange_channels(const ExchangeLayout& l, int from, int to, std::uint64_t bytes) {
  std::uint64_t bits = 0;
  const int lanes = exchange_lanes(bytes, l.channels);
  for (int lane = 0; lane < lanes; ++lane)
    bits |= std::uint64_t{1} << (exchange_first_channel(from, to, l.channels) + lane) % l.channels;
  return bits;
}

const Kernel& exchange_kernel() {
  static const Kernel kernel = {"exchange_messages", exchange_entry(), &exchange_messages,
                                sizeof(ExchangeArgs), true};
  return kernel;
}

Result<Launch> exchange(const ExchangeArgs& a) {
  const int n = a.layout.ranks;
  if (n < 1 || n > ExchangeLayout::kMaxRanks || a.layout.channel_bytes == 0)
    return invalid("exchange: the layout was not made by exchange_layout");
  if (a.rank < 0 || a.rank >= n) return invalid(fmt::format("exchange: rank {} of {} ranks", a.rank, n));
  if (a.deadline_ns == 0 || a.abort == nullptr || a.error == nullptr || a.waits == nullptr)
    return invalid("exchange: a launch needs a deadline, an abort word, an error record and words for waits");
  for (int r = 0; r < n; ++r)
    if (a.arena[r] == nullptr &&
        (r == a.rank || a.sends[r] != a.sends[r + 1] || a.receives[r] != a.receives[r + 1]))
      return invalid(fmt::format("exchange: the arena of rank {} is missing", r));
  OURO_TRY(check_list(a, a.sends, 0));
  OURO_TRY(check_list(a, a.receives, a.sends[n]));
  if (a.many == nullptr && a.receives[n] > ExchangeArgs::kInline)
    return invalid(fmt::format("exchange: {} transfers in the arguments of a launch", a.receives[n]));
  const int blocks = std::popcount(a.channels);
  if (blocks == 0 || (a.channels >> (a.layout.channels - 1) >> 1) != 0)
    return invalid(fmt::format("exchange: channels {:#x} of {}", a.channels, a.layout.channels));
  if ((a.same_process >> a.rank & 1) == 0) return invalid("exchange: a rank shares its own process");
  return Launch{&exchange_kernel(), Shape{blocks, kResidentThreads}};
}

}  // namespace ouro::gpu

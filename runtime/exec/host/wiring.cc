// Creates links and staging buffers. See wiring.h.
#include "runtime/exec/host/wiring.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/network/network.h"
#include "runtime/plan/cost.h"
#include "transport/net/net_links.h"
#include "transport/shm/shm.h"

namespace ouro::rt {
namespace {

constexpr std::uint32_t kMessageSlotBytes = 16 << 10;
// Long messages are written to the receiver's memory, so more chunks in flight do not fill a cache.
constexpr transport::NetSlots kFarMessageSlots{Wiring::kFarMessageSlot, 16};

/// Bytes of a staging slot in a group of n ranks; `wanted`: the configured size, or 0. With 128 KiB, two
/// ranks keep their working set in their caches. More ranks wait longer for each other in each round, so
/// fewer and larger rounds pay off (measured with four: 1 MiB in 0.7 of the time). With many ranks, the
/// larger slots would use too much memory.
std::size_t staging_bytes(std::size_t wanted, int n) {
  if (wanted > 0) return wanted;
  return n > 2 && n <= 16 ? 256 << 10 : 128 << 10;
}

transport::ShmStagingLayout staging_layout(const Context& context, int n) {
  // All ranks of a host joined with the same record.
  const bool ring = context.calibration().known() && n <= kRingRanks;
  constexpr std::size_t kAllRings = 2 * kRingBytes;  // two ranks write and read as much as was measured
  return transport::ShmStagingLayout::of(n, staging_bytes(context.spec().page_bytes, n),
                                         ring ? kAllRings : 0);
}

}  // namespace

SlotBytes slot_bytes(const Context& context, int ranks) {
  const auto staging = staging_layout(context, ranks);
  return {transport::ShmLinkLayout::of(ranks, context.spec().slot_bytes).slot_bytes, staging.slot_bytes,
          staging.eager_bytes, staging.ring_bytes};
}

Wiring::Wiring(Context& context, const Members& members, std::uint64_t key, Waiter& waiter)
    : context_(context),
      members_(members),
      key_(key),
      waiter_(waiter),
      bytes_(rt::slot_bytes(context, members.size())) {}

Wiring::~Wiring() {
  for (const Purpose p : {kLinks, kStaging, kMessages}) context_.host_memory().drop_segment(segment_key(p));
}

std::uint64_t Wiring::segment_key(Purpose p) const {
  const std::uint64_t words[] = {key_, p};
  return XXH3_64bits(words, sizeof words);
}

Result<std::shared_ptr<SharedSegment>> Wiring::segment(Purpose purpose, std::size_t bytes, int owner) {
  auto found = context_.host_memory().segment(segment_key(purpose), bytes, members_.world_rank(owner));
  if (found.ok() || found.status().failure()->rank < 0) return found;
  Failure cause = *found.status().failure();
  cause.rank = owner;
  return Status(std::move(cause));
}

Result<std::unique_ptr<transport::Links>> Wiring::make_links(Purpose purpose,
                                                             std::unique_ptr<transport::Links> here,
                                                             transport::NetSlots far) {
  if (members_.one_host()) return here;
  return std::unique_ptr<transport::Links>(std::make_unique<transport::NetLinks>(
      context_.network()->fabric(), segment_key(purpose), members_.world_ranks(), members_.local(),
      members_.rank(), far, std::move(here)));
}

Result<std::unique_ptr<transport::Links>> Wiring::make_message_links() {
  using transport::ShmInboxLayout;
  std::unique_ptr<transport::Links> here;
  if (members_.here() > 1 || members_.one_host()) {
    const auto layout = ShmInboxLayout::of(members_.here(), kMessageSlotBytes);
    std::vector<int> neighbours;  // members on this host, by their index there
    std::vector<Counter*> doorbells;
    for (int r = 0; r < members_.size(); ++r) {
      if (members_.local(r) < 0) continue;
      neighbours.push_back(r);
      ControlPage& page = context_.members().page(members_.world_rank(r));
      doorbells.push_back(&page.doorbells[segment_key(kMessages) % kDoorbells]);
    }
    const int me = members_.local(members_.rank());
    const auto fetch = [this, layout, neighbours](int index) {
      return segment(kMessages, layout.bytes, neighbours[static_cast<std::size_t>(index)]);
    };
    OURO_ASSIGN(auto mine, fetch(me));
    here = std::make_unique<transport::ShmInboxes>(std::move(mine), layout, me, std::move(doorbells), fetch);
  }
  return make_links(kMessages, std::move(here), kFarMessageSlots);
}

/// Increments this rank's counter `mark(rank)`. The first rank of a host, which owns the segment, then waits
/// until all other ranks of the host have mapped the segment, so that it can leave at any time after that.
template <class Mark>
Status Wiring::await_all(Mark&& mark) {
  bump(*mark(members_.rank()));
  if (!members_.keeps_segments()) return {};
  for (int r = 0; r < members_.size(); ++r)
    if (members_.local(r) > 0) OURO_TRY(waiter_.until(*mark(r), 1));
  return {};
}

Status Wiring::need_links() {
  if (ends_.links) return {};
  using transport::ShmLinkLayout;
  // All links of a group have slots of the same size.
  const auto whole = ShmLinkLayout::of(members_.size(), context_.spec().slot_bytes);
  std::unique_ptr<transport::Links> here;
  if (members_.here() > 1 || members_.one_host()) {
    const auto layout = members_.one_host() ? whole : ShmLinkLayout::of(members_.here(), whole.slot_bytes);
    OURO_ASSIGN(auto memory, segment(kLinks, layout.bytes, members_.keeper()));
    here = std::make_unique<transport::ShmLinks>(std::move(memory), layout, members_.local(members_.rank()),
                                                 members_.here());
  }
  OURO_ASSIGN(ends_.links, make_links(kLinks, std::move(here), {.bytes = whole.slot_bytes}));
  ends_.far = ends_.links->far();
  for (int r = 0; r < members_.size(); ++r) {
    const bool remote = ends_.far && ends_.far->is_far(r);
    ends_.in.push_back({ends_.links->inbound(r), 0, remote});
    ends_.out.push_back({ends_.links->outbound(r), 0, remote});
  }
  return await_all([this](int r) { return ends_.links->doorbell(r); });
}

Status Wiring::need_staging() {
  if (staging_) return {};
  const int n = members_.size();
  const auto layout = staging_layout(context_, n);
  OURO_ASSIGN(auto memory, segment(kStaging, layout.bytes, members_.keeper()));
  staging_ = std::make_unique<transport::ShmStaging>(std::move(memory), layout, n);
  for (int r = 0; r < n; ++r) views_.push_back(staging_->staging(r));
  return await_all([this](int r) { return staging_->present(r); });
}

void Wiring::map_pages() { staging_->map_pages(); }

}  // namespace ouro::rt

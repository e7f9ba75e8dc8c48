// The layer below the explored protocols: links and buffers of the job in the arena, and plain loops over
// uint64, so that each access is seen. Replaces runtime/exec/host/wiring.cc, runtime/context and kernels/host
// in explored programs.
#include <atomic>
#include <cstring>

#include "kernels/host/copy.h"
#include "kernels/host/host_loops.h"
#include "tests/explore/rank/rank.h"

namespace explore {
namespace {

/// The links of one rank of the job.
class ArenaLinks final : public ouro::transport::Links {
 public:
  explicit ArenaLinks(int rank) : rank_(rank) {}
  const char* name() const override { return "arena"; }
  ouro::LinkView inbound(int from) const override { return link(from, rank_); }
  ouro::LinkView outbound(int to) const override { return link(rank_, to); }
  ouro::Status reach(int) override { return {}; }
  ouro::Counter* doorbell(int rank) const override { return job->doorbells[static_cast<std::size_t>(rank)]; }
  ouro::transport::FarLinks* far() override { return nullptr; }

 private:
  static ouro::LinkView link(int from, int to) {
    return job->links[static_cast<std::size_t>(from * job->ranks + to)];
  }
  int rank_;
};

}  // namespace

std::unique_ptr<ouro::transport::Links> links_of(int rank) { return std::make_unique<ArenaLinks>(rank); }

}  // namespace explore

namespace ouro::rt {

Wiring::Wiring(Context& context, const Members& members, std::uint64_t key, Waiter& waiter)
    : context_(context),
      members_(members),
      key_(key),
      waiter_(waiter),
      bytes_{.ring = explore::Job::kRingBytes} {}
Wiring::~Wiring() = default;

Status Wiring::need_links() {
  if (ends_.links) return {};
  ends_.links = explore::links_of(members_.rank());
  for (int r = 0; r < members_.size(); ++r) {
    ends_.in.push_back({ends_.links->inbound(r), 0, false});
    ends_.out.push_back({ends_.links->outbound(r), 0, false});
  }
  return {};
}

void Wiring::map_pages() {}

Status Wiring::need_staging() {
  views_ = explore::job->staging;
  return {};
}

MemoryRef HostMemory::reference_to(const void* p, std::size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(p);
  for (std::size_t r = 0; r < explore::job->registered.size(); ++r) {
    const std::byte* const base = explore::job->registered[r];
    if (at >= base && at + bytes <= base + explore::Job::kRegisteredBytes)
      return {r + 1, static_cast<std::uint64_t>(at - base)};
  }
  return {0, 0};
}

Result<HostMemory::Resolved> HostMemory::resolve(int, MemoryRef ref, std::size_t bytes) {
  if (ref.id == 0 || ref.id > explore::job->registered.size() ||
      ref.offset + bytes > explore::Job::kRegisteredBytes)
    return Status(Reason::ring_corrupt, "a reference to no registered memory");
  return Resolved{explore::job->registered[ref.id - 1] + ref.offset, nullptr};
}

bool HostMemory::reaches(const std::vector<int>&) { return false; }
Status HostMemory::copy(int, std::uint64_t, void*, std::size_t) const {
  return {Reason::unsupported, "no pull here"};
}
bool HostMemory::on_huge_pages(const void*, std::size_t) { return false; }

}  // namespace ouro::rt

namespace ouro::kernels {
namespace {
using Word = std::uint64_t;
const Word* words(const void* p) { return static_cast<const Word*>(p); }
Word* words(void* p) { return static_cast<Word*>(p); }
void add(void* to, const void* a, const void* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) words(to)[i] = words(a)[i] + words(b)[i];
}
void copy(void* to, const void* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) words(to)[i] = words(from)[i];
}
}  // namespace

void widen(const Reduction&, void* acc, const void* in, std::size_t count) { copy(acc, in, count); }
void reduce_input(const Reduction&, void* out, const void* acc, const void* in, double, std::size_t count) {
  add(out, acc, in, count);
}
void reduce_acc(const Reduction&, void* out, const void* a, const void* b, double, std::size_t count) {
  add(out, a, b, count);
}
void finish(const Reduction&, void* out, const void* acc, std::size_t count) { copy(out, acc, count); }
void reduce_input_finish(const Reduction&, void* out, const void* acc, const void* in, std::size_t count) {
  add(out, acc, in, count);
}
void reduce_acc_finish(const Reduction&, void* out, const void* a, const void* b, std::size_t count) {
  add(out, a, b, count);
}
void fold(const Reduction&, void* out, std::span<const void* const> in, std::span<const Scalar>,
          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Word sum = 0;
    for (const void* source : in) sum += words(source)[i];
    words(out)[i] = sum;
  }
}
Fold::Fold(const Reduction& r) : ranks_(r.ranks) {}
void Fold::operator()(void* out, std::span<const void* const> in, std::span<const Scalar> premul,
                      std::size_t count) const {
  fold({}, out, in, premul, count);
}
void copy_slot_lines(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_buffer_lines(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_built_in(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_stream(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void stream_fence() {}

}  // namespace ouro::kernels

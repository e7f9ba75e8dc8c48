// Layout of the words of GPU operations. See gpu_words.h.
#include "runtime/exec/gpu/gpu_words.h"

#include <utility>

#include "runtime/device_memory/pinned_segment.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kPage = 4096;
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t GpuWords::bytes(int n) {
  return whole_pages(sizeof(Head)) + whole_pages(count(n) * sizeof(std::uint32_t)) +
         whole_pages(static_cast<std::size_t>(n) * kArrivals * sizeof(GpuArrival)) +
         whole_pages(static_cast<std::size_t>(n) * kArrivals * sizeof(GpuNote));
}

Result<std::shared_ptr<GpuWords>> GpuWords::open(std::shared_ptr<SharedSegment> segment, int n) {
  auto words = std::shared_ptr<GpuWords>(new GpuWords);
  std::byte* at = segment->data();
  words->n_ = n;
  words->head_ = reinterpret_cast<Head*>(at);
  at += whole_pages(sizeof(Head));
  words->words_ = reinterpret_cast<std::uint32_t*>(at);
  const std::size_t word_bytes = whole_pages(count(n) * sizeof(std::uint32_t));
  words->arrivals_ = reinterpret_cast<GpuArrival*>(at + word_bytes);
  const std::size_t arrivals = whole_pages(static_cast<std::size_t>(n) * kArrivals * sizeof(GpuArrival));
  words->notes_ = reinterpret_cast<GpuNote*>(at + word_bytes + arrivals);
  OURO_ASSIGN(words->pin_, pin_segment(std::move(segment), at, word_bytes, &words->device_words_));
  return words;
}

void GpuWords::set_all(std::uint32_t value, std::uint32_t number) const {
  const auto set = [](const GpuWord& w, std::uint32_t v) {
    std::atomic_ref(*w.host).store(v, std::memory_order_release);
  };
  const auto all = static_cast<int>(count(n_));
  for (int i = kLine; i < all; ++i) {
    const bool is_number = (i / kLine - 1) % (1 + n_) == 0 && i % kLine == kNumber;
    if (!is_number) set(word(0, i), value);
  }
  set(finished(), number);
  for (int r = 0; r < n_; ++r) set(come_to(r), number);
}

std::vector<gpu::MemOp> GpuWords::writes(int rank, std::uint32_t value, std::uint32_t number,
                                         std::size_t* numbers) const {
  std::vector<gpu::MemOp> ops;
  const auto set = [&](const GpuWord& w, std::uint32_t v) {
    ops.push_back({gpu::MemOp::Kind::write, v, w.device});
  };
  if (!apart_) {
    set(finished(), number);
    for (int r = 0; r < n_; ++r) set(come_to(r), number);
  }
  *numbers = ops.size();
  for (int r = 0; r < n_; ++r) {
    if (!apart_) set(ready(r), value), set(done(r), value);
    for (int slot = 0; slot < kLinkWords; ++slot)
      set(full(r, rank, slot), value), set(taken(rank, r, slot), value);
  }
  return ops;
}

}  // namespace ouro::rt

// Exchanges of messages: from the public types to a group.
#include <exception>
#include <limits>
#include <vector>

#include "api/src/not_in_batch.h"
#include "ouro/ouro.hpp"
#include "runtime/core/no_memory.h"
#include "runtime/group/group.h"

namespace ouro {
namespace {

/// The transfers of a call as a group takes them, and where their memory is.
struct Transfers {
  std::vector<rt::Transfer> list;
  bool on_device = false;
};

/// Errors of the arguments drop an open batch.
Result<Transfers> transfers_of(const Group& g, std::span<const Transfer> transfers) {
  if (!g.valid()) return empty_group();
  const auto wrong = [](const Status& why) {
    auto* const batch = rt::Batch::current();
    return batch ? batch->refuse(why) : why;
  };
  const int gpu = g.impl()->context()->spec().gpu;
  Transfers all;
  all.list.reserve(transfers.size());
  bool placed = false;  // an empty buffer is where the others are
  for (const Transfer& t : transfers) {
    const View& b = t.buffer;
    if (static_cast<int>(b.dtype) >= kDTypes)
      return wrong(invalid("exchange: the element type does not exist"));
    const bool on_device = b.device.kind != Device::Kind::host;
    if (on_device && b.device.index != gpu)
      return wrong(invalid("exchange: a buffer on GPU " + std::to_string(b.device.index) + "; this rank " +
                           (gpu < 0 ? "has no GPU" : "has GPU " + std::to_string(gpu))));
    if (placed && b.count > 0 && on_device != all.on_device)
      return wrong(
          invalid("exchange: buffers on a GPU and in memory of the host; expected all in one of them"));
    if (!placed) all.on_device = on_device;
    placed |= b.count > 0;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(b.count, size_of(b.dtype), &bytes))
      bytes = std::numeric_limits<std::size_t>::max();  // refused
    all.list.push_back({t.peer, t.sends, static_cast<std::byte*>(b.data), bytes});
  }
  return all;
}

}  // namespace

Transfer Transfer::send_to(int rank, CView data) {
  return {rank, true, View(const_cast<void*>(data.data), data.count, data.dtype, data.device)};
}
Transfer Transfer::receive_from(int rank, View out) { return {rank, false, out}; }

Status exchange(Group& g, std::span<const Transfer> transfers) try {
  OURO_ASSIGN(const Transfers all, transfers_of(g, transfers));
  if (all.list.empty()) return {};
  if (auto* const batch = rt::Batch::current()) {
    std::shared_ptr<rt::WorkState> work;
    return batch->defer(g.impl(), all.list, all.on_device, nullptr, &work);
  }
  return g.impl()->exchange(all.list, all.on_device, nullptr, nullptr);
} catch (const std::exception&) {
  return no_memory();
}

Result<Work> exchange(Group& g, std::span<const Transfer> transfers, const Stream& s) try {
  OURO_ASSIGN(const Transfers all, transfers_of(g, transfers));
  auto work = std::make_shared<rt::WorkState>();
  if (auto* const batch = rt::Batch::current(); batch && !all.list.empty()) {
    OURO_TRY(batch->defer(g.impl(), all.list, all.on_device, s.impl(), &work));
    return Work(std::move(work));
  }
  if (all.list.empty() || !s.valid()) {
    work->complete(all.list.empty() ? Status()
                                    : g.impl()->exchange(all.list, all.on_device, nullptr, nullptr));
    if (const Status done = work->outcome(); !done.ok()) return done;
    return Work(std::move(work));
  }
  OURO_TRY(g.impl()->exchange(all.list, all.on_device, s.impl().get(), &work));
  return Work(std::move(work));
} catch (const std::exception&) {
  return no_memory();
}

}  // namespace ouro

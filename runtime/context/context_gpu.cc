// Contexts: which GPU a rank has, and the memory of GPUs between ranks. See context.h.
#include <fmt/format.h>

#include <cstring>

#include "runtime/context/context.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {
namespace {

/// The contexts of this process that have a GPU.
struct Neighbours {
  std::mutex mutex;
  std::map<std::pair<wire::Nonce, int>, Context*> contexts;
};
Neighbours& neighbours() {
  static auto* const all = new Neighbours;  // contexts may outlive static objects
  return *all;
}

}  // namespace

/// Which GPU this rank has, and which it can map.
Status Context::survey_gpu(int device, GpuRecord* record) {
  gpu::Gpu& gpu = gpu::gpu();
  if (device >= gpu.devices())
    return invalid(fmt::format("GPU {}; this process sees {} ({})", device, gpu.devices(), gpu.version()));
  auto mine = gpu.properties(device);
  if (!mine.ok()) return mine.status();
  record->device = device;
  record->uuid = mine->uuid;
  record->stream_values = mine->stream_values;
  record->multiprocessors = static_cast<std::uint32_t>(mine->multiprocessors);
  for (int d = 0; d < gpu.devices() && record->reach_count < GpuRecord::kReach; ++d) {
    if (d == device || !gpu.peer_access(device, d)) continue;
    auto other = gpu.properties(d);
    if (!other.ok()) return other.status();
    record->reach[record->reach_count++] = other->uuid;
  }
  record->present = 1;
  return {};
}

void Context::be_neighbour(bool on) {
  if (spec_.gpu < 0) return;
  std::lock_guard lock(neighbours().mutex);
  if (on)
    neighbours().contexts[{spec_.join.job, rank()}] = this;
  else
    neighbours().contexts.erase({spec_.join.job, rank()});
}

Result<std::pair<std::shared_ptr<transport::GpuBlock>, std::uint64_t>> Context::own_gpu_block(
    std::uint64_t key, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  auto& known = gpu_blocks_[key];
  if (!known.first) {
    auto made = transport::GpuBlock::create(spec_.gpu, bytes);
    if (!made.ok()) {
      gpu_blocks_.erase(key);
      return made.status();
    }
    known = {*made, gpu_exports_.add(*made)};
  }
  return known;
}

void Context::drop_gpu_block(std::uint64_t key) {
  std::pair<std::shared_ptr<transport::GpuBlock>, std::uint64_t> gone;
  {
    std::lock_guard lock(mutex_);
    const auto it = gpu_blocks_.find(key);
    if (it == gpu_blocks_.end()) return;
    gone = std::move(it->second);
    gpu_blocks_.erase(it);
  }
  gpu_exports_.withdraw(gone.second);
}

Status Context::serve_gpu(int line, const wire::Fetch& request) {
  if (spec_.gpu < 0) return {Reason::refused, "this rank has no GPU"};
  std::uint64_t id = request.key;
  if (request.kind == wire::Fetch::Kind::gpu_group) {
    if (request.bytes == 0 || request.bytes > kMaxSegment)
      return {Reason::refused, fmt::format("a group's device memory is at most {} bytes", kMaxSegment)};
    auto block = own_gpu_block(request.key, request.bytes);
    if (!block.ok()) return block.status();
    if (block->first->bytes() != request.bytes)
      return {Reason::mismatch,
              fmt::format("ranks computed different sizes for a group's device memory: {} and {}",
                          block->first->bytes(), request.bytes)};
    id = block->second;
  }
  auto offer = gpu_exports_.offer(id);
  if (!offer.ok()) return offer.status();
  if (offer->fd) return send_frame(line, wire::Grant{offer->bytes}, {offer->fd.get()});
  wire::Loan loan{.bytes = offer->bytes};
  std::memcpy(loan.handle.data(), offer->handle.data(), loan.handle.size());
  return send_frame(line, loan);
}

Result<transport::GpuOffer> Context::fetch_gpu(int r, wire::Fetch::Kind kind, std::uint64_t key,
                                               std::uint64_t bytes) {
  std::vector<Fd> fds;
  auto answer = ask(r, {kind, spec_.join.job, key, bytes}, &fds);
  if (!answer.ok()) return answer.status();
  transport::GpuOffer offer;
  if (auto* grant = std::get_if<wire::Grant>(&*answer); grant && fds.size() == 1) {
    offer.bytes = grant->bytes;
    offer.fd = std::move(fds[0]);
  } else if (auto* loan = std::get_if<wire::Loan>(&*answer); loan && fds.empty()) {
    offer.bytes = loan->bytes;
    std::memcpy(offer.handle.data(), loan->handle.data(), loan->handle.size());
  } else {
    return Status(Reason::refused, fmt::format("rank {} answered with something else than device memory", r));
  }
  return offer;
}

bool Context::gpu_stale(int r) {
  std::lock_guard lock(gpu_mutex_);
  return page(r).gpu_freed.get() != gpu_imported_[static_cast<std::size_t>(r)]->freed_seen;
}

Result<std::byte*> Context::resolve_gpu(int r, const transport::GpuRef& ref, std::size_t bytes) {
  if (peer(r).pid == peer(rank()).pid) return reinterpret_cast<std::byte*>(ref.address);
  if (ref.id == 0)
    return Status(Reason::ring_corrupt, fmt::format("rank {} posted memory that nobody can map", r));
  std::lock_guard lock(gpu_mutex_);
  GpuImported& from = *gpu_imported_[static_cast<std::size_t>(r)];
  if (const std::uint64_t freed = page(r).gpu_freed.get(); freed != from.freed_seen) {
    from.exports.clear();
    from.freed_seen = freed;
  }
  return from.exports.map(spec_.gpu, ref, bytes,
                          [&] { return fetch_gpu(r, wire::Fetch::Kind::gpu, ref.id, 0); });
}

Result<Context::BlockAt> Context::gpu_block(int r, std::uint64_t key, std::size_t bytes) {
  if (r == rank()) {
    auto mine = own_gpu_block(key, bytes);
    if (!mine.ok()) return mine.status();
    return BlockAt{mine->first->data(), mine->first};
  }
  if (peer(r).pid == peer(rank()).pid) {  // a rank that is another thread here
    Neighbours& all = neighbours();
    std::lock_guard lock(all.mutex);
    const auto it = all.contexts.find({spec_.join.job, r});
    if (it == all.contexts.end())
      return Status(Failure{.reason = Reason::peer_dead, .text = "it has left the job", .rank = r});
    auto block = it->second->own_gpu_block(key, bytes);
    if (!block.ok()) return block.status();
    return BlockAt{block->first->data(), block->first};
  }
  std::lock_guard lock(gpu_mutex_);
  auto at = gpu_imported_[static_cast<std::size_t>(r)]->blocks.map(
      spec_.gpu, {key, 0, 0}, bytes, [&] { return fetch_gpu(r, wire::Fetch::Kind::gpu_group, key, bytes); });
  if (!at.ok()) return at.status();
  return BlockAt{*at, nullptr};
}

}  // namespace ouro::rt

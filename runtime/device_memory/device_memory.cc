// Memory of GPUs between the ranks of a host. See device_memory.h.
#include "runtime/device_memory/device_memory.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>

#include "kernels/gpu/resident.h"
#include "runtime/core/deadline.h"
#include "runtime/device_memory/handle_frames.h"
#include "runtime/device_memory/process_ranks.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {

DeviceMemory::DeviceMemory(JobMembers& members, const MemoryRequests& requests, int device)
    : members_(members),
      requests_(requests),
      device_(device),
      exports_([this](std::uint64_t id) {
        ControlPage& page = members_.own_page();
        const std::uint64_t before = page.gpu_freed.get();
        page.gpu_gone[before % kGone].set(id);
        page.gpu_freed.set(before + 1);
      }),
      imports_(members, device),
      blocks_(exports_, device),
      multicasts_(members, requests, device),
      free_thread_(device >= 0 ? DeferredFreeThread::of_process() : nullptr) {}

Status DeviceMemory::survey(int device, GpuRecord* record) {
  gpu::Gpu& gpu = gpu::gpu();
  if (device >= gpu.devices())
    return invalid(fmt::format("GPU {}; this process sees {} ({})", device, gpu.devices(), gpu.version()));
  auto mine = gpu.properties(device);
  if (!mine.ok()) return mine.status();
  record->device = device;
  record->uuid = mine->uuid;
  record->stream_values = mine->stream_values;
  record->device_words = mine->stream_values && mine->device_words;
  record->multiprocessors = static_cast<std::uint32_t>(mine->multiprocessors);
  record->multicast = mine->multicast && gpu::compiled_for_switches(device);
  record->mps = mine->mps;
  record->connections = static_cast<std::uint32_t>(mine->connections);
  OURO_ASSIGN(const auto reach, gpu.reachable(device));
  for (const gpu::Uuid& other : reach)
    if (record->reach_count < GpuRecord::kReach) record->reach[record->reach_count++] = other;
  record->present = 1;
  return {};
}

void DeviceMemory::publish_in_process() {
  if (device_ >= 0) publish_rank(requests_.job(), members_.rank(), *this);
}

void DeviceMemory::withdraw_in_process() {
  if (device_ >= 0) withdraw_rank(requests_.job(), members_.rank());
}

void DeviceMemory::poll_device() { imports_.release_all_ended(); }

void DeviceMemory::close() { imports_.close(); }

Result<std::shared_ptr<GpuBlock>> DeviceMemory::make_block(std::size_t bytes) {
  poll_device();
  finish_freeing();
  return GpuBlock::create(device_, bytes);
}

Result<GroupBlocks::Exported> DeviceMemory::own_block(std::uint64_t key, std::size_t bytes) {
  poll_device();
  finish_freeing();
  return blocks_.find_or_create(key, bytes);
}

Result<DeviceMemory::BlockAt> DeviceMemory::group_block(int r, std::uint64_t key, std::size_t bytes) {
  if (!members_.is_thread(r)) {
    OURO_ASSIGN(auto at, imports_.map_block(r, key, bytes, [&](std::size_t) {
      return request_handles(requests_, r,
                             {.kind = wire::Fetch::Kind::gpu_group, .key = key, .bytes = bytes});
    }));
    return BlockAt{at.data, std::move(at.keep)};
  }
  auto found = Result<GroupBlocks::Exported>(GroupBlocks::Exported{});
  if (r == members_.rank()) {
    found = own_block(key, bytes);
  } else {
    OURO_TRY(with_rank_memory(requests_.job(), r, [&](DeviceMemory& theirs) {
      found = theirs.own_block(key, bytes);
      return found.status();
    }));
  }
  if (!found.ok()) return found.status();
  return BlockAt{found->block->data(), found->block};
}

void DeviceMemory::drop_group_block(std::uint64_t key) { blocks_.drop(key); }

Result<GpuImports::Mapped> DeviceMemory::resolve_ref(int r, const GpuRef& ref, std::size_t bytes) {
  if (members_.is_thread(r)) return GpuImports::Mapped{reinterpret_cast<std::byte*>(ref.address), nullptr};
  if (ref.id == 0)
    return Status(Reason::ring_corrupt, fmt::format("rank {} posted memory that nobody can map", r));
  return imports_.map_export(r, ref, bytes, [&](std::size_t first) {
    return request_handles(requests_, r, {.kind = wire::Fetch::Kind::gpu, .key = ref.id, .bytes = first});
  });
}

Status DeviceMemory::serve(int line, const wire::Fetch& request, std::span<const Fd> given) {
  using Kind = wire::Fetch::Kind;
  if (device_ < 0) return {Reason::refused, "this rank has no GPU"};
  if (request.kind == Kind::multicast || request.kind == Kind::join || request.kind == Kind::bind)
    return multicasts_.serve_step(line, request, given);
  if (request.kind == Kind::gpu_mapped) {
    const auto asks = static_cast<int>(request.ranks);
    if (asks >= members_.size()) return {Reason::refused, "no such rank asks"};
    return send_frame(line, wire::Grant{imports_.still_maps(asks, request.key) ? 1u : 0u});
  }
  std::uint64_t id = request.key;
  if (request.kind == Kind::gpu_group) {
    if (request.bytes == 0 || request.bytes > MemoryRequests::kMaxSegment)
      return {Reason::refused,
              fmt::format("a group's device memory is at most {} bytes", MemoryRequests::kMaxSegment)};
    OURO_ASSIGN(const auto mine, own_block(request.key, request.bytes));
    if (mine.block->bytes() != request.bytes)
      return {Reason::mismatch,
              fmt::format("ranks computed different sizes for a group's device memory: {} and {}",
                          mine.block->bytes(), request.bytes)};
    id = mine.export_id;
  }
  const std::size_t first = request.kind == Kind::gpu ? request.bytes : 0;
  OURO_ASSIGN(const ExportHandles handles, exports_.handles_of(id, first, wire::Pieces::kMost));
  return send_handles(line, handles);
}

Result<std::uint64_t> DeviceMemory::register_range(const void* p, std::size_t bytes) {
  GpuExports::Reach reach;
  for (int r = 0; r < members_.size(); ++r) {
    if (r == members_.rank() || members_.is_remote(r)) continue;
    (members_.is_thread(r) ? reach.devices : reach.processes) = true;
  }
  return exports_.register_range(p, bytes, device_, reach);
}

Result<std::vector<std::uint64_t>> DeviceMemory::deregister(std::uint64_t registration) {
  return exports_.deregister(registration);
}

/// Returns ok only with proof that the memory is not open there. A request that fails, a rank that does not
/// answer and an answer that is not understood prove nothing.
Status DeviceMemory::closed_by(int r, std::uint64_t id, Clock::time_point until) {
  const auto open = [&](std::string_view says, std::string_view why) {
    return Status(Failure{.reason = Reason::deadline,
                          .text = fmt::format("rank {} {} memory open that was registered: {}", r, says, why),
                          .rank = r,
                          .detector = "registration"});
  };
  constexpr auto kLeastTimeout = std::chrono::milliseconds(100);  // for an answer, even if `until` has passed
  constexpr std::string_view kUses =
      "an operation of its process has not ended, or a graph that it has captured may use the memory";
  constexpr std::string_view kClosed =
      "it has closed its context, and an operation of its process has not ended, or a group that has "
      "captured a graph exists";
  if (r == members_.rank()) return exports_.ended(id) ? Status() : open("still has", kUses);
  const auto maps_nothing = [&] {
    const Peer& peer = members_.peer(r);
    pollfd process{peer.pidfd.get(), POLLIN, 0};  // poll ignores a negative descriptor
    return peer.remote() || members_.is_thread(r) || record(r).present == 0 || members_.is_dead(r) ||
           poll(&process, 1, 0) == 1 || (members_.has_closed(r) && members_.page(r).gpu_open.get() == 0);
  };
  if (maps_nothing()) return {};
  if (members_.has_closed(r)) return open("still has", kClosed);
  std::vector<Fd> fds;
  const auto answer = requests_.ask(r,
                                    {.kind = wire::Fetch::Kind::gpu_mapped,
                                     .key = id,
                                     .ranks = static_cast<std::uint32_t>(members_.rank())},
                                    &fds, {}, std::max(until, Clock::now() + kLeastTimeout));
  if (maps_nothing()) return {};  // it has ended or left meanwhile
  if (members_.has_closed(r)) return open("still has", kClosed);
  if (!answer.ok()) return open("may still have", answer.status().message());
  const auto* const grant = std::get_if<wire::Grant>(&*answer);
  if (!grant) return open("may still have", "it has answered with something else");
  return grant->bytes == 0 ? Status() : open("still has", kUses);
}

Status DeviceMemory::await_closed(std::vector<std::uint64_t>* ids, std::chrono::milliseconds timeout) {
  using namespace std::chrono_literals;
  const auto until = deadline_after(timeout);
  const auto closed = [&](std::uint64_t id) {
    Status s = closed_by(members_.rank(), id, until);
    for (int r = 0; s.ok() && r < members_.size(); ++r) s = closed_by(r, id, until);
    return s;
  };
  for (auto pause = 100us;; pause = std::min(2 * pause, 10'000us)) {
    free_if_idle();
    Status s;
    while (!ids->empty() && (s = closed(ids->back())).ok()) ids->pop_back();
    if (s.ok() || Clock::now() >= until) return s;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace ouro::rt

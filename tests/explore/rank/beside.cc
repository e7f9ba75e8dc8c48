// The components beside the explored protocols: memory of a host and of devices, as far as the protocols use
// it, and a log without output. Replaces runtime/context, runtime/network, runtime/stream and kernels/device
// in explored programs.
#include "runtime/context/context.h"
#include "runtime/context/faults.h"
#include "runtime/core/log.h"
#include "runtime/exec/gpu/device_receipt.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/setter_streams.h"
#include "runtime/job/remarks.h"
#include "runtime/network/remote_peers.h"
#include "tests/explore/rank/rank.h"

namespace ouro::log {
bool enabled(Level, Subsystem) { return false; }
void write(Level, std::string_view) {}
void warn(const char*, int, std::string_view) {}
}  // namespace ouro::log

namespace ouro {
Result<std::shared_ptr<SharedSegment>> SharedSegment::create(std::size_t bytes, const char* what) {
  auto* const segment = new SharedSegment;
  segment->data_ = static_cast<std::byte*>(explore::place_sparse(bytes, what));
  segment->bytes_ = bytes;
  return std::shared_ptr<SharedSegment>(segment);
}
SharedSegment::~SharedSegment() = default;
}  // namespace ouro

namespace ouro::transport {
void Exchange::damage_next() {}
}  // namespace ouro::transport

namespace ouro::rt {

void Context::notify_other_hosts() {}                   // There are none.
Status Faults::strike(std::string_view) { return {}; }  // OURO_FAULT is not set
Status Faults::to_be_damaged() { return {}; }
bool Faults::is_damage(const Status&) { return false; }
std::optional<std::size_t> read_remarks(const wire::Bytes&, ControlPage*) { return std::nullopt; }

Result<std::shared_ptr<SharedSegment>> HostMemory::segment(std::uint64_t, std::size_t, int) {
  return explore::job->device_words;
}
void HostMemory::drop_segment(std::uint64_t) {}
Result<DeviceMemory::BlockAt> DeviceMemory::group_block(int, std::uint64_t, std::size_t) { return BlockAt{}; }
void DeviceMemory::drop_group_block(std::uint64_t) {}
Result<std::shared_ptr<GpuStream>> setter_stream(int, int) { return std::shared_ptr<GpuStream>(); }
void keep_until_written(const std::shared_ptr<GpuStream>&, std::vector<std::shared_ptr<void>>) {}

std::size_t GpuWords::bytes(int n) {
  return sizeof(Head) + count(n) * sizeof(std::uint32_t) +
         static_cast<std::size_t>(n) * kArrivals * (sizeof(GpuArrival) + sizeof(GpuNote));
}
/// As in gpu_words.cc, without pages and pins: only processors access the words.
Result<std::shared_ptr<GpuWords>> GpuWords::open(std::shared_ptr<SharedSegment> segment, int n) {
  auto* const words = new GpuWords;
  std::byte* at = segment->data();
  words->n_ = n;
  words->head_ = reinterpret_cast<Head*>(at);
  at += sizeof(Head);
  words->words_ = reinterpret_cast<std::uint32_t*>(at);
  words->device_words_ = at;
  at += count(n) * sizeof(std::uint32_t);
  words->arrivals_ = reinterpret_cast<GpuArrival*>(at);
  words->notes_ = reinterpret_cast<GpuNote*>(words->arrivals_ + n * kArrivals);
  words->pin_ = std::move(segment);
  return std::shared_ptr<GpuWords>(words);
}
void GpuWords::set_all(std::uint32_t, std::uint32_t) const {}
std::vector<gpu::MemOp> GpuWords::writes(int, std::uint32_t, std::uint32_t, std::size_t*) const { return {}; }
// No message is on a device.
void DeviceReceipt::arrived(std::size_t, std::size_t, bool) {}
void DeviceReceipt::take_over(const std::shared_ptr<DeviceReceipt>&) {}
Status DeviceReceipt::copy_to(std::byte*) const { return {}; }
Status copy_to_host(std::byte*, const std::byte*, std::size_t) { return {}; }
std::string_view RemotePeer::host() const { return {}; }

}  // namespace ouro::rt

namespace ouro {
bool is_stopped(const Fd&) { return false; }  // no process is stopped
}  // namespace ouro

namespace ouro::gpu {
Gpu& gpu() { std::abort(); }
}  // namespace ouro::gpu

// The memory of fake GPUs: what is allocated, imported, pinned and registered, and what an address is.
// Used by fake_allocator.cc and by the work that is enqueued.
#pragma once
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/segment.h"

namespace ouro::gpu::fake {

enum class Origin : std::uint8_t { legacy, region, import_fd, import_ipc, pinned, registered, alias };
const char* name(Origin);

/// A range of addresses that the fake knows. The last holder unmaps it: work in progress keeps its memory.
struct Block {
  Block() = default;
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  Origin origin = Origin::legacy;
  int device = -1;  ///< -1: memory of the host
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t allocation = 0;
  bool device_address = true;  ///< false: host memory that devices see elsewhere
  std::shared_ptr<device::Segment> segment;
  void* mapping = nullptr;  ///< that this block unmaps
  std::size_t mapping_bytes = 0;
  // ipc imports: which memory, and how often it is open.
  dev_t file_device = 0;
  ino_t file = 0;
  int opened = 1;
};

class Memory {
 public:
  /// `first`: number of device 0 among those of the host, by which handles name devices.
  Memory(int devices, std::size_t bytes_each, int first)
      : limit_(bytes_each), first_(first), used_(static_cast<std::size_t>(devices)) {}

  Result<std::shared_ptr<const Block>> allocate(Origin, int device, std::size_t bytes);
  Result<Region> import_fd(int device, const Fd&, std::size_t bytes);
  Result<Fd> export_fd(const Region&);
  Result<IpcHandle> ipc_export(void* base);
  /// `reaches(peer)`: whether `device` can map memory of that device of the host.
  Result<void*> ipc_open(int device, const IpcHandle&, const std::function<bool(int peer)>& reaches);
  Result<void*> register_host(void*, std::size_t bytes);

  /// The block that begins at `base`, if it is of that origin; else `invalid`, saying what is there.
  Result<std::shared_ptr<const Block>> at(Origin, const void* base) const;
  /// Forgets a block; false if somebody else did.
  bool release(const Block&);

  /// The block around an address, or nullptr.
  std::shared_ptr<const Block> around(const void*) const;
  /// For an access of `bytes`: the block (nullptr for ordinary host memory), or `invalid` if the range leaves
  /// its block, runs into one, or is not mapped.
  Result<std::shared_ptr<const Block>> range(const void*, std::size_t bytes) const;

  int count(std::initializer_list<Origin>) const;
  std::size_t left(int device) const;  ///< bytes that can still be allocated

 private:
  using Key = std::uintptr_t;
  Result<std::shared_ptr<Block>> map(int device, const Fd&, std::size_t bytes, Origin);
  void add(std::shared_ptr<Block>);
  bool overlaps(Key first, std::size_t bytes) const;

  const std::size_t limit_;
  const int first_;
  mutable std::mutex mutex_;
  std::vector<std::size_t> used_;
  std::map<Key, std::shared_ptr<Block>> blocks_;
  std::map<Key, Key> aliases_;  // of registered memory, from the host's address to the devices'
  std::uint64_t next_ = 1;
};

}  // namespace ouro::gpu::fake

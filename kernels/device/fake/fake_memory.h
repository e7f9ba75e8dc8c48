// The memory of fake GPUs: allocations, imports, pinned and registered memory, and the properties of
// an address.
// Used by fake_allocator.cc and by the work that is enqueued.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/segment.h"

namespace ouro::gpu::fake {

/// `chunk`: one piece of memory that the program has mapped into a range of its own, as by cuMemMap.
enum class Origin : std::uint8_t { legacy, region, chunk, import_fd, import_ipc, pinned, registered, alias };
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
  std::shared_ptr<SharedSegment> segment;
  void* mapping = nullptr;  ///< that this block unmaps
  std::size_t mapping_bytes = 0;
  // The imported memory of ipc handles, and how often each is open.
  dev_t file_device = 0;
  ino_t file = 0;
  int opened = 1;
  Fd held;            ///< of an import by handle: its lock shows the exporter that the memory is open here
  bool open = false;  ///< of a chunk: to all devices that can map it
  bool shareable = true;  ///< of a chunk: made with a handle type that other processes can be given
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

  // Memory of cuMemMap, and pieces of it for other processes (fake_pieces.cc).
  Result<void*> reserve(std::size_t bytes);  ///< addresses, for chunks
  Status unreserve(void*);                   ///< once no chunk is left in them
  Status map_chunk(int device, void* at, std::size_t bytes, bool shareable);
  Result<Region> retain(const void* p);
  Status open_to_peers(const Region&);
  Status release_retained(const Region&);
  Result<Fd> export_retained(const Region&) const;
  Result<MappedRange> reserve_range(int device, std::size_t bytes);
  Status map_piece(MappedRange*, const Fd&, std::size_t bytes);
  int retained() const;
  /// Whether memory that is being freed is open in another process by its handle, or is retained.
  bool in_use(const Block&) const;

  /// The block that begins at `base`, if it is of that origin; else `invalid`, saying what is there.
  Result<std::shared_ptr<const Block>> at(Origin, const void* base) const;
  /// Removes a block; false if another thread has removed it.
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
  /// Memory that was retained: it exists until it is released, even if its block is freed before.
  struct Retained {
    Region region;
    std::shared_ptr<SharedSegment> segment;
  };
  Result<std::shared_ptr<Block>> map(int device, const Fd&, std::size_t bytes, Origin);
  void add(std::shared_ptr<Block>);
  bool overlaps(Key first, std::size_t bytes) const;

  const std::size_t limit_;
  const int first_;
  mutable std::mutex mutex_;
  std::vector<std::size_t> used_;
  std::map<Key, std::shared_ptr<Block>> blocks_;
  std::map<Key, std::size_t> reserved_;
  std::map<std::uint64_t, Retained> retained_;  // by handle
  std::map<Key, Key> aliases_;  // of registered memory, from the host's address to the devices'
  std::uint64_t next_ = 1;
};

/// `invalid`, unless it is a descriptor of so many bytes of a fake GPU's memory. `info`: its file.
Status check_descriptor(const Fd&, std::size_t bytes, struct stat* info);
inline std::uintptr_t key(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
std::size_t page_bytes();                              ///< 4 KiB on x86-64; 4, 16 or 64 KiB on aarch64
inline constexpr std::size_t kGranularity = 64 << 10;  ///< of regions and chunks; CUDA's is 2 MiB
void fill_stale(void*, std::size_t bytes);             ///< what memory holds at first

}  // namespace ouro::gpu::fake

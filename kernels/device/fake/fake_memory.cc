// Memory of fake GPUs: sealed segments, mapped again by importers. See fake_memory.h.
#include "kernels/device/fake/fake_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "runtime/core/process.h"

namespace ouro::gpu::fake {
namespace {

constexpr int kStale = 0xa5;                   // so that no code relies on zeros
constexpr std::size_t kStaleBytes = 64 << 10;  // enough to be noticed
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Exported {
  char magic[8];
  std::int32_t pid, fd, device;
  std::uint64_t process, file_device, file, bytes;
};
constexpr char kMagic[8] = "ourofak";
static_assert(sizeof(Exported) <= sizeof(IpcHandle));

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

bool mapped(std::uintptr_t first, std::size_t bytes) {
  const std::uintptr_t page = first / page_bytes() * page_bytes();
  return msync(reinterpret_cast<void*>(page), first + bytes - page, MS_ASYNC) == 0;
}

/// A second mapping of shared memory, or nullptr where there can be none (private memory, several mappings).
/// ThreadSanitizer takes two addresses for two words, so it gets none.
void* second_mapping(std::uintptr_t page, std::size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  static_cast<void>(page), static_cast<void>(bytes);
  return nullptr;
#else
  void* p = mremap(reinterpret_cast<void*>(page), 0, bytes, MREMAP_MAYMOVE);
  return p == MAP_FAILED ? nullptr : p;
#endif
}

}  // namespace

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
void fill_stale(void* p, std::size_t bytes) { std::memset(p, kStale, std::min(bytes, kStaleBytes)); }

const char* name(Origin o) {
  switch (o) {
    case Origin::legacy:
      return "device memory";
    case Origin::region:
      return "a shareable region";
    case Origin::chunk:
      return "a chunk of mapped memory";
    case Origin::import_fd:
      return "an imported region";
    case Origin::import_ipc:
      return "memory opened by an IPC handle";
    case Origin::pinned:
      return "pinned memory";
    case Origin::registered:
      return "registered host memory";
    case Origin::alias:
      return "a device's address of registered host memory";
  }
  return "?";
}

Block::~Block() {
  if (origin == Origin::pinned) std::free(base);
  if (mapping == nullptr) return;
  if (origin == Origin::chunk)  // the range is still reserved
    mmap(mapping, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  else
    munmap(mapping, mapping_bytes);
}

void Memory::add(std::shared_ptr<Block> b) {
  b->allocation = next_++;
  blocks_[key(b->base)] = std::move(b);
}

bool Memory::overlaps(Key first, std::size_t bytes) const {
  auto next = blocks_.lower_bound(first);
  if (next != blocks_.end() && next->first < first + bytes) return true;
  return next != blocks_.begin() && std::prev(next)->first + std::prev(next)->second->bytes > first;
}

Result<std::shared_ptr<const Block>> Memory::allocate(Origin origin, int device, std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  if (bytes > limit_)
    return Status(Reason::resource, fmt::format("{} bytes of memory needed; a device has {}", bytes, limit_));
  auto b = std::make_shared<Block>();
  b->origin = origin;
  b->device = device;
  b->bytes = origin == Origin::region ? round_up(bytes, kGranularity) : bytes;
  if (device < 0) {
    b->base = static_cast<std::byte*>(std::aligned_alloc(page_bytes(), round_up(bytes, page_bytes())));
    if (b->base == nullptr) return Status(Reason::resource, fmt::format("no {} bytes of host memory", bytes));
  } else {
    std::size_t& used = used_[static_cast<std::size_t>(device)];
    {
      std::lock_guard lock(mutex_);
      if (b->bytes > limit_ - used)
        return Status(Reason::resource, fmt::format("{} bytes of memory needed; device {} has {} left of {}",
                                                    b->bytes, device, limit_ - used, limit_));
      used += b->bytes;
    }
    auto segment = SharedSegment::create(b->bytes, "memory of a fake GPU");
    if (!segment.ok()) {
      std::lock_guard lock(mutex_);
      used -= b->bytes;
      return segment.status();
    }
    b->segment = *segment;
    b->base = b->segment->data();
  }
  fill_stale(b->base, b->bytes);
  std::lock_guard lock(mutex_);
  add(b);
  return std::shared_ptr<const Block>(b);
}

Status check_descriptor(const Fd& fd, std::size_t bytes, struct stat* info) {
  if (!fd || fstat(fd.get(), info) != 0) return invalid("no usable descriptor of device memory");
  if (!S_ISREG(info->st_mode) || (fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals)
    return invalid("the descriptor is not one of a fake GPU's memory");
  if (static_cast<std::size_t>(info->st_size) != bytes)
    return invalid(
        fmt::format("the descriptor is of {} bytes of device memory; expected {}", info->st_size, bytes));
  return {};
}

Result<std::shared_ptr<Block>> Memory::map(int device, const Fd& fd, std::size_t bytes, Origin origin) {
  struct stat info {};
  OURO_TRY(check_descriptor(fd, bytes, &info));
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (p == MAP_FAILED)
    return Status(Reason::resource, fmt::format("cannot map {} bytes: {}", bytes, std::strerror(errno)));
  madvise(p, bytes, MADV_DONTFORK);
  auto b = std::make_shared<Block>();
  b->origin = origin;
  b->device = device;
  b->base = static_cast<std::byte*>(p);
  b->bytes = b->mapping_bytes = bytes;
  b->mapping = p;
  b->file_device = info.st_dev;
  b->file = info.st_ino;
  return b;
}

Result<Region> Memory::import_fd(int device, const Fd& fd, std::size_t bytes) {
  auto b = map(device, fd, bytes, Origin::import_fd);
  if (!b.ok()) return b.status();
  std::lock_guard lock(mutex_);
  add(*b);
  return Region{device, (*b)->base, bytes, (*b)->allocation};
}

Result<Fd> Memory::export_fd(const Region& r) {
  auto b = at(Origin::region, r.data);
  if (!b.ok()) return b.status();
  Fd copy(fcntl((*b)->segment->fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return Status(Reason::resource, fmt::format("cannot export: {}", std::strerror(errno)));
  return copy;
}

Result<IpcHandle> Memory::ipc_export(void* base) {
  auto b = at(Origin::legacy, base);
  if (!b.ok()) return b.status();
  struct stat info {};
  if (fstat((*b)->segment->fd(), &info) != 0)
    return Status(Reason::resource, fmt::format("fstat of device memory: {}", std::strerror(errno)));
  Exported e{{},          getpid(),    (*b)->segment->fd(), first_ + (*b)->device, process_number(),
             info.st_dev, info.st_ino, (*b)->bytes};
  std::memcpy(e.magic, kMagic, sizeof kMagic);
  IpcHandle handle{};
  std::memcpy(handle.data(), &e, sizeof e);
  return handle;
}

Result<void*> Memory::ipc_open(int device, const IpcHandle& handle,
                               const std::function<bool(int peer)>& reaches) {
  Exported e;
  std::memcpy(&e, handle.data(), sizeof e);
  if (std::memcmp(e.magic, kMagic, sizeof kMagic) != 0) return invalid("not an IPC handle of a fake GPU");
  if (e.process == process_number())
    return invalid("an IPC handle cannot be opened in the process that exported it");
  if (!reaches(e.device))
    return invalid(fmt::format("device {} cannot map memory of device {}", device, e.device));
  std::lock_guard lock(mutex_);
  for (auto& [at, b] : blocks_)
    if (b->origin == Origin::import_ipc && b->device == device && b->file_device == e.file_device &&
        b->file == e.file) {
      ++b->opened;
      return static_cast<void*>(b->base);
    }
  Fd fd(::open(fmt::format("/proc/{}/fd/{}", e.pid, e.fd).c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0 || info.st_dev != e.file_device || info.st_ino != e.file)
    return invalid(
        fmt::format("the memory of this IPC handle does not exist any more: process {} has freed it, or "
                    "ended, or is in another PID namespace",
                    e.pid));
  auto b = map(device, fd, e.bytes, Origin::import_ipc);
  if (!b.ok()) return b.status();
  struct flock reads {};
  reads.l_type = F_RDLCK, reads.l_whence = SEEK_SET;
  if (fcntl(fd.get(), F_OFD_SETLK, &reads) == 0) (*b)->held = std::move(fd);
  add(*b);
  return static_cast<void*>((*b)->base);
}

Result<void*> Memory::register_host(void* p, std::size_t bytes) {
  if (p == nullptr || bytes == 0) return invalid("no memory to register");
  const std::size_t unit = page_bytes();
  const Key first = key(p), page = first / unit * unit, whole = round_up(first + bytes, unit) - page;
  std::lock_guard lock(mutex_);
  if (overlaps(first, bytes)) return invalid("memory to register is pinned or device memory already");
  if (!mapped(first, bytes)) return invalid("memory to register is not mapped");
  auto host = std::make_shared<Block>();
  host->origin = Origin::registered;
  host->base = static_cast<std::byte*>(p);
  host->bytes = bytes;
  void* elsewhere = second_mapping(page, whole);
  if (elsewhere == nullptr) {
    add(host);
    return p;
  }
  auto alias = std::make_shared<Block>();
  alias->origin = Origin::alias;
  alias->mapping = elsewhere;
  alias->mapping_bytes = whole;
  alias->base = static_cast<std::byte*>(elsewhere) + (first - page);
  alias->bytes = bytes;
  host->device_address = false;
  void* address = alias->base;
  aliases_[first] = key(address);
  add(alias);
  add(host);  // last, because nothing is registered if it fails
  return address;
}

Result<std::shared_ptr<const Block>> Memory::at(Origin origin, const void* base) const {
  std::lock_guard lock(mutex_);
  auto it = blocks_.find(key(base));
  if (it != blocks_.end() && it->second->origin == origin) return std::shared_ptr<const Block>(it->second);
  const char* found = "unknown memory, or was released already";
  if (it != blocks_.end()) {
    found = name(it->second->origin);
  } else if (it = blocks_.upper_bound(key(base)); it != blocks_.begin()) {
    --it;
    if (key(base) - it->first < it->second->bytes) found = "the inside of an allocation, not its beginning";
  }
  return invalid(fmt::format("expected {}, but {} is {}", name(origin), fmt::ptr(base), found));
}

bool Memory::release(const Block& b) {
  std::shared_ptr<Block> ends, alias;  // unmapped after the lock
  std::lock_guard lock(mutex_);
  auto it = blocks_.find(key(b.base));
  if (it == blocks_.end() || it->second.get() != &b) return false;
  if (--it->second->opened > 0) return true;
  if (b.segment != nullptr) used_[static_cast<std::size_t>(b.device)] -= b.bytes;
  if (auto also = aliases_.find(key(b.base)); also != aliases_.end()) {
    alias = std::move(blocks_[also->second]);
    blocks_.erase(also->second);
    aliases_.erase(also);
  }
  ends = std::move(it->second);
  blocks_.erase(it);
  return true;
}

std::shared_ptr<const Block> Memory::around(const void* p) const {
  std::lock_guard lock(mutex_);
  auto it = blocks_.upper_bound(key(p));
  if (it == blocks_.begin()) return nullptr;
  --it;
  return key(p) - it->first < it->second->bytes ? it->second : nullptr;
}

Result<std::shared_ptr<const Block>> Memory::range(const void* p, std::size_t bytes) const {
  const Key first = key(p);
  if (auto b = around(p)) {
    if (b->origin == Origin::chunk && bytes > b->bytes - (first - key(b->base))) {
      // Chunks that adjoin are one range to an access; all of them are held.
      auto all = std::make_shared<std::vector<std::shared_ptr<const Block>>>(1, b);
      while (all->back() && all->back()->origin == Origin::chunk &&
             key(all->back()->base) + all->back()->bytes < first + bytes)
        all->push_back(around(all->back()->base + all->back()->bytes));
      if (all->back() && all->back()->origin == Origin::chunk)
        return std::shared_ptr<const Block>(all, b.get());
    }
    if (bytes > b->bytes - (first - key(b->base)))
      return invalid(fmt::format("{} bytes at {} leave {} of {} bytes at {}", bytes, p, name(b->origin),
                                 b->bytes, fmt::ptr(b->base)));
    return b;
  }
  std::lock_guard lock(mutex_);
  if (overlaps(first, bytes))
    return invalid(fmt::format("{} bytes at {} run into memory that is allocated behind it", bytes, p));
  const auto range = reserved_.upper_bound(first);
  if (range != reserved_.begin() && first - std::prev(range)->first < std::prev(range)->second)
    return invalid(fmt::format("{} bytes at {} are reserved, and no chunk is mapped there", bytes, p));
  if (!mapped(first, bytes)) return invalid(fmt::format("{} bytes at {} are not mapped memory", bytes, p));
  return std::shared_ptr<const Block>();
}

std::size_t Memory::left(int device) const {
  std::lock_guard lock(mutex_);
  return limit_ - used_[static_cast<std::size_t>(device)];
}

int Memory::count(std::initializer_list<Origin> origins) const {
  std::lock_guard lock(mutex_);
  int n = 0;
  for (auto& [at, b] : blocks_) n += std::count(origins.begin(), origins.end(), b->origin) != 0;
  return n;
}

}  // namespace ouro::gpu::fake

// Copies that differ in how the destination will be used next. Used by the host executor.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ouro::kernels {

/// Copies up to 16 bytes without a call; if there are more, copies nothing and returns false. `to`
/// may be `from`.
inline bool copy_few(void* to, const void* from, std::size_t bytes) {
  // Two moves that may overlap cover every length between one and two moves; both are read before either
  // is written.
  const auto two = [&]<class T>(T first, T last) {
    std::memcpy(&first, from, sizeof(T));
    std::memcpy(&last, static_cast<const std::byte*>(from) + bytes - sizeof(T), sizeof(T));
    std::memcpy(to, &first, sizeof(T));
    std::memcpy(static_cast<std::byte*>(to) + bytes - sizeof(T), &last, sizeof(T));
  };
  if (bytes > 16) return false;
  if (bytes >= 8)
    two(std::uint64_t{}, std::uint64_t{});
  else if (bytes >= 4)
    two(std::uint32_t{}, std::uint32_t{});
  else if (bytes >= 2)
    two(std::uint16_t{}, std::uint16_t{});
  else if (bytes == 1)
    *static_cast<std::byte*>(to) = *static_cast<const std::byte*>(from);
  return true;
}

/// How a copy writes: by ordinary stores; by `rep movsb`, which writes whole lines without fetching their
/// old contents; by non-temporal stores, which bypass the caches; or by ordinary stores into lines that
/// were prefetched.
enum class CopyKind : std::uint8_t { plain, rep, stream, prefetch };
inline constexpr std::size_t kCopyKinds = 4;
const char* name(CopyKind);
/// Copies in the given way. The copy is ordered before a later release store, as any other store is.
void copy_as(CopyKind, void* to, const void* from, std::size_t bytes);
/// Sizes, in bytes, at which the kinds are measured. One kind is chosen for each size class; a class reaches
/// to the geometric mean of its size and the next.
inline constexpr std::array<std::size_t, 4> kCopySizes = {4 << 10, 64 << 10, 256 << 10, 1 << 20};
using CopyKinds = std::array<CopyKind, kCopySizes.size()>;
/// The fastest kinds on the machine on which ouro was developed, for near and far cores.
inline constexpr CopyKinds kDefaultCopyKinds = {CopyKind::rep, CopyKind::rep, CopyKind::rep, CopyKind::rep};
/// Memory that others read next: a post in a staging slot, or a buffer that belongs to another rank.
enum class Shared : std::uint8_t { slot, buffer };
constexpr std::size_t copy_size_class(std::size_t bytes) {
  return std::size_t{bytes >= (16 << 10)} + (bytes >= (128 << 10)) + (bytes >= (512 << 10));
}

/// Requests the cache line of `at` for a later store, and does not wait for it.
[[gnu::always_inline]] inline void own_line(const void* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

/// Copies into memory that another core has in its cache, or will read next. From 2 KiB on it uses the
/// kinds in force.
void copy_slot_lines(void* to, const void* from, std::size_t bytes);
void copy_buffer_lines(void* to, const void* from, std::size_t bytes);
[[gnu::always_inline]] inline void copy_slot(void* to, const void* from, std::size_t bytes) {
  if (!copy_few(to, from, bytes)) copy_slot_lines(to, from, bytes);
}
[[gnu::always_inline]] inline void copy_buffer(void* to, const void* from, std::size_t bytes) {
  if (!copy_few(to, from, bytes)) copy_buffer_lines(to, from, bytes);
}
/// The same by the built-in kinds: into memory that no other core has in its nearer caches, or whose lines
/// this core has just read.
void copy_built_in(void* to, const void* from, std::size_t bytes);
/// Sets the kinds that copies into such memory use in this process from now on. Safe at any time: all kinds
/// copy the same bytes.
void set_copy_kinds(Shared, const CopyKinds&);
CopyKinds copy_kinds(Shared);

/// Copies into memory that is not read soon: non-temporal stores, which bypass the caches and do not read the
/// old contents. Call stream_fence() before publishing the data.
void copy_stream(void* to, const void* from, std::size_t bytes);
void stream_fence();

}  // namespace ouro::kernels

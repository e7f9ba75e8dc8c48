// Copies by kind of destination. See copy.h.
#include "kernels/host/copy.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "runtime/core/per_process.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ouro::kernels {
namespace {

// One byte per size class, so that a single load reads all kinds.
constexpr std::uint32_t packed(const CopyKinds& kinds) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) word |= static_cast<std::uint32_t>(kinds[i]) << (8 * i);
  return word;
}
constexpr CopyKind kind_for(std::uint32_t word, std::size_t size_class) {
  return static_cast<CopyKind>(word >> (8 * size_class) & 0xFF);
}
std::atomic<std::uint32_t> g_kinds[] = {packed(kDefaultCopyKinds), packed(kDefaultCopyKinds)};  // by Shared
std::atomic<std::uint32_t>& kinds_of(Shared s) { return g_kinds[static_cast<std::size_t>(s)]; }

}  // namespace

void set_copy_kinds(Shared memory, const CopyKinds& kinds) {
  kinds_of(memory).store(packed(kinds), std::memory_order_relaxed);
}
CopyKinds copy_kinds(Shared memory) {
  const std::uint32_t word = kinds_of(memory).load(std::memory_order_relaxed);
  CopyKinds kinds{};
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i] = kind_for(word, i);
  return kinds;
}

const char* name(CopyKind kind) {
  constexpr const char* kNames[kCopyKinds] = {"plain", "rep", "stream", "prefetch"};
  return kNames[static_cast<std::size_t>(kind)];
}

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLine = 64;
// A number of bytes. For fewer, the start-up of `rep movsb` costs more than it saves; up to twice as many,
// the look-up of a kind costs more.
constexpr std::size_t kRepFrom = 1024;

// Copies whole lines by the widest registers available; `to` is aligned to a line. A line is loaded before it
// is stored, so that a miss does not separate its stores; loops over several lines at once, or with
// prefetches, were no faster.
__attribute__((target("avx512f"))) void stream_lines_512(std::byte* to, const std::byte* from,
                                                         std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
__attribute__((target("avx2"))) void stream_lines_256(std::byte* to, const std::byte* from,
                                                      std::size_t lines) {
  constexpr std::size_t kHalf = kLine / 2;
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine) {
    const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                  second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + kHalf));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), first);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + kHalf), second);
  }
}
void stream_lines_128(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine)
    for (std::size_t part = 0; part < kLine; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
}

using StreamLoop = void (*)(std::byte*, const std::byte*, std::size_t);
/// The loop for the named instruction set; nullptr if this processor lacks it.
StreamLoop stream_loop(std::string_view set) {
  if (set == "avx512") return __builtin_cpu_supports("avx512f") ? stream_lines_512 : nullptr;
  if (set == "avx2") return __builtin_cpu_supports("avx2") ? stream_lines_256 : nullptr;
  return set == "baseline" ? stream_lines_128 : nullptr;
}
constinit MadeOnce<std::atomic<StreamLoop>> g_stream_loop;
std::atomic<StreamLoop>& chosen_stream_loop() {
  return g_stream_loop.get([] {
    for (const char* set : {"avx512", "avx2"})
      if (const StreamLoop found = stream_loop(set)) return found;
    return &stream_lines_128;
  });
}

void copy_by_rep(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

// Copies in blocks, each prefetched while the block before it is copied; a block is the number of
// lines in flight.
void copy_prefetched(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kBlock = 16 * kLine;
  const auto ask = [](const std::byte* at, std::size_t block) {
    for (std::size_t i = 0; i < block; i += kLine) own_line(at + i);
  };
  ask(to, std::min(bytes, kBlock));
  while (bytes > 0) {
    const std::size_t now = std::min(bytes, kBlock);
    bytes -= now;
    ask(to + now, std::min(bytes, kBlock));
    std::memcpy(to, from, now);
    to += now, from += now;
  }
}

}  // namespace

/// Sets the loop of copy_stream by the name of an instruction set; false if this processor lacks it.
/// For tests.
bool use_stream_loop(std::string_view set) {
  const StreamLoop loop = stream_loop(set);
  if (loop) chosen_stream_loop().store(loop, std::memory_order_relaxed);
  return loop != nullptr;
}

void copy_as(CopyKind kind, void* to, const void* from, std::size_t bytes) {
  switch (kind) {
    case CopyKind::plain:
      std::memcpy(to, from, bytes);
      return;
    case CopyKind::rep:
      copy_by_rep(to, from, bytes);
      return;
    case CopyKind::stream:
      copy_stream(to, from, bytes);
      stream_fence();
      return;
    case CopyKind::prefetch:
      copy_prefetched(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
      return;
  }
}

namespace {
template <class KindOf>
[[gnu::always_inline]] inline void copy_lines(void* to, const void* from, std::size_t bytes,
                                              KindOf&& kind_of) {
  if (bytes - kRepFrom < kRepFrom) return copy_by_rep(to, from, bytes);
  if (bytes < kRepFrom) {
    std::memcpy(to, from, bytes);
    return;
  }
  copy_as(kind_of(copy_size_class(bytes)), to, from, bytes);
}
auto in_force(Shared memory) {
  return [memory](std::size_t size_class) {
    return kind_for(kinds_of(memory).load(std::memory_order_relaxed), size_class);
  };
}
}  // namespace
void copy_slot_lines(void* to, const void* from, std::size_t bytes) {
  copy_lines(to, from, bytes, in_force(Shared::slot));
}
void copy_buffer_lines(void* to, const void* from, std::size_t bytes) {
  copy_lines(to, from, bytes, in_force(Shared::buffer));
}
void copy_built_in(void* to, const void* from, std::size_t bytes) {
  copy_lines(to, from, bytes, [](std::size_t size_class) { return kDefaultCopyKinds[size_class]; });
}

void copy_stream(void* to_, const void* from_, std::size_t bytes) {
  auto* to = static_cast<std::byte*>(to_);
  const auto* from = static_cast<const std::byte*>(from_);
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes < head + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  const std::size_t lines = bytes / kLine;
  chosen_stream_loop().load(std::memory_order_relaxed)(to, from, lines);
  std::memcpy(to + lines * kLine, from + lines * kLine, bytes % kLine);
}

void stream_fence() { _mm_sfence(); }

#else

void copy_as(CopyKind, void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_slot_lines(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_built_in(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_buffer_lines(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
bool use_stream_loop(std::string_view set) { return set == "baseline"; }
void copy_stream(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void stream_fence() {}

#endif

}  // namespace ouro::kernels

// Copies by kind of destination. See copy.h.
#include "kernels/host/copy.h"

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ouro::kernels {

#if defined(__x86_64__)
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kRepFrom = 1024;  // bytes; below, the start of `rep movsb` costs more than it saves

// Whole lines, `to` aligned to one. Two builds of one loop: one store a line where there are 64-byte
// registers.
__attribute__((target("avx512f"))) void stream_lines_512(std::byte* to, const std::byte* from,
                                                         std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
void stream_lines_128(std::byte* to, const std::byte* from, std::size_t lines) {
  for (std::size_t i = 0; i < lines; ++i, to += kLine, from += kLine)
    for (std::size_t part = 0; part < kLine; part += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part)));
}

}  // namespace

void copy_shared_lines(void* to, const void* from, std::size_t bytes) {
  if (bytes < kRepFrom) {
    std::memcpy(to, from, bytes);
    return;
  }
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
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
  static const bool wide = __builtin_cpu_supports("avx512f") != 0;
  (wide ? stream_lines_512 : stream_lines_128)(to, from, lines);
  std::memcpy(to + lines * kLine, from + lines * kLine, bytes % kLine);
}

void stream_fence() { _mm_sfence(); }

#else

void copy_shared_lines(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void copy_stream(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void stream_fence() {}

#endif

}  // namespace ouro::kernels

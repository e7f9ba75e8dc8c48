// Probes with one thread pinned to each core. Short: the whole set takes about half a second.
// Used by harness.cc and probe_main.cc.
#include "bench/comparison/probe.h"

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "bench/comparison/pattern.h"
#include "bench/comparison/shared.h"
#include "tools/measure/figures.h"

namespace ouro::compare {
namespace {

constexpr std::size_t kRegion = std::size_t{48} << 20;  // of one stream; eight of them are far above any L3
constexpr std::size_t kHot = 64 << 10;  // with its source and both ranks' staging buffers well within L2
constexpr int kPasses = 4, kHotPasses = 400;

using measure::await;
using measure::pin;

/// Memory on large pages where the kernel grants them.
class Region {
 public:
  explicit Region(std::size_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) at_ = nullptr;
    if (at_) madvise(at_, bytes, MADV_HUGEPAGE);
    if (at_) rewrite(at_, bytes, 0);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (at_) munmap(at_, bytes_);
  }
  char* data() const { return static_cast<char*>(at_); }

 private:
  std::size_t bytes_;
  void* at_;
};

/// r sources, w destinations; non-temporal stores, 64 bytes in each iteration.
template <int kReads, int kWrites>
void stream(char* const* in, char* const* out, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    __m128i v[4];
    for (int k = 0; k < 4; ++k) {
      v[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(in[0] + i) + k);
      for (int r = 1; r < kReads; ++r)
        v[k] = _mm_add_epi32(v[k], _mm_load_si128(reinterpret_cast<const __m128i*>(in[r] + i) + k));
    }
    for (int w = 0; w < kWrites; ++w)
      for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(out[w] + i) + k, v[k]);
  }
  _mm_sfence();
}

/// Loads of the machine's full width, independent of each other: reading must not be bound by the additions.
__attribute__((target("avx2"))) std::uint64_t read_avx2(const char* at, std::size_t bytes) {
  __m256i sums[8] = {};
  for (std::size_t i = 0; i < bytes; i += sizeof sums)
    for (int k = 0; k < 8; ++k)
      sums[k] = _mm256_add_epi64(sums[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i) + k));
  for (int k = 1; k < 8; ++k) sums[0] = _mm256_add_epi64(sums[0], sums[k]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sums[0], 0) ^ _mm256_extract_epi64(sums[0], 3));
}

std::uint64_t read_fast(const char* at, std::size_t bytes) {
  static const bool wide = __builtin_cpu_supports("avx2");
  return wide ? read_avx2(at, bytes) : read(at, bytes);
}

/// Four streams read, three of them written again: an optimiser, or a direct reduction in place.
void update(char* const* s, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 16) {
    const __m128i g = _mm_load_si128(reinterpret_cast<const __m128i*>(s[3] + i));
    for (int k = 0; k < 3; ++k) {
      auto* p = reinterpret_cast<__m128i*>(s[k] + i);
      _mm_store_si128(p, _mm_add_epi32(_mm_load_si128(p), g));
    }
  }
}

void rep_movsb(void* to, const void* from, std::size_t n) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

/// Runs f(thread) on both cores at once, `passes` times. Returns the GB/s of the best pass, counting the
/// bytes of both.
template <class F>
double both(const std::vector<int>& cores, int passes, double bytes_each, F f) {
  std::barrier<> gate(2);
  std::int64_t begin[2] = {}, end[2] = {};
  double best = 0;
  auto work = [&](int me) {
    pin(cores[static_cast<std::size_t>(me)]);
    for (int p = 0; p < passes; ++p) {
      gate.arrive_and_wait();
      begin[me] = now_ns();
      f(me);
      end[me] = now_ns();
      gate.arrive_and_wait();
      if (me == 0) {
        const auto ns = static_cast<double>(std::max(end[0], end[1]) - std::min(begin[0], begin[1]));
        best = std::max(best, 2 * bytes_each / ns);
      }
    }
  };
  std::jthread other(work, 1), self(work, 0);
  other.join();
  self.join();
  return best;
}

}  // namespace

double handoff_ns(const std::vector<int>& cores) {
  return cores.size() < 2 ? 0 : measure::handoff_ns(cores[0], cores[1]);
}

Memory memory_gbs(const std::vector<int>& cores) {
  if (cores.size() < 2) return {};
  const Region a(4 * kRegion), b(4 * kRegion);
  if (!a.data() || !b.data()) return {};
  auto streams = [&](int me, char** s) {
    for (int k = 0; k < 4; ++k) s[k] = (me ? b : a).data() + static_cast<std::size_t>(k) * kRegion;
  };
  const auto n = static_cast<double>(kRegion);
  std::atomic<std::uint64_t> sink{0};
  Memory m;
  m.read = both(cores, kPasses, 4 * n, [&](int me) { sink += read_fast((me ? b : a).data(), 4 * kRegion); });
  auto with = [&](auto f) {
    return [&streams, f](int me) {
      char* s[4];
      streams(me, s);
      f(s);
    };
  };
  m.copy = both(cores, kPasses, 2 * n, with([](char** s) { stream<1, 1>(s, s + 2, kRegion); }));
  m.sum = both(cores, kPasses, 3 * n, with([](char** s) { stream<2, 1>(s, s + 2, kRegion); }));
  m.spread = both(cores, kPasses, 3 * n, with([](char** s) { stream<1, 2>(s, s + 2, kRegion); }));
  m.in_place = both(cores, kPasses, 7 * n, with([](char** s) { update(s, kRegion); }));
  return m;
}

Coherence coherence_gbs(const std::vector<int>& cores) {
  if (cores.size() < 2) return {};
  const Region mine(3 * kHot), theirs(3 * kHot);  // each: a source and two alternating staging buffers
  if (!mine.data() || !theirs.data()) return {};
  std::barrier<> gate(2);
  std::vector<std::int64_t> spent[2][3];  // of each core: copies in, reads, stores
  // In each pass both fill their own staging buffer and then read the other's, so lines are dirty there when
  // they are read and shared when they are written again.
  auto work = [&](int me) {
    pin(cores[static_cast<std::size_t>(me)]);
    char* own = (me ? theirs : mine).data();
    const char* other = (me ? mine : theirs).data();
    std::uint64_t seen = 0;
    for (int p = 0; p < 2 * kHotPasses; ++p) {
      const bool movsb = p % 2 == 0;
      char* board = own + (movsb ? kHot : 2 * kHot);
      gate.arrive_and_wait();
      const std::int64_t t0 = now_ns();
      movsb ? rep_movsb(board, own, kHot) : rewrite(board, kHot, static_cast<unsigned>(p));
      const std::int64_t t1 = now_ns();
      gate.arrive_and_wait();
      const std::int64_t t2 = now_ns();
      seen += read_fast(other + (board - own), kHot);
      const std::int64_t t3 = now_ns();
      if (p < 20) continue;  // warm up
      spent[me][movsb ? 0 : 2].push_back(t1 - t0);
      if (!movsb) spent[me][1].push_back(t3 - t2);
    }
    volatile std::uint64_t sink = seen;
    (void)sink;
  };
  { std::jthread other(work, 1), self(work, 0); }
  auto median = [](std::vector<std::int64_t>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  auto rate = [&](int k) {
    return static_cast<double>(kHot) /
           static_cast<double>(std::max(median(spent[0][k]), median(spent[1][k])));
  };
  return {.copy_in = rate(0), .read_peer = rate(1), .store = rate(2)};
}

}  // namespace ouro::compare

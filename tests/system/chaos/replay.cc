// Draws the inputs and recomputes the outputs. See replay.h.
#include "tests/system/chaos/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace ouro::chaos {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // SplitMix64's output function
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
std::uint64_t drawn(const Step& s, std::uint64_t which, std::uint64_t i = 0) {
  return mixed(mixed(mixed(s.seed + 0x9e3779b97f4a7c15u) + s.number) + (which << 32) + i);
}
constexpr std::uint64_t kCount = 1 << 20, kOp = kCount + 1;  // indices beyond all ranks

std::int64_t reduced(const Step& s, std::int64_t a, std::int64_t b) {
  if (s.maximum()) return std::max(a, b);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <class T>
Status compare(const char* what, const Step& s, std::span<const T> got, std::span<const T> want) {
  if (std::memcmp(got.data(), want.data(), want.size_bytes()) == 0) return {};
  std::size_t i = 0;
  while (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) ++i;
  return {Reason::data_corrupt,
          fmt::format("{} of step {}: element {} of {} is {} in place of {}, and nobody said so", what,
                      s.number, i, want.size(), got[i], want[i])};
}

/// The sum of element i over all members as `canonical` specifies it: in rank order.
float folded(const Step& s, std::span<const int> members, std::size_t i) {
  float sum = s.real(members[0], i);
  for (std::size_t m = 1; m < members.size(); ++m) sum += s.real(members[m], i);
  return sum;
}

Status integers(const Step& s, Group& g, std::span<const int> members, bool stop, bool* stopped,
                std::uint64_t* completed) {
  const std::size_t n = s.count();
  const int self = members[static_cast<std::size_t>(g.rank())];
  std::vector<std::int64_t> in(n + 1), out(n + 1, -1), want(n + 1);
  for (std::size_t i = 0; i < n; ++i) in[i] = s.integer(self, i);
  in[n] = stop && g.rank() == 0 ? 1 : 0;
  OURO_TRY(
      all_reduce(g, View{std::span(in)}, View{std::span(out)}, s.maximum() ? ReduceOp::max : ReduceOp::sum));
  ++*completed;
  for (std::size_t i = 0; i < n; ++i) {
    want[i] = s.integer(members[0], i);
    for (std::size_t m = 1; m < members.size(); ++m) want[i] = reduced(s, want[i], s.integer(members[m], i));
  }
  want[n] = out[n] == 1 ? 1 : 0;
  OURO_TRY(compare<std::int64_t>("all_reduce", s, out, want));
  *stopped = out[n] == 1;
  return {};
}

Status reals(const Step& s, Group& g, std::span<const int> members, std::uint64_t* completed) {
  const std::size_t n = s.count(), size = members.size(), mine = static_cast<std::size_t>(g.rank());
  std::vector<float> in(n * size), out(n, -1), want(n);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = s.real(members[mine], i);
  OURO_TRY(reduce_scatter(g, View{std::span(in)}, View{std::span(out)}, ReduceOp::sum,
                          {.numerics = Numerics::canonical}));
  ++*completed;
  for (std::size_t i = 0; i < n; ++i) want[i] = folded(s, members, mine * n + i);
  OURO_TRY(compare<float>("reduce_scatter", s, out, want));

  std::vector<float> all(n * size, -1);
  OURO_TRY(all_gather(g, View{std::span(out)}, View{std::span(all)}));
  ++*completed;
  std::vector<float> whole(n * size);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = folded(s, members, i);
  OURO_TRY(compare<float>("all_gather", s, all, whole));

  OURO_TRY(all_reduce(g, View{std::span(in).first(n)}, View{std::span(out)}, ReduceOp::sum,
                      {.numerics = Numerics::canonical}));
  ++*completed;
  return compare<float>("canonical all_reduce", s, out, std::span(whole).first(n));
}

}  // namespace

std::size_t Step::count() const {
  const std::uint64_t r = drawn(*this, kCount);
  constexpr std::size_t kBelow[] = {8, 8, 200, 200, 3'000, 50'000};
  return 1 + (r >> 8) % kBelow[r % std::size(kBelow)];
}
bool Step::maximum() const { return drawn(*this, kOp) % 2 == 0; }
std::int64_t Step::integer(int rank, std::size_t i) const {
  return static_cast<std::int64_t>(drawn(*this, static_cast<std::uint64_t>(rank), 2 * i));
}
float Step::real(int rank, std::size_t i) const {
  const std::uint64_t r = drawn(*this, static_cast<std::uint64_t>(rank), 2 * i + 1);
  const auto exponent = static_cast<std::uint32_t>(127 - 20 + (r >> 32) % 41);
  return std::bit_cast<float>((static_cast<std::uint32_t>(r) & 0x807fffffu) | exponent << 23);
}

Status run(const Step& s, Group& g, std::span<const int> members, bool stop, bool* stopped,
           std::uint64_t* completed) {
  OURO_TRY(reals(s, g, members, completed));
  return integers(s, g, members, stop, stopped, completed);
}

}  // namespace ouro::chaos

// Digests of tensor lists, and the reduction that compares them. See average_agreement.h.
#include "api/src/train/average_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <tuple>

#include "api/src/not_in_batch.h"

namespace ouro::train {
namespace {

/// The finaliser of splitmix64 (Steele, Lea, Flood, 2014).
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

std::string range(std::uint64_t highest, std::uint64_t lowest) {
  return highest == lowest ? fmt::format("{}", highest) : fmt::format("{} to {}", lowest, highest);
}

}  // namespace

void Digest::mix(std::uint64_t word) { state_ = scramble(state_ + 0x9e3779b97f4a7c15 + word); }
void Digest::add(double x) { mix(std::bit_cast<std::uint64_t>(x)); }
void Digest::add(std::string_view text) {
  add(text.size());
  for (const char c : text) add(static_cast<unsigned char>(c));
}
void Digest::add(const Param& p) {
  add(p.name);
  add(p.value.dtype);
  add(p.value.device.kind);
  add(p.value.count);
  add(p.shape.size());
  for (const std::int64_t d : p.shape) add(d);
  add(p.order);
}

Agreement::Agreement(std::uint64_t digest, std::size_t tensors, std::size_t elements)
    : words_{digest, ~digest, tensors, ~tensors, elements, ~elements, 0} {}

void Agreement::also(std::uint64_t word) {
  words_[0] = scramble(words_[0] ^ word);
  words_[1] = ~words_[0];
}

Agreement Agreement::refusal(int world_rank) {
  Agreement a;
  std::fill(a.words_.begin(), a.words_.end() - 1, ~std::uint64_t{0});
  a.words_.back() = static_cast<std::uint64_t>(world_rank) + 1;
  return a;
}

bool Agreement::agreed() const {
  return words_[0] == ~words_[1] && words_[2] == ~words_[3] && words_[4] == ~words_[5] && words_.back() == 0;
}

Status Agreement::verdict(std::string_view call, const Agreement& mine) const {
  if (agreed()) return {};
  if (words_.back() != 0)
    return invalid(
        fmt::format("{}: rank {} refused its tensors; its own error says why", call, words_.back() - 1));
  std::string found;
  if (words_[2] == ~words_[3] && words_[4] == ~words_[5])
    found = "their names, shapes, types, devices, order or options";
  else
    found =
        fmt::format("{} tensors of {} elements", range(words_[2], ~words_[3]), range(words_[4], ~words_[5]));
  return invalid(
      fmt::format("{}: the ranks differ: found {}; this rank has {} tensors of {} elements, digest {:016x}",
                  call, found, mine.words_[2], mine.words_[4], mine.words_[0]));
}

Status agree(Group& g, std::string_view call, const Agreement& claim, const Status& mine) {
  OURO_TRY(not_in_batch(call));
  if (g.size() <= 1) return mine;
  Agreement all = mine.ok() ? claim : Agreement::refusal(g.ranks()[static_cast<std::size_t>(g.rank())]);
  const View words = all.view();
  Status exchanged = all_reduce(g, words, words, ReduceOp::max);
  if (!mine.ok()) return mine;  // of the two the one that can be mended here
  OURO_TRY(exchanged);
  return all.verdict(call, claim);
}

std::int64_t elements_of(std::span<const std::int64_t> shape) {
  std::int64_t n = 1;
  for (const std::int64_t d : shape)
    if (d < 0 || __builtin_mul_overflow(n, d, &n)) return -1;
  return n;
}

Status check_tensors(std::string_view call, std::span<const Param> params, bool gradients) {
  struct Range {
    std::uintptr_t begin, end;
    const Param* param;
  };
  std::vector<Range> ranges;
  const View* first = nullptr;
  for (const Param& p : params) {
    const View& v = gradients ? p.grad : p.value;
    if (gradients && v.data == nullptr) continue;
    const auto wrong = [&](const std::string& what) {
      return invalid(fmt::format("{}: parameter '{}' {}", call, p.name, what));
    };
    if (!trains(v.dtype))
      return wrong(fmt::format("is of type {}; expected double, float, bfloat16 or half", name(v.dtype)));
    if (v.data == nullptr && v.count > 0) return wrong("is a null pointer");
    if (gradients && v.count != p.value.count)
      return wrong(fmt::format("has {} elements, its gradient {}", p.value.count, v.count));
    if (const std::int64_t n = elements_of(p.shape);
        !p.shape.empty() && (n < 0 || static_cast<std::size_t>(n) != v.count))
      return wrong(fmt::format("has {} elements, its shape ({}) {}; expected contiguous memory", v.count,
                               fmt::join(p.shape, ","), n < 0 ? "none" : fmt::format("{}", n)));
    if (p.order == Order::channels_last && p.shape.size() != 4)
      return wrong(fmt::format("is channels_last with {} dimensions; expected 4", p.shape.size()));
    if (first != nullptr && v.device != first->device)
      return wrong("is on another device than those before it; expected one device");
    if (first == nullptr) first = &v;
    const auto at = reinterpret_cast<std::uintptr_t>(v.data);
    if (v.count > 0) ranges.push_back({at, at + v.bytes(), &p});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    const Range &a = ranges[i - 1], &b = ranges[i];
    if (b.begin < a.end && (a.begin != b.begin || a.end != b.end))
      return invalid(
          fmt::format("{}: parameters '{}' and '{}' overlap in part", call, a.param->name, b.param->name));
  }
  return {};
}

}  // namespace ouro::train

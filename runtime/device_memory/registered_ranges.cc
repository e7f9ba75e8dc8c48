// An index of registered address ranges. See registered_ranges.h.
#include "runtime/device_memory/registered_ranges.h"

#include <algorithm>
#include <iterator>

namespace ouro::rt {

std::uint64_t RegisteredRanges::add_range(const std::byte* begin, const std::byte* end,
                                          std::uint64_t export_id, std::uint64_t allocation) {
  const std::uint64_t number = next_number_++;
  begins_[number] = begin;
  longest_ = std::max(longest_, static_cast<std::size_t>(end - begin));
  ranges_.emplace(begin, Range{begin, end, export_id, number, allocation});
  runs_.clear();
  return number;
}

std::uint64_t RegisteredRanges::export_around(const std::byte* p, std::size_t bytes) const {
  const Range* oldest = nullptr;
  for (auto it = ranges_.upper_bound(p); it != ranges_.begin();) {
    const Range& range = (--it)->second;
    if (range.end >= p + bytes && (!oldest || range.number < oldest->number)) oldest = &range;
    // No range that begins before this one is long enough.
    if (static_cast<std::size_t>(p - range.begin) + bytes > longest_) break;
  }
  if (oldest) return oldest->export_id;
  for (const Union& u : unions_)
    if (u.run.begin <= p && u.run.end >= p + bytes) return u.export_id;
  return 0;
}

std::optional<RegisteredRanges::Run> RegisteredRanges::run_around(const std::byte* p, std::size_t bytes) {
  if (runs_.empty()) {
    RunEnd* last = nullptr;
    for (const auto& [begin, range] : ranges_)
      if (last && begin <= last->end)
        last->end = std::max(last->end, range.end);
      else
        last = &runs_.emplace(begin, RunEnd{range.end}).first->second;
  }
  const auto after = runs_.upper_bound(p);
  if (after == runs_.begin()) return std::nullopt;
  const auto& [begin, run] = *std::prev(after);
  if (p + bytes > run.end || !run.may_unite) return std::nullopt;
  return Run{begin, run.end};
}

void RegisteredRanges::add_union(Run run, std::uint64_t export_id) {
  unions_.push_back({run, export_id, next_number_++});
}

std::uint64_t RegisteredRanges::registration_after(std::uint64_t number) const {
  if (begins_.empty()) return 0;
  const auto next = begins_.upper_bound(number);
  return next == begins_.end() ? begins_.begin()->first : next->first;
}

RegisteredRanges::Ranges::const_iterator RegisteredRanges::find_range(std::uint64_t number) const {
  const auto known = begins_.find(number);
  if (known == begins_.end() || known->second == nullptr) return ranges_.end();
  const auto [from, to] = ranges_.equal_range(known->second);
  const auto it = std::find_if(from, to, [&](const auto& r) { return r.second.number == number; });
  return it == to ? ranges_.end() : it;
}

const RegisteredRanges::Range* RegisteredRanges::range_of(std::uint64_t number) const {
  const auto it = find_range(number);
  return it == ranges_.end() ? nullptr : &it->second;
}

}  // namespace ouro::rt

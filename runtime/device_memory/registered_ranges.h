// An index of the address ranges that the program has registered. Used by GpuExports.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace ouro::rt {

/// The registered ranges, each with the export that holds it, and unions: exports that each hold
/// several adjacent ranges. The index computes with addresses only and never accesses memory behind
/// them. Not thread-safe.
class RegisteredRanges {
 public:
  /// The range of one registration.
  struct Range {
    const std::byte *begin, *end;
    std::uint64_t export_id;   ///< of the export that holds the range
    std::uint64_t number;      ///< of the registration
    std::uint64_t allocation;  ///< PointerInfo::allocation of `begin`, when it was registered
  };
  /// Addresses that adjacent or overlapping ranges cover without a gap.
  struct Run {
    const std::byte *begin, *end;
  };

  /// Adds a range and returns the number of its registration.
  std::uint64_t add_range(const std::byte* begin, const std::byte* end, std::uint64_t export_id,
                          std::uint64_t allocation);
  /// Returns the export of a range that holds [p, p + bytes), or else of a union that does; 0 if there is
  /// none. Of several it returns the oldest, because ranks may have listed that one already.
  std::uint64_t export_around(const std::byte* p, std::size_t bytes) const;

  /// Returns the longest run around `p`, if it holds [p, p + bytes) and `forbid_union` was not called for it.
  std::optional<Run> run_around(const std::byte* p, std::size_t bytes);
  /// Adds a union: the export holds all ranges of the run.
  void add_union(Run, std::uint64_t export_id);
  /// Records that other processes cannot map the run as one export. This lasts until the ranges change.
  void forbid_union(Run run) { runs_.at(run.begin).may_unite = false; }
  /// Calls f(range) for each range of the run.
  template <class F>
  void for_each_range(Run run, F&& f) const {
    for (auto it = ranges_.lower_bound(run.begin); it != ranges_.end() && it->first < run.end; ++it)
      f(it->second);
  }

  /// Removes the range of a registration, and the unions that it is a part of. Calls unused(id) for the
  /// export of each of these. Allocates nothing. The registration remains until `end_registration`.
  template <class F>
  void remove_range(std::uint64_t number, F&& unused) {
    const auto it = find_range(number);
    if (it == ranges_.end()) return;
    const Range range = it->second;
    std::erase_if(unions_, [&](const Union& u) {
      const bool has = u.number > number && range.begin >= u.run.begin && range.end <= u.run.end;
      if (has) unused(u.export_id);
      return has;
    });
    ranges_.erase(it);
    runs_.clear();
    begins_.at(number) = nullptr;
    unused(range.export_id);
  }
  void end_registration(std::uint64_t number) { begins_.erase(number); }

  bool has_registration(std::uint64_t number) const { return begins_.contains(number); }
  bool has_registrations() const { return !begins_.empty(); }
  /// Returns the registration that follows `number` in a cycle over all, or 0 if there is none.
  std::uint64_t registration_after(std::uint64_t number) const;
  /// Returns nullptr if the range of the registration was removed.
  const Range* range_of(std::uint64_t number) const;
  bool empty() const { return ranges_.empty(); }
  /// The number of ranges and unions.
  std::size_t size() const { return ranges_.size() + unions_.size(); }

 private:
  using Ranges = std::multimap<const std::byte*, Range>;  // by their beginnings
  struct Union {
    Run run;
    std::uint64_t export_id;
    std::uint64_t number;  // all ranges of the union have lower numbers
  };
  struct RunEnd {
    const std::byte* end;
    bool may_unite = true;
  };
  Ranges::const_iterator find_range(std::uint64_t number) const;

  Ranges ranges_;
  std::vector<Union> unions_;                // the oldest first
  std::map<const std::byte*, RunEnd> runs_;  // by their beginnings; empty: not computed since a change
  std::size_t longest_ = 0;                  // length of the longest range so far
  std::map<std::uint64_t, const std::byte*> begins_;  // by registration; nullptr: the range was removed
  std::uint64_t next_number_ = 1;
};

}  // namespace ouro::rt

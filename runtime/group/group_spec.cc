// The index and the key of a group. See group_spec.h.
#include "runtime/group/group_spec.h"

#include <fmt/format.h>

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::rt {

Result<int> index_in(const GroupSpec& spec, int self, int world) {
  if (spec.ranks.empty()) return invalid(fmt::format("group '{}' has no members", spec.name));
  auto sorted = spec.ranks;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] < 0 || sorted[i] >= world)
      return invalid(
          fmt::format("group '{}': rank {} is not in the job (0..{})", spec.name, sorted[i], world - 1));
    if (i > 0 && sorted[i] == sorted[i - 1])
      return invalid(fmt::format("group '{}': rank {} is named twice", spec.name, sorted[i]));
  }
  const auto me = std::find(spec.ranks.begin(), spec.ranks.end(), self);
  if (me == spec.ranks.end())
    return invalid(fmt::format("group '{}': this rank ({}) is not a member; only members make a group",
                               spec.name, self));
  return static_cast<int>(me - spec.ranks.begin());
}

std::uint64_t group_key(const wire::Nonce& job, const std::vector<int>& ranks, const std::string& name,
                        std::uint64_t generation, std::uint64_t instance) {
  std::uint64_t h = XXH3_64bits(job.data(), job.size());
  h = XXH3_64bits_withSeed(ranks.data(), ranks.size() * sizeof(int), h);
  h = XXH3_64bits_withSeed(name.data(), name.size(), h);
  const std::uint64_t words[] = {generation, instance};
  h = XXH3_64bits_withSeed(words, sizeof words, h);
  return h == 0 ? 1 : h;
}

}  // namespace ouro::rt

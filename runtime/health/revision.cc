// Proposals on a page. See revision.h.
#include "runtime/health/revision.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace ouro::rt {
namespace {

// A proposal word holds the revision, whether it is in force, and the point from which it is; 0: no proposal,
// or a cancelled one.
constexpr int kRevisionShift = 48;
constexpr std::uint64_t kInForce = std::uint64_t{1} << 47, kPointMask = kInForce - 1;

}  // namespace

std::optional<Calibration> pass_revision_point(GroupRecord& mine, RevisionRegister& first, std::uint64_t key,
                                               std::uint64_t revision, std::uint64_t seq) {
  mine.revision_point.set(seq, std::memory_order_seq_cst);  // pairs with add()
  Shared<std::uint64_t>& word = first.made[revision % 2];
  std::uint64_t made = word.get(std::memory_order_seq_cst);  // pairs with propose()
  for (bool in_force = false; !in_force;) {
    if (made >> kRevisionShift != revision || (made & kPointMask) > seq) return std::nullopt;
    in_force = (made & kInForce) != 0;
    // Cancels a proposal that is not decided yet. If that fails, the word has changed and is read again.
    if (!in_force && std::atomic_ref(word.value).compare_exchange_strong(made, 0)) return std::nullopt;
  }
  std::array<std::uint64_t, RevisionRegister::kWords> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = first.records[revision % 2][i].get();
  if (first.key.get() != key) return std::nullopt;  // the register now belongs to another group
  Calibration record;
  std::memcpy(&record, words.data(), sizeof record);
  return record;
}

void add(RevisionPoints& points, const GroupRecord& member) {
  const std::uint64_t seq =
      member.revision_point.get(std::memory_order_seq_cst);  // pairs with pass_revision_point()
  points.oldest = std::min(points.oldest, seq), points.newest = std::max(points.newest, seq);
}

std::uint64_t propose(RevisionRegister& r, std::uint64_t revision, std::uint64_t last,
                      const Calibration& record, const std::function<RevisionPoints()>& points) {
  const RevisionPoints now = points();
  if (now.oldest == 0 || now.oldest < last) return 0;
  std::array<std::uint64_t, RevisionRegister::kWords> words{};
  std::memcpy(words.data(), &record, sizeof record);
  auto& half = r.records[revision % 2];
  for (std::size_t i = 0; i < words.size(); ++i) half[i].set(words[i]);  // released after the group's key
  const std::uint64_t at = now.newest + 1;
  std::uint64_t made = revision << kRevisionShift | at;
  Shared<std::uint64_t>& word = r.made[revision % 2];
  word.set(made, std::memory_order_seq_cst);  // pairs with pass_revision_point()
  if (points().newest >= at) return 0;
  return std::atomic_ref(word.value).compare_exchange_strong(made, made | kInForce) ? at : 0;
}

}  // namespace ouro::rt

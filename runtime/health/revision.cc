// Proposals on a page. See revision.h.
#include "runtime/health/revision.h"

#include <array>
#include <cstring>

namespace ouro::rt {
namespace {

constexpr int kSeqBits = 48;
constexpr std::uint64_t kSeqMask = (std::uint64_t{1} << kSeqBits) - 1;

}  // namespace

void propose(RevisionRegister& r, std::uint64_t revision, std::uint64_t seq, const Calibration& record) {
  std::array<std::uint64_t, RevisionRegister::kWords> words{};
  std::memcpy(words.data(), &record, sizeof record);
  auto& half = r.records[revision % 2];
  for (std::size_t i = 0; i < words.size(); ++i) half[i].set(words[i]);  // behind the key of its group
  r.made[revision % 2].set(revision << kSeqBits | seq);                  // pairs with proposed()
}

std::optional<Calibration> proposed(const RevisionRegister& r, std::uint64_t key, std::uint64_t revision,
                                    std::uint64_t seq) {
  const std::uint64_t made = r.made[revision % 2].get();
  if (made >> kSeqBits != revision || (made & kSeqMask) > seq) return std::nullopt;
  std::array<std::uint64_t, RevisionRegister::kWords> words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = r.records[revision % 2][i].get();
  if (r.key.get() != key) return std::nullopt;  // it has gone to another group meanwhile
  Calibration record;
  std::memcpy(&record, words.data(), sizeof record);
  return record;
}

}  // namespace ouro::rt

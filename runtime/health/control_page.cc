// Signatures and group records of control pages. See control_page.h.
#include "runtime/health/control_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/flow/list.h"
#include "runtime/core/collectives.h"

namespace ouro::rt {
namespace {

std::uint64_t mix(std::uint64_t x) {  // finaliser of splitmix64 (Steele, Lea, Flood 2014)
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool kept(const VoteRegister&) { return false; }
bool kept(const RevisionRegister& r) { return r.kept.get() != 0; }

/// The register to which `place` refers, or else a cleared one that no open group holds; nullptr: all
/// are in use.
template <class Register, std::size_t N, class Empty>
Register* claim(ControlPage& mine, Register (&registers)[N], std::uint64_t key, Shared<std::uint32_t>& place,
                Empty&& empty) {
  if (const std::uint32_t i = place.get(); i > 0 && i <= N) return &registers[i - 1];
  const auto open = [&](std::uint64_t of) {
    return std::any_of(std::begin(mine.groups), std::end(mine.groups),
                       [&](const GroupRecord& r) { return r.key.get() == of && in_use(r); });
  };
  constexpr std::uint64_t kTaken = ~std::uint64_t{0};
  for (const bool fresh : {true, false})
    for (std::uint32_t i = 0; i < N; ++i) {
      Register& r = registers[i];
      std::uint64_t old = r.key.get();
      if (fresh ? old != 0 : old == kTaken || kept(r) || open(old)) continue;
      if (!std::atomic_ref(r.key.value).compare_exchange_strong(old, kTaken)) continue;
      empty(r);
      r.key.set(key);
      place.set(i + 1);
      return &r;
    }
  return nullptr;
}

}  // namespace

std::uint64_t Signature::folded() const { return mix(what + 0x9e3779b97f4a7c15) ^ mix(count); }

std::string Signature::text() const {
  const auto c = static_cast<Collective>(what & 0xff);
  if (c == Collective::barrier) return "barrier()";
  const auto flags = static_cast<std::uint8_t>(what >> 24);
  std::string s = fmt::format("{}{}({}", name(c),
                              flags & kUneven  ? "_v"
                              : flags & kFused ? " batch"
                                               : "",
                              name(static_cast<DType>(what >> 8 & 0xff)));
  if (traits_of(c).reduces_all()) s += fmt::format(", {}", name(static_cast<OpKind>(what >> 16 & kOpMask)));
  s += flags & (kUneven | kFused) ? fmt::format(", counts #{:08x}", static_cast<std::uint32_t>(count))
                                  : fmt::format(", count {}", count);
  if (traits_of(c).rooted()) s += fmt::format(", root {}", what >> 32 & ((1u << kRootBits) - 1));
  if (flags & kCanonical) s += ", canonical";
  if (const int a = flags >> kAlgorithmShift & kAlgorithmMask; a != 0)
    s += fmt::format(", algorithm {}", flow::name(static_cast<flow::Algorithm>(a - 1)));
  return s + ")";
}

std::string Signature::how_text() const {
  const auto how = static_cast<std::uint8_t>(what >> kHowShift);
  const int a = how & kAlgorithmMask;
  return fmt::format("{}{}{}{}",
                     a == 0 ? "no algorithm of the host"
                            : fmt::format("algorithm {}", flow::name(static_cast<flow::Algorithm>(a - 1))),
                     how & kZeroCopy ? ", zerocopy where all buffers are registered" : "",
                     how & kPull ? ", pull where all buffers allow it" : "",
                     how & kRing ? ", posts round the ring" : "");
}

void enter(GroupRecord& r, std::uint64_t seq, Signature s) {
  auto& h = r.history[seq % kHistory];
  h.tag.set(0, std::memory_order_relaxed);
  h.what.set(s.what);  // release: a reader that sees the new word also sees tag 0
  h.count.set(s.count);
  h.tag.set(seq);
  r.entered.set(seq);
}

std::optional<Signature> entered_as(const GroupRecord& r, std::uint64_t seq) {
  const auto& h = r.history[seq % kHistory];
  if (h.tag.get() != seq) return std::nullopt;
  const Signature s{h.what.get(), h.count.get()};
  if (h.tag.get(std::memory_order_relaxed) != seq) return std::nullopt;
  return s;
}

VoteRegister* claim_vote(ControlPage& mine, GroupRecord& record) {
  return claim(mine, mine.votes, record.key.get(), record.vote, [](VoteRegister& v) { write(v, Vote{}); });
}

RevisionRegister* claim_revision(ControlPage& mine, GroupRecord& record) {
  return claim(mine, mine.revisions, record.key.get(), record.revised,
               [](RevisionRegister& r) { r.made[0].set(0), r.made[1].set(0); });
}

RevisionRegister* find_revision(ControlPage& of_owner, const GroupRecord& record, std::uint64_t key) {
  const std::uint32_t place = record.revised.get();
  if (place == 0 || place > kRevising) return nullptr;
  RevisionRegister& r = of_owner.revisions[place - 1];
  return r.key.get() == key ? &r : nullptr;
}

void write(VoteRegister& r, const Vote& vote) {
  const auto words = std::bit_cast<std::array<std::uint64_t, VoteRegister::kWords>>(vote);
  const std::uint64_t next = r.version.get() + 1;
  auto& half = r.halves[next % 2];
  for (std::size_t i = 0; i < words.size(); ++i) half[i].set(words[i]);
  r.version.set(next);
}

std::optional<Vote> read(const VoteRegister& r, std::uint64_t key) {
  for (int tries = 0; tries < 16; ++tries) {
    const std::uint64_t version = r.version.get();
    std::array<std::uint64_t, VoteRegister::kWords> words;
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = r.halves[version % 2][i].get();
    if (r.key.get() != key) return std::nullopt;
    if (r.version.get() == version) return std::bit_cast<Vote>(words);
  }
  return std::nullopt;
}

}  // namespace ouro::rt

// Formats a calibration record. Used through calibration.h.
#include "tools/info/calibration.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/calibration/choose.h"
#include "runtime/context/machine.h"
#include "runtime/plan/select.h"
#include "tools/info/machine.h"

namespace ouro::info {
namespace {

std::string micros(std::uint32_t ns) { return ns == 0 ? "-" : fmt::format("{:.2f}", ns / 1e3); }

/// How ranks that join now would wait.
std::string waiting(const rt::Calibration& c) {
  const auto ns = [](std::uint32_t n) { return n == 0 ? "-" : fmt::format("{} ns", n); };
  const Patience own = rt::patience_by(c, true), shared = rt::patience_by(c, false);
  return fmt::format(
      "wake         {} until a sleeper on another core answers, {} a pause\n"
      "waits        spin {} us where each rank has a core, else poll {} times\n",
      ns(c.wake), ns(c.pause), own.spin.count(), shared.polls);
}

}  // namespace

std::string calibration_text(const rt::HostCalibration& h) {
  std::string text = fmt::format("calibration  {} ({:.1f} ms)\n", h.origin, h.milliseconds);
  if (!h.key.empty()) text += fmt::format("of           {}\n", h.key);
  if (!h.file.empty()) text += fmt::format("kept in      {}\n", h.file);
  if (!h.record.known()) return text + "             none: what is built in serves\n";
  if (h.record.context_switch)
    text += fmt::format("switch       {} ns from thread to thread of one core\n", h.record.context_switch);
  text += waiting(h.record);
  if (const auto bytes = rt::cached_bytes(h.record, 1, rt::processors_of_host())) {
    const auto limits = rt::StreamLimits::of_caches(*bytes);
    text += fmt::format(
        "past caches  outputs, if ranks touch {} (from a root), {} (by reference) or {} (staged) "
        "for each of {} caches\n",
        human_bytes(limits.from_root), human_bytes(limits.by_reference), human_bytes(limits.staged),
        rt::shares_caches(h.record) ? fmt::format("{} outermost", std::max(h.record.caches, 1u))
                                    : "their own");
  }
  for (std::uint32_t i = 0; i < h.record.pairs; ++i) {
    const rt::PairCosts& p = h.record.pair[i];
    text += fmt::format("same {:<8}{} ns a line from core to core\n", rt::name(p.distance), p.handoff);
    text += fmt::format("  {:<9}", "us");
    for (std::size_t k = 0; k < kernels::kCopyKinds; ++k)
      text += fmt::format(" {:>16}", kernels::name(static_cast<kernels::CopyKind>(k)));
    text += fmt::format(" {:>16} {:>9}\n", "pull 4 KiB pages", "2 MiB");
    for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
      text += fmt::format("  {:<9}", human_bytes(kernels::kCopySizes[s]));
      for (const rt::CopyCost& c : p.copies[s])
        text += fmt::format(" {:>16}", fmt::format("{} + {}", micros(c.write), micros(c.read)));
      text += fmt::format(" {:>16} {:>9}\n", micros(p.pull[s]), micros(p.pull_huge[s]));
    }
    const auto row = [&](std::size_t bytes, const rt::CopyCost& c, const std::string& what) {
      if (c.known())
        text += fmt::format("  {:<9} {:>16} {}\n", human_bytes(bytes),
                            fmt::format("{} + {}", micros(c.write), micros(c.read)), what);
    };
    constexpr std::size_t kPiece = kernels::copy_size_class(rt::kLargePiece);
    row(rt::kLargePiece, p.ring,
        fmt::format("to each place of a ring of {} in turn, by {}{}", human_bytes(rt::kRingBytes),
                    kernels::name(kernels::kDefaultCopyKinds[kPiece]),
                    i + 1 == h.record.pairs && rt::ring_pays(h.record) ? ": posts use a ring" : ""));
    row(rt::kLargePiece, p.together,
        fmt::format("both cores at once, by {}; pulls {}", kernels::name(kernels::kDefaultCopyKinds[kPiece]),
                    micros(p.pull_together)));
    row(rt::kLargePiece, p.together_slots, "both cores at once, by the kind for slots");
    const auto accesses = [&](const auto& costs, const char* what) {
      for (std::size_t s = 0; s < rt::kAccessSizes.size(); ++s)
        if (costs[s].known())
          text += fmt::format("  {:<9} {:>16} {}, and else\n", human_bytes(rt::kAccessSizes[s]),
                              fmt::format("{}, {}", micros(costs[s].after), micros(costs[s].alone)), what);
    };
    accesses(p.stores, "stores after the other core has read");
    accesses(p.loads, "loads after the other core has stored");
    if (p.large.known())
      text += fmt::format("  {:<9} {:>16} by pieces of {}\n", human_bytes(rt::kLargeBytes),
                          fmt::format("{} + {}", micros(p.large.write), micros(p.large.read)),
                          human_bytes(rt::kLargePiece));
    if (p.large_local)
      text += fmt::format("  {:<9} {:>16} within a core's own memory\n", human_bytes(rt::kLargeBytes),
                          micros(p.large_local));
  }
  return text;
}

}  // namespace ouro::info

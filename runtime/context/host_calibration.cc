// Gets a host's record. See host_calibration.h.
#include "runtime/context/host_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <vector>

#include "runtime/calibration/cache.h"
#include "runtime/calibration/pair_probe.h"
#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/thread.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

// Time limits. Including the start of threads and the mapping of pages, a measurement takes at most 30 ms,
// and a validation 1 ms, if nothing else runs.
constexpr auto kToMeasure = 23ms;
constexpr auto kToNearer = 4ms;  // of these, for each pair of cores but the farthest
constexpr auto kToWake = 2ms, kToSwitch = 2ms;
constexpr auto kToValidate = 800us;

struct CorePair {
  Distance distance;
  int here, there;
};

/// A core of this process paired with the first one at each distance that exists, nearest first. If launchers
/// have bound each rank to one core, the other cores are those of other ranks.
std::vector<CorePair> pairs_of(const Machine& mine, const Machine& all) {
  std::optional<CorePair> found[kDistances];
  const auto own = [&](const Core& c) {
    return !mine.cores.empty() && c.cpus.front() == mine.cores.front().cpus.front();
  };
  const auto first = std::find_if(all.cores.begin(), all.cores.end(), own);
  if (first == all.cores.end()) return {};
  const auto a = static_cast<std::size_t>(first - all.cores.begin());
  for (std::size_t b = 0; b < all.cores.size(); ++b) {
    if (b == a) continue;
    const Core &x = all.cores[a], &y = all.cores[b];
    const Distance d = all.same_cache(a, b) ? Distance::cache
                       : x.node == y.node   ? Distance::node
                                            : Distance::machine;
    if (auto& pair = found[static_cast<std::size_t>(d)]; !pair)
      pair = CorePair{d, x.cpus.front(), y.cpus.front()};
  }
  std::vector<CorePair> pairs;
  for (const auto& p : found)
    if (p) pairs.push_back(*p);
  return pairs;
}

std::vector<CorePair> pairs_here() {
  const Machine& mine = machine();
  if (mine.cores.size() > 1 || mine.invented)
    return mine.invented ? std::vector<CorePair>{} : pairs_of(mine, mine);
  const auto all = read_machine();
  return all.ok() && !all->invented ? pairs_of(mine, *all) : std::vector<CorePair>{};
}

/// Cache sizes are not measured: that takes passes over several times their size, tens of milliseconds.
/// `ouro-perf --tune` does it.
/// Counted are all caches of the host: other jobs that find the record may use more cores than this process.
void add_caches(Calibration* c) {
  const Machine& mine = machine();
  const auto all = read_machine();
  std::set<int> caches;
  for (const Core& core : all.ok() ? all->cores : mine.cores) caches.insert(core.domain);
  caches.erase(-1);
  c->cache_kib = static_cast<std::uint32_t>(mine.l3_bytes >> 10);
  c->caches = static_cast<std::uint32_t>(caches.size());
}

bool holds(const Calibration& c, Distance d) {
  for (std::uint32_t i = 0; i < c.pairs; ++i)
    if (c.pair[i].distance == d) return true;
  return false;
}

/// Runs f on a thread of its own, since probes bind themselves: the caller stays where it is.
template <class F>
bool aside(F&& f) {
  try {
    Thread thread("ouro-calibrate", std::forward<F>(f));
    thread.join();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Whether the farthest cores of a stored record, and the nearest, are still as far from each other. No
/// answer in time means that other work is in the way, which is no sign of a move.
bool still_holds(const Calibration& kept, const std::vector<CorePair>& pairs) {
  bool holds = true;
  aside([&] {
    const auto end = Clock::now() + kToValidate;
    const auto check = [&](const CorePair& p) {
      auto probe = make_pair_probe(p.here, p.there, end);
      const std::uint32_t now = probe.ok() ? measure_handoff(**probe, Clock::now, end) : 0;
      for (std::uint32_t i = 0; i < kept.pairs && now != 0; ++i)
        if (kept.pair[i].distance == p.distance) holds &= same_mode(kept.pair[i].handoff, now);
    };
    check(pairs.back());
    if (holds && pairs.size() > 1) check(pairs.front());
  });
  return holds;
}

Calibration measure_pairs(const std::vector<CorePair>& pairs, std::string* why) {
  Calibration c{};
  const auto begin = Clock::now();
  const bool ran = aside([&] {
    // The farthest first, which decides nearly everything.
    PairCosts found[kDistances] = {};
    for (std::size_t i = pairs.size(); i-- > 0;) {
      const auto end = begin + kToMeasure - kToNearer * i;
      auto probe = make_pair_probe(pairs[i].here, pairs[i].there, end);
      if (!probe.ok()) {
        *why = probe.status().failure()->text;
        continue;
      }
      found[i] = measure(**probe, Clock::now, end, i + 1 == pairs.size());
      found[i].distance = pairs[i].distance;
      found[i].cpus[0] = pairs[i].here, found[i].cpus[1] = pairs[i].there;
    }
    if (found[pairs.size() - 1].handoff == 0) return;
    for (std::size_t i = 0; i < pairs.size(); ++i)
      if (found[i].handoff != 0) c.pair[c.pairs++] = found[i];
    const auto soon = Clock::now() + kToWake;
    if (auto probe = make_pair_probe(pairs[0].here, pairs[0].there, soon); probe.ok())
      c.wake = measure_wake(**probe, Clock::now, soon);
    // Last, because a core that other work also uses takes milliseconds for it.
    const auto end = Clock::now() + kToSwitch;
    if (auto probe = make_pair_probe(pairs[0].here, pairs[0].there, end); probe.ok())
      c.context_switch = measure_context_switch(**probe, Clock::now, end);
    c.pause = measure_pause(Clock::now);
  });
  if (!ran) *why = "no thread to calibrate with";
  c = without_absurd(c);
  if (c.complete()) return c;
  if (why->empty()) *why = "other work is on the processors: figures could not be trusted";
  return {};
}

HostCalibration find() {
  HostCalibration h;
  const std::vector<CorePair> pairs = pairs_here();
  h.key = calibration_key(
      fmt::format("{} processors, outermost cache {}", processors_of_host(), machine().l3_bytes));
  const CalibrationCache cache(calibration_cache_directory(), h.key);
  h.file = cache.file();
  auto kept = cache.load();
  if (!kept.ok()) OURO_WARN("calibration: {}: measured anew", kept.status().failure()->text);
  const std::optional<Calibration> record = kept.ok() ? *kept : std::nullopt;
  if (pairs.empty()) {
    h.origin = "there is one core only, and it takes two to measure";
    if (record) h.record = *record, h.origin = fmt::format("kept in {}; {}", h.file, h.origin);
    return h;
  }
  bool complete = record.has_value();
  for (const CorePair& p : pairs) complete = complete && holds(*record, p.distance);
  if (complete && still_holds(*record, pairs)) {
    h.record = *record, h.origin = fmt::format("kept in {}", h.file);
    return h;
  }
  std::string why;
  // A hypervisor may halt a core for longer than a measurement takes.
  for (int tries = 0; tries < 2 && !h.record.known(); ++tries) {
    why.clear();
    h.record = measure_pairs(pairs, &why);
  }
  if (!h.record.known()) {
    h.origin = why;
    return h;
  }
  add_caches(&h.record);
  h.origin = record ? "measured: what was kept does not hold any more" : "measured";
  if (!h.record.undisturbed()) {
    h.origin += "; not kept, because other work disturbed it";
    return h;
  }
  if (const Status s = cache.store(h.record); !s.ok()) OURO_WARN("calibration: {}", s.failure()->text);
  return h;
}

}  // namespace

std::string CalibrationMode::setting() const {
  switch (kind) {
    case Kind::measured:
      return "measured";
    case Kind::off:
      return "off";
    case Kind::pinned:
      return fmt::format("{:016x}", pinned.digest());
  }
  return "?";
}

Result<CalibrationMode> calibration_mode() {
  OURO_ASSIGN(const auto text, env::text("OURO_CALIBRATION"));
  CalibrationMode mode;
  if (text && *text == "off") return mode;
  if (!text || text->empty()) {
    mode.kind = CalibrationMode::Kind::measured;
    return mode;
  }
  auto record = load_calibration(*text, &mode.key);
  if (!record.ok())
    return invalid(fmt::format(
        "OURO_CALIBRATION: {}; expected off, or a file that ouro-info --calibration --json has written",
        record.status().failure()->text));
  mode.kind = CalibrationMode::Kind::pinned, mode.pinned = *record, mode.file = *text;
  return mode;
}

HostCalibration host_calibration(const CalibrationMode& mode) {
  HostCalibration h;
  switch (mode.kind) {
    case CalibrationMode::Kind::off:
      h.origin = "off, by OURO_CALIBRATION";
      return h;
    case CalibrationMode::Kind::pinned:
      h.record = mode.pinned, h.origin = fmt::format("pinned: {}", mode.file), h.key = mode.key;
      return h;
    case CalibrationMode::Kind::measured:
      break;
  }
  static constinit MadeOnce<const HostCalibration> found;
  return found.get([] {
    const auto begin = Clock::now();
    HostCalibration here = find();
    here.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    OURO_INFO(INIT, "calibration: {} ({:.1f} ms)", here.origin, here.milliseconds);
    return here;
  });
}

Calibration calibration_of_host(const JobMembers& members) {
  for (int r = 0; r < members.size(); ++r)
    if (members.peer(r).node == members.self().node && members.page(r).calibration.known())
      return without_absurd(members.page(r).calibration);  // not trusted unchecked
  return {};
}

}  // namespace ouro::rt

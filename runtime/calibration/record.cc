// Validation of the record, and its conversion to and from JSON. See record.h.
#include "runtime/calibration/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::rt {
namespace {

using Json = nlohmann::ordered_json;
using kernels::kCopyKinds, kernels::kCopySizes;

constexpr int kSchema = 1;
const char* kind_name(std::size_t k) { return kernels::name(static_cast<kernels::CopyKind>(k)); }
constexpr const char* kDistanceNames[kDistances] = {"cache", "node", "machine"};
/// The host's own figures.
constexpr struct Field {
  const char *name, *unit;
  std::uint32_t Calibration::*figure;
} kFields[] = {{"context_switch_ns", "nanoseconds", &Calibration::context_switch},
               {"wake_ns", "nanoseconds", &Calibration::wake},
               {"pause_ns", "nanoseconds", &Calibration::pause},
               {"cache_kib", "KiB", &Calibration::cache_kib},
               {"caches", "caches", &Calibration::caches}};

/// A cache line takes 5 ns to 20 us from core to core.
bool sane_handoff(std::uint32_t ns) { return ns >= 5 && ns <= 20'000; }
/// A switch from one thread of a core to another takes 50 ns to 1 ms.
bool sane_switch(std::uint32_t ns) { return ns >= 50 && ns <= 1'000'000; }
/// Waking a thread takes 200 ns to 10 ms, a pause up to 1 us.
bool sane_wake(std::uint32_t ns) { return ns >= 200 && ns <= 10'000'000; }
bool sane_pause(std::uint32_t ns) { return ns <= 1000; }
/// A cache has 64 KiB to 16 GiB, and a host up to 4096 of them.
bool sane_cache(std::uint32_t kib) { return kib >= 64 && kib <= 16u << 20; }
bool sane_caches(std::uint32_t n) { return n <= 4096; }
/// The rate is between 1000 GB/s and 20 MB/s.
bool sane_time(std::uint32_t ns, std::size_t bytes) { return ns >= bytes / 1000 && ns / 50 <= bytes; }

/// A figure; nullopt: the value is something else.
std::optional<std::uint32_t> figure(const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max())
    return std::nullopt;
  return value.get<std::uint32_t>();
}
bool read_figure(const Json& object, const char* key, std::uint32_t* to) {
  const auto it = object.find(key);
  if (it == object.end()) return true;
  const auto found = figure(*it);
  if (found) *to = *found;
  return found.has_value();
}
/// Two numbers; if absent, nothing is written.
template <class T>
bool read_two(const Json& object, const char* key, T* first, T* second) {
  const auto it = object.find(key);
  if (it == object.end()) return true;
  if (!it->is_array() || it->size() != 2) return false;
  const auto a = figure((*it)[0]), b = figure((*it)[1]);
  if (!a || !b || *a > static_cast<std::uint64_t>(std::numeric_limits<T>::max()) ||
      *b > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
    return false;
  *first = static_cast<T>(*a), *second = static_cast<T>(*b);
  return true;
}

/// Returns nullptr, or the error.
const char* read_copies(const Json& row, PairCosts* pair) {
  if (!row.is_object()) return "a row of copies is not an object";
  std::uint32_t bytes = 0;
  if (!read_figure(row, "bytes", &bytes)) return "bytes is not a number";
  const auto size = std::find(kCopySizes.begin(), kCopySizes.end(), bytes);
  if (size == kCopySizes.end()) return "bytes is none of the sizes that are measured";
  const auto i = static_cast<std::size_t>(size - kCopySizes.begin());
  for (std::size_t k = 0; k < kCopyKinds; ++k)
    if (CopyCost& c = pair->copies[i][k]; !read_two(row, kind_name(k), &c.write, &c.read))
      return "a copy is not [write, read] in nanoseconds";
  if (!read_figure(row, "pull", &pair->pull[i]) || !read_figure(row, "pull_huge", &pair->pull_huge[i]))
    return "pull is not a number of nanoseconds";
  return nullptr;
}

/// Returns nullptr, or the error.
const char* read_accesses(const Json& from, PairCosts* pair) {
  if (AccessCost old{}; from.contains("stores")) {  // earlier versions measured stores to kLargePiece alone
    if (!read_two(from, "stores", &old.after, &old.alone))
      return "stores is not [after, alone] in nanoseconds";
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
      const auto scaled = [&](std::uint32_t ns) {
        return static_cast<std::uint32_t>(
            std::min<std::uint64_t>(std::uint64_t{ns} * kAccessSizes[s] / kLargePiece, UINT32_MAX));
      };
      pair->stores[s] = {scaled(old.after), scaled(old.alone)};
    }
  }
  const auto rows = from.find("accesses");
  if (rows == from.end()) return nullptr;
  if (!rows->is_array()) return "accesses is not a list";
  for (const Json& row : *rows) {
    if (!row.is_object()) return "a row of accesses is not an object";
    std::uint32_t bytes = 0;
    if (!read_figure(row, "bytes", &bytes)) return "bytes is not a number";
    const auto size = std::find(kAccessSizes.begin(), kAccessSizes.end(), bytes);
    if (size == kAccessSizes.end()) return "bytes is none of the sizes of accesses that are measured";
    const auto i = static_cast<std::size_t>(size - kAccessSizes.begin());
    if (!read_two(row, "stores", &pair->stores[i].after, &pair->stores[i].alone) ||
        !read_two(row, "loads", &pair->loads[i].after, &pair->loads[i].alone))
      return "an access is not [after, alone] in nanoseconds";
  }
  return nullptr;
}

const char* read_pair(const Json& from, PairCosts* pair) {
  if (!from.is_object()) return "a pair is not an object";
  const auto distance = from.find("distance");
  const auto* const known = distance == from.end() || !distance->is_string()
                                ? std::end(kDistanceNames)
                                : std::find(std::begin(kDistanceNames), std::end(kDistanceNames),
                                            distance->get_ref<const std::string&>());
  if (known == std::end(kDistanceNames)) return "distance is not cache, node or machine";
  pair->distance = static_cast<Distance>(known - std::begin(kDistanceNames));
  if (!read_two(from, "cpus", &pair->cpus[0], &pair->cpus[1])) return "cpus is not two numbers";
  if (!read_figure(from, "handoff_ns", &pair->handoff) || !sane_handoff(pair->handoff))
    return "handoff_ns is not 5 to 20000";
  if (!read_two(from, "large", &pair->large.write, &pair->large.read))
    return "large is not [write, read] in nanoseconds";
  if (!read_figure(from, "large_local", &pair->large_local))
    return "large_local is not a number of nanoseconds";
  if (!read_two(from, "together", &pair->together.write, &pair->together.read))
    return "together is not [write, read] in nanoseconds";
  if (!read_two(from, "together_slots", &pair->together_slots.write, &pair->together_slots.read))
    return "together_slots is not [write, read] in nanoseconds";
  if (!read_two(from, "ring", &pair->ring.write, &pair->ring.read))
    return "ring is not [write, read] in nanoseconds";
  if (!read_figure(from, "pull_together", &pair->pull_together))
    return "pull_together is not a number of nanoseconds";
  if (const char* wrong = read_accesses(from, pair)) return wrong;
  const auto copies = from.find("copies");
  if (copies == from.end()) return nullptr;
  if (!copies->is_array()) return "copies is not a list";
  for (const Json& row : *copies)
    if (const char* wrong = read_copies(row, pair)) return wrong;
  return nullptr;
}

}  // namespace

const char* name(Distance d) { return kDistanceNames[static_cast<std::size_t>(d)]; }

bool Calibration::complete() const {
  for (std::uint32_t i = 0; i < pairs; ++i)
    for (std::size_t s = 0; s < kCopySizes.size(); ++s)
      for (std::size_t k = 0; k < kCopyKinds; ++k) {
        const bool used = i + 1 == pairs || k == static_cast<std::size_t>(kernels::kDefaultCopyKinds[s]);
        if (used && !pair[i].copies[s][k].known()) return false;
      }
  return known();
}

bool Calibration::undisturbed() const {
  if (!complete()) return false;
  const PairCosts& far = farthest();
  const auto known = [](const AccessCost& access) { return access.known(); };
  const bool pulls = far.pull_huge[kernels::copy_size_class(kLargePiece)] != 0;
  return far.ring.known() && far.together.known() && far.large.known() && far.large_local != 0 &&
         std::all_of(std::begin(far.stores), std::end(far.stores), known) &&
         std::all_of(std::begin(far.loads), std::end(far.loads), known) &&
         (far.pull_together != 0 || !pulls) && context_switch != 0 && wake != 0;
}

std::uint64_t Calibration::digest() const {
  const std::uint32_t rest[] = {context_switch, wake, pause, cache_kib, caches};
  std::uint64_t h = XXH3_64bits(rest, sizeof rest);
  if (!known()) return 0;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    PairCosts p = pair[i];
    p.cpus[0] = p.cpus[1] = 0;  // ignores which of several equivalent pairs was measured
    static_assert(sizeof p % sizeof(std::uint32_t) == 0 &&
                  std::has_unique_object_representations_v<PairCosts>);
    h = XXH3_64bits_withSeed(&p, sizeof p, h);
  }
  return h;
}

Calibration without_absurd(const Calibration& measured) {
  Calibration out{};
  if (sane_switch(measured.context_switch)) out.context_switch = measured.context_switch;
  if (sane_wake(measured.wake)) out.wake = measured.wake;
  if (sane_pause(measured.pause)) out.pause = measured.pause;
  if (sane_cache(measured.cache_kib)) out.cache_kib = measured.cache_kib;
  if (sane_caches(measured.caches)) out.caches = measured.caches;
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(measured.pairs, kDistances); ++i) {
    if (!sane_handoff(measured.pair[i].handoff) || measured.pair[i].distance > Distance::machine) continue;
    if (out.pairs > 0 && measured.pair[i].distance <= out.pair[out.pairs - 1].distance) continue;
    PairCosts& p = out.pair[out.pairs++] = measured.pair[i];
    if (p.cpus[0] < 0 || p.cpus[1] < 0) p.cpus[0] = p.cpus[1] = 0;
    if (!sane_time(p.large.write, kLargeBytes) || !sane_time(p.large.read, kLargeBytes)) p.large = {};
    if (!sane_time(p.large_local, kLargeBytes)) p.large_local = 0;
    for (CopyCost* c : {&p.together, &p.together_slots, &p.ring})
      if (!sane_time(c->write, kLargePiece) || !sane_time(c->read, kLargePiece)) *c = {};
    if (!sane_time(p.pull_together, kLargePiece)) p.pull_together = 0;
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s)
      for (AccessCost* a : {&p.stores[s], &p.loads[s]})
        if (!sane_time(a->after, kAccessSizes[s]) || !sane_time(a->alone, kAccessSizes[s])) *a = {};
    for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
      for (CopyCost& c : p.copies[s])
        if (!sane_time(c.write, kCopySizes[s]) || !sane_time(c.read, kCopySizes[s])) c = {};
      for (std::uint32_t* pull : {&p.pull[s], &p.pull_huge[s]})
        if (!sane_time(*pull, kCopySizes[s])) *pull = 0;
    }
  }
  return out;
}

std::string to_json(const Calibration& c, const std::string& key) {
  Json json = {{"ouro_calibration", kSchema}, {"key", key}, {"pairs", Json::array()}};
  for (std::uint32_t i = 0; i < c.pairs; ++i) {
    const PairCosts& p = c.pair[i];
    Json pair = {{"distance", name(p.distance)}};
    if (p.cpus[0] != p.cpus[1]) pair["cpus"] = {p.cpus[0], p.cpus[1]};
    pair["handoff_ns"] = p.handoff;
    pair["copies"] = Json::array();
    for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
      Json row = {{"bytes", kCopySizes[s]}};
      for (std::size_t k = 0; k < kCopyKinds; ++k)
        if (p.copies[s][k].known()) row[kind_name(k)] = {p.copies[s][k].write, p.copies[s][k].read};
      if (p.pull[s]) row["pull"] = p.pull[s];
      if (p.pull_huge[s]) row["pull_huge"] = p.pull_huge[s];
      pair["copies"].push_back(std::move(row));
    }
    if (p.large.known()) pair["large"] = {p.large.write, p.large.read};
    if (p.large_local) pair["large_local"] = p.large_local;
    if (p.together.known()) pair["together"] = {p.together.write, p.together.read};
    if (p.together_slots.known()) pair["together_slots"] = {p.together_slots.write, p.together_slots.read};
    if (p.ring.known()) pair["ring"] = {p.ring.write, p.ring.read};
    if (p.pull_together) pair["pull_together"] = p.pull_together;
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
      Json row = {{"bytes", kAccessSizes[s]}};
      if (p.stores[s].known()) row["stores"] = {p.stores[s].after, p.stores[s].alone};
      if (p.loads[s].known()) row["loads"] = {p.loads[s].after, p.loads[s].alone};
      if (row.size() > 1) pair["accesses"].push_back(std::move(row));
    }
    json["pairs"].push_back(std::move(pair));
  }
  for (const Field& f : kFields)
    if (c.*f.figure) json[f.name] = c.*f.figure;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Calibration> parse_calibration(const std::string& text, std::string* key) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return invalid("not a JSON object");
  if (const auto version = json.find("ouro_calibration"); version == json.end() || *version != kSchema)
    return invalid(fmt::format("\"ouro_calibration\": {} is missing", kSchema));
  if (const auto k = json.find("key"); key && k != json.end() && k->is_string()) *key = k->get<std::string>();
  const auto pairs = json.find("pairs");
  if (pairs == json.end() || !pairs->is_array() || pairs->empty() || pairs->size() > kDistances)
    return invalid(fmt::format("pairs is not a list of 1 to {}", kDistances));
  Calibration c{};
  for (const Json& from : *pairs) {
    if (const char* wrong = read_pair(from, &c.pair[c.pairs]))
      return invalid(fmt::format("pair {}: {}", c.pairs, wrong));
    if (c.pairs > 0 && c.pair[c.pairs].distance <= c.pair[c.pairs - 1].distance)
      return invalid(fmt::format("pair {}: its distance is not beyond that of the pair before", c.pairs));
    ++c.pairs;
  }
  for (const Field& f : kFields)
    if (!read_figure(json, f.name, &(c.*f.figure)))
      return invalid(fmt::format("{} is not a number of {}", f.name, f.unit));
  return without_absurd(c);
}

Result<Calibration> load_calibration(const std::string& file, std::string* key) {
  constexpr std::size_t kMostBytes = 1u << 20;
  std::ifstream in(file);
  std::string text(kMostBytes, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  const auto had = static_cast<std::size_t>(in.gcount());
  if (in.bad() || (!in && had == 0)) return invalid(fmt::format("{}: cannot be read, or is empty", file));
  if (had == kMostBytes) return invalid(fmt::format("{}: {} bytes and more are no calibration", file, had));
  text.resize(had);
  auto parsed = parse_calibration(text, key);
  if (!parsed.ok()) return invalid(fmt::format("{}: {}", file, parsed.status().failure()->text));
  return parsed;
}

}  // namespace ouro::rt

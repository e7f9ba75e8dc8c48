// Reads the topology by hwloc, places ranks on it, binds threads. Used through machine.h.
#include "runtime/context/machine.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

constexpr Bind kBinds[] = {Bind::core, Bind::cache, Bind::numa, Bind::none};
constexpr int kWordBits = std::numeric_limits<unsigned long>::digits;
constexpr std::size_t kMostCpus = 1 << 16;  // beyond what any kernel is built for

/// hwloc holds a lock of its own while it starts, which takes a millisecond, and while it ends. In a child
/// forked meanwhile that lock is held forever, and hwloc must not be called.
std::atomic<int> g_starting{0};
bool g_hwloc_lost = false;
[[maybe_unused]] const int g_sees_hwloc =
    pthread_atfork(nullptr, nullptr, [] { g_hwloc_lost = g_hwloc_lost || g_starting.exchange(0) > 0; });
struct Starting {
  Starting() { g_starting.fetch_add(1); }
  ~Starting() { g_starting.fetch_sub(1); }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;
};

struct Destroy {
  void operator()(hwloc_topology_t t) const {
    const Starting starting;
    hwloc_topology_destroy(t);
  }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

std::vector<unsigned long> to_bits(const Cpus& numbers) {
  std::vector<unsigned long> words;
  for (const int n : numbers) {
    const auto word = static_cast<std::size_t>(n / kWordBits);
    if (words.size() <= word) words.resize(word + 1);
    words[word] |= 1ul << (n % kWordBits);
  }
  return words;
}

/// Loads cores, caches and memory nodes; also groups, which keep the memory nodes in place, since without one
/// a node seems to belong to all cores. The x86 component is excluded because it visits every processor with
/// the calling thread; its information is in /sys, too.
Status load(hwloc_topology_t t, const std::string& synthetic) {
  if (!synthetic.empty() && hwloc_topology_set_synthetic(t, synthetic.c_str()) != 0)
    return invalid(fmt::format("hwloc does not understand the machine \"{}\"", synthetic));
  hwloc_topology_set_all_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
  for (const hwloc_obj_type_t kept : {HWLOC_OBJ_CORE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE})
    hwloc_topology_set_type_filter(t, kept, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(t, HWLOC_OBJ_GROUP, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  (void)hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  if (hwloc_topology_load(t) != 0) return {Reason::resource, "hwloc cannot read this machine"};
  return {};
}

Core core_of(hwloc_topology_t t, hwloc_obj_t pu) {
  const auto above = [&](hwloc_obj_type_t type) { return hwloc_get_ancestor_obj_by_type(t, type, pu); };
  Core c;
  const hwloc_obj_t core = above(HWLOC_OBJ_CORE);
  c.id = static_cast<int>((core ? core : pu)->logical_index);
  if (const hwloc_obj_t l2 = above(HWLOC_OBJ_L2CACHE))
    c.l2 = static_cast<int>(l2->logical_index), c.l2_bytes = l2->attr->cache.size;
  if (const hwloc_obj_t l3 = above(HWLOC_OBJ_L3CACHE))
    c.l3 = static_cast<int>(l3->logical_index), c.l3_bytes = l3->attr->cache.size;
  c.node = pu->nodeset ? hwloc_bitmap_first(pu->nodeset) : -1;
  return c;
}

/// Numbers the outermost caches; a machine may have both cores with an L3 and cores without.
void find_domains(Machine& m) {
  std::map<std::pair<bool, int>, int> numbers;
  for (Core& c : m.cores) {
    const std::pair outermost{c.l3 >= 0, c.l3 >= 0 ? c.l3 : c.l2};
    if (outermost.second < 0) continue;
    c.domain = numbers.emplace(outermost, static_cast<int>(numbers.size())).first->second;
    m.l3_bytes = std::max(m.l3_bytes, c.outermost_bytes());
  }
}

/// The first thread of each core, in topology order, then the second threads of those that have
/// one, and so on.
std::vector<std::pair<int, const Core*>> threads_in_turn(const std::vector<Core>& cores) {
  std::vector<std::pair<int, const Core*>> list;
  std::size_t most = 0;
  for (const Core& c : cores) most = std::max(most, c.cpus.size());
  for (std::size_t sibling = 0; sibling < most; ++sibling)
    for (const Core& c : cores)
      if (sibling < c.cpus.size()) list.emplace_back(c.cpus[sibling], &c);
  return list;
}

}  // namespace

std::string to_text(const Cpus& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += fmt::format("-{}", cpus[last]);
    i = last + 1;
  }
  return text;
}

const char* name(Bind b) {
  switch (b) {
    case Bind::none:
      return "none";
    case Bind::core:
      return "core";
    case Bind::cache:
      return "cache";
    case Bind::numa:
      return "numa";
  }
  return "?";
}

Result<Bind> parse_bind(std::string_view text) {
  for (const Bind b : kBinds)
    if (text == name(b)) return b;
  return invalid(fmt::format("unknown binding '{}'; one of: core, cache, numa, none", text));
}

Result<Bind> chosen_bind(std::string_view text) {
  if (!text.empty()) return parse_bind(text);
  const Result<std::optional<std::string>> set = env::text("OURO_BIND");
  if (!set.ok()) return set.status();
  return parse_bind(set->value_or(name(Bind::none)));
}

bool Machine::same_cache(std::size_t a, std::size_t b) const noexcept {
  return a < cores.size() && b < cores.size() && cores[a].domain >= 0 && cores[a].domain == cores[b].domain;
}

bool Machine::same_cache() const noexcept {
  for (std::size_t i = 0; i < cores.size(); ++i)
    if (!same_cache(0, i)) return false;
  return !cores.empty();
}

int Machine::threads() const noexcept {
  std::size_t n = 0;
  for (const Core& c : cores) n += c.cpus.size();
  return static_cast<int>(n);
}

int Machine::nodes() const noexcept {
  int n = 0;
  for (auto c = cores.begin(); c != cores.end(); ++c)
    n += c->node >= 0 && std::none_of(cores.begin(), c, [&](const Core& o) { return o.node == c->node; });
  return n;
}

Placement Machine::place(int rank, int ranks, Bind policy) const {
  Placement p;
  if (policy == Bind::none || cores.empty()) return p;
  const auto r = static_cast<std::size_t>(rank), n = static_cast<std::size_t>(ranks);
  const Core* home;
  if (policy != Bind::core) {
    home = &cores[r * cores.size() / n];
    const auto key = policy == Bind::cache ? &Core::domain : &Core::node;
    for (const Core& c : cores)
      if (c.*key == home->*key) p.cpus.insert(p.cpus.end(), c.cpus.begin(), c.cpus.end());
    std::sort(p.cpus.begin(), p.cpus.end());
  } else if (n <= cores.size()) {
    home = &cores[r];
    p.cpus = home->cpus;
  } else {
    const auto turn = threads_in_turn(cores);
    const auto& [cpu, core] = turn[r % turn.size()];
    home = core;
    p.cpus = {cpu};
    p.shared = n > turn.size();
  }
  const bool several =
      std::any_of(cores.begin(), cores.end(), [&](const Core& c) { return c.node != home->node; });
  if (several) p.node = home->node;  // with one node there is nothing to prefer
  return p;
}

Machine Machine::limited_to(const Cpus& mask) const {
  Machine m{.cores = {}, .source = source, .invented = invented};
  for (Core c : cores) {
    std::erase_if(c.cpus, [&](int cpu) { return !std::binary_search(mask.begin(), mask.end(), cpu); });
    if (c.cpus.empty()) continue;
    m.l3_bytes = std::max(m.l3_bytes, c.outermost_bytes());
    m.cores.push_back(std::move(c));
  }
  return m;
}

Result<Machine> read_machine(const std::string& synthetic) {
  if (g_hwloc_lost)
    return Status(Reason::resource, "hwloc was being started by another thread as this process was forked");
  hwloc_topology_t raw = nullptr;
  if (const Starting starting; hwloc_topology_init(&raw) != 0)
    return Status(Reason::resource, "hwloc cannot start");
  const Topology topology(raw);
  OURO_TRY(load(raw, synthetic));
  Machine m{.cores = {}, .source = "hwloc", .invented = hwloc_topology_is_thissystem(raw) == 0};
  const int threads = hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PU);
  for (int i = 0; i < threads; ++i) {  // threads of one core are consecutive and ascending
    const hwloc_obj_t pu = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PU, static_cast<unsigned>(i));
    Core core = core_of(raw, pu);
    if (m.cores.empty() || m.cores.back().id != core.id) m.cores.push_back(std::move(core));
    m.cores.back().cpus.push_back(static_cast<int>(pu->os_index));
  }
  find_domains(m);
  return m;
}

Machine flat_machine(const Cpus& mask, std::string why) {
  Machine m{.cores = {}, .source = std::move(why)};
  for (const int cpu : mask) m.cores.push_back({.id = cpu, .cpus = {cpu}});
  if (m.cores.empty()) m.cores.push_back({.id = 0, .cpus = {0}});  // the one that this thread runs on
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long bytes = ::sysconf(level); m.l3_bytes == 0 && bytes > 0)
      m.l3_bytes = static_cast<std::uint64_t>(bytes);
  return m;
}

namespace {
constinit MadeOnce<const Machine> g_machine;
}  // namespace

std::size_t processors_of_host() noexcept {
  return static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_CONF)));
}

const Machine& machine() noexcept {
  return g_machine.get([] {
    const auto begin = std::chrono::steady_clock::now();
    const Cpus mask = affinity_of(::getpid());
    Result<Machine> found = read_machine();
    // The mask of this process does not apply to an invented machine.
    if (found.ok() && !found->invented) found = found->limited_to(mask);
    if (found.ok() && found->cores.empty())
      found = Status(Reason::resource, "hwloc knows none of the threads of the affinity mask");
    Machine m = found.ok() ? std::move(*found) : flat_machine(mask, found.status().failure()->text);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    OURO_INFO(GRAPH, "{} cores, {} hardware threads, outermost cache {} KiB{}, {} NUMA nodes ({}, {:.1f} ms)",
              m.cores.size(), m.threads(), m.l3_bytes >> 10, m.same_cache() ? " shared by all" : "",
              m.nodes(), m.source, took.count());
    return m;
  });
}

Cpus affinity_of(pid_t pid) {
  Cpus cpus;
  for (std::size_t most = CPU_SETSIZE; most <= kMostCpus; most *= 2) {
    std::vector<unsigned long> words(most / kWordBits);
    const std::size_t bytes = words.size() * sizeof words[0];
    if (::sched_getaffinity(pid, bytes, reinterpret_cast<cpu_set_t*>(words.data())) != 0) {
      if (errno == EINVAL) continue;  // this kernel has more processors than the mask has bits
      break;
    }
    for (std::size_t i = 0; i < most; ++i)
      if (words[i / kWordBits] >> (i % kWordBits) & 1) cpus.push_back(static_cast<int>(i));
    break;
  }
  return cpus;
}

bool room_for_each(std::span<const Cpus> masks) {
  std::map<Cpus, std::size_t> ranks_with;
  std::set<int> all;
  for (const Cpus& m : masks) {
    ++ranks_with[m];
    all.insert(m.begin(), m.end());
  }
  if (masks.size() > all.size()) return false;
  // Hall's condition; for masks that are disjoint or nested it suffices to check each of them. (An empty mask
  // has no room for its rank.)
  for (const auto& [outer, unused] : ranks_with) {
    std::size_t inside = 0;
    for (const auto& [inner, ranks] : ranks_with)
      if (std::includes(outer.begin(), outer.end(), inner.begin(), inner.end())) inside += ranks;
    if (inside > outer.size()) return false;
  }
  return true;
}

Binding::Binding(const Placement& p) : cpus_(to_bits(p.cpus)) {
  if (p.node >= 0) nodes_ = to_bits({p.node});
}

int Binding::bind_thread() const noexcept {
  if (cpus_.empty()) return 0;
  const auto* set = reinterpret_cast<const cpu_set_t*>(cpus_.data());
  return ::sched_setaffinity(0, cpus_.size() * sizeof cpus_[0], set) == 0 ? 0 : errno;
}

int Binding::prefer_memory() const noexcept {
  if (nodes_.empty()) return 0;
  // The kernel reads one bit less than the count that it is given.
  const unsigned long bits = nodes_.size() * kWordBits + 1;
  return ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes_.data(), bits) == 0 ? 0 : errno;
}

Status bind_this_thread(const Placement& p) {
  const Binding binding(p);
  if (const int error = binding.bind_thread(); error != 0)
    return {Reason::resource,
            fmt::format("cannot bind to hardware threads {}: {}", to_text(p.cpus), std::strerror(error))};
  if (const int error = binding.prefer_memory(); error != 0)
    OURO_WARN("memory of NUMA node {} cannot be preferred: {}", p.node, std::strerror(error));
  return {};
}

}  // namespace ouro::rt

// Counts and draws the objects of an hwloc topology. Used through machine.h.
#include "tools/info/machine.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

namespace ouro::info {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

int count(hwloc_topology_t t, hwloc_obj_type_t type) {
  return std::max(0, hwloc_get_nbobjs_by_type(t, type));
}

Cache read_cache(hwloc_topology_t t, hwloc_obj_type_t type, const char* name) {
  Cache cache{.name = name, .count = count(t, type)};
  if (hwloc_obj_t first = hwloc_get_obj_by_type(t, type, 0)) {
    cache.bytes = first->attr->cache.size;
    cache.cores_each = hwloc_get_nbobjs_inside_cpuset_by_type(t, first->cpuset, HWLOC_OBJ_CORE);
  }
  return cache;
}

std::string describe(hwloc_obj_t object) {
  char type[64];
  hwloc_obj_type_snprintf(type, sizeof(type), object, 0);
  std::string text = type;
  if (object->type == HWLOC_OBJ_NUMANODE)
    text += " " + human_bytes(object->attr->numanode.local_memory);
  else if (hwloc_obj_type_is_cache(object->type))
    text += " " + human_bytes(object->attr->cache.size);
  return text;
}

/// Describes the object and everything below it, without numbers: equal text means equal shape.
std::string shape(hwloc_obj_t object) {
  std::string text = describe(object);
  for (hwloc_obj_t m = object->memory_first_child; m; m = m->next_sibling) text += "[" + shape(m) + "]";
  for (hwloc_obj_t c = object->first_child; c; c = c->next_sibling) text += "(" + shape(c) + ")";
  return text;
}

std::string threads_of(hwloc_obj_t object) {
  if (!object->cpuset || hwloc_bitmap_iszero(object->cpuset)) return "";
  char* list = nullptr;
  if (hwloc_bitmap_list_asprintf(&list, object->cpuset) < 0) return "";
  std::string text = fmt::format("  (threads {})", list);
  std::free(list);
  return text;
}

/// Draws `first` and its right siblings. A run of siblings of equal shape becomes "4 x L2 ...", drawn once;
/// because it represents several objects (`one` is false), it has no thread numbers.
void draw(hwloc_obj_t first, int depth, bool one, std::string& out) {
  for (hwloc_obj_t object = first; object;) {
    const std::string same = shape(object);
    int run = 0;
    hwloc_obj_t next = object;
    while (next && shape(next) == same) ++run, next = next->next_sibling;
    const bool single = one && run == 1;
    out += fmt::format("{:{}}{}{}{}\n", "", 2 * depth, run > 1 ? fmt::format("{} x ", run) : "",
                       describe(object), single ? threads_of(object) : "");
    draw(object->memory_first_child, depth + 1, single, out);
    draw(object->first_child, depth + 1, single, out);
    object = next;
  }
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  const bool whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

Result<Machine> read_machine(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Status(Reason::resource, "hwloc cannot start");
  const Topology topology(raw);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0)
    return invalid(fmt::format("hwloc does not understand the machine \"{}\"", synthetic));
  if (hwloc_topology_load(raw) != 0) return Status(Reason::resource, "hwloc cannot read this machine");

  Machine m;
  m.packages = count(raw, HWLOC_OBJ_PACKAGE);
  m.cores = count(raw, HWLOC_OBJ_CORE);
  m.threads = count(raw, HWLOC_OBJ_PU);
  m.numa_nodes = count(raw, HWLOC_OBJ_NUMANODE);
  m.usable_threads = hwloc_bitmap_weight(hwloc_topology_get_allowed_cpuset(raw));
  if (const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> mine(hwloc_bitmap_alloc(),
                                                                               hwloc_bitmap_free);
      mine && hwloc_topology_is_thissystem(raw) &&
      hwloc_get_cpubind(raw, mine.get(), HWLOC_CPUBIND_PROCESS) == 0)
    m.usable_threads = hwloc_bitmap_weight(mine.get());
  if (hwloc_obj_t package = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0))
    if (const char* model = hwloc_obj_get_info_by_name(package, "CPUModel")) m.model = model;
  for (const auto& [type, name] : {std::pair{HWLOC_OBJ_L1CACHE, "L1d"}, std::pair{HWLOC_OBJ_L2CACHE, "L2"},
                                   std::pair{HWLOC_OBJ_L3CACHE, "L3"}})
    if (const Cache cache = read_cache(raw, type, name); cache.count > 0) m.caches.push_back(cache);
  draw(hwloc_get_root_obj(raw), 0, true, m.tree);
  return m;
}

}  // namespace ouro::info

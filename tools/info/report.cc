// Formats facts and checks. Used through report.h.
#include "tools/info/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace ouro::info {
namespace {

std::string line(const char* label, const std::string& text) {
  return fmt::format("{:<11}  {}\n", label, text);
}
std::string bytes_or_unlimited(std::uint64_t n) { return n == kUnlimited ? "unlimited" : human_bytes(n); }
std::string number_or_unlimited(std::uint64_t n) {
  return n == kUnlimited ? "unlimited" : fmt::format("{}", n);
}
std::string plural(std::size_t n, const char* word) {
  return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}
std::string plural(int n, const char* word) { return plural(static_cast<std::size_t>(n), word); }

std::string device_words(const Facts& f) {
  if (!f.cuda.why.empty()) return f.cuda.why + ": host backend";
  const std::string found =
      fmt::format("{} ({})", plural(f.cuda.devices.size(), "CUDA device"), f.cuda.devices.front());
  return f.build.cuda ? found : found + "; this version works on host memory only: host backend";
}

std::string gpu_words(const gpu::Properties& p) {
  std::string can;
  for (const auto& [there, what] : {std::pair{p.shareable_memory, "shareable memory"},
                                    {p.ipc, "IPC"},
                                    {p.stream_values, "stream values"},
                                    {p.device_words, "stream values in its memory"},
                                    {p.multicast, "multicast"}})
    if (there) can += fmt::format("{}{}", can.empty() ? "" : ", ", what);
  return fmt::format("{} at {}, capability {}, {}, {}, L2 {}; {}", p.name, p.pci_bus_id, capability(p),
                     plural(p.multiprocessors, "multiprocessor"), human_bytes(p.memory_bytes),
                     human_bytes(p.l2_bytes), can.empty() ? "shares nothing" : can);
}

/// A table of which device can map which device's memory: one row for each device.
std::string peer_lines(const Gpus& all) {
  std::string text = "  reaches  ";
  for (std::size_t i = 0; i < all.devices.size(); ++i) text += fmt::format(" {:>3}", i);
  text += '\n';
  for (std::size_t i = 0; i < all.devices.size(); ++i) {
    text += fmt::format("  {:>7}  ", i);
    for (const bool there : all.devices[i].reaches) text += fmt::format(" {:>3}", there ? "yes" : "-");
    text += '\n';
  }
  return text;
}

/// The kernels of which the fewest and the most blocks fit; the JSON has all of them.
std::string residency_line(const std::vector<Residency>& kernels) {
  const Residency *least = nullptr, *most = nullptr;
  std::string text;
  for (const Residency& r : kernels) {
    if (!r.why.empty()) {
      text += fmt::format("     {}: {}\n", r.kernel, r.why);
      continue;
    }
    if (least == nullptr || r.blocks < least->blocks) least = &r;
    if (most == nullptr || r.blocks > most->blocks) most = &r;
  }
  if (least == nullptr) return text;
  return fmt::format("     resident at once: {} of {} threads ({}) to {} ({})\n",
                     plural(least->blocks, "block"), least->threads, least->kernel, most->blocks,
                     most->kernel) +
         text;
}

std::string gpu_lines(const Gpus& all) {
  std::string text = line("GPUs", all.devices.empty()
                                      ? fmt::format("none: {}", all.version)
                                      : fmt::format("{} by {}: {}", all.devices.size(), all.by, all.version));
  for (std::size_t i = 0; i < all.devices.size(); ++i) {
    const GpuDevice& d = all.devices[i];
    text += fmt::format("  {}: {}\n", i, d.why.empty() ? gpu_words(d.properties) : d.why);
    text += residency_line(d.kernels);
  }
  return all.devices.size() > 1 ? text + peer_lines(all) : text;
}

std::string ucx_lines(const Ucx& u) {
  if (!u.why.empty()) return line("ucx", u.why);
  return line("ucx",
              fmt::format("{} from {}, built with the headers of {}", u.version, u.path, u.built_with)) +
         line("", fmt::format("has {}", fmt::join(u.parts, ", "))) +
         line("", fmt::format("takes GPU memory: {}", u.gpu_memory)) +
         line("", lacks(u).empty() ? std::string("lacks nothing")
                                   : fmt::format("lacks {}", fmt::join(lacks(u), ", ")));
}

nlohmann::ordered_json ucx_json(const Ucx& u) {
  return {{"why", u.why},     {"version", u.version},       {"built_with", u.built_with}, {"path", u.path},
          {"parts", u.parts}, {"gpu_memory", u.gpu_memory}, {"lacks", lacks(u)}};
}

nlohmann::ordered_json gpus_json(const Gpus& all) {
  using Json = nlohmann::ordered_json;
  Json j = {{"by", all.by}, {"version", all.version}, {"devices", Json::array()}};
  for (const GpuDevice& d : all.devices) {
    const gpu::Properties& p = d.properties;
    Json one = {{"why", d.why},
                {"name", p.name},
                {"uuid", uuid_text(p)},
                {"pci_bus_id", p.pci_bus_id},
                {"capability", capability(p)},
                {"multiprocessors", p.multiprocessors},
                {"memory_bytes", p.memory_bytes},
                {"l2_bytes", p.l2_bytes},
                {"shareable_memory", p.shareable_memory},
                {"ipc", p.ipc},
                {"stream_values", p.stream_values},
                {"device_words", p.device_words},
                {"multicast", p.multicast},
                {"stream_priorities", {p.high_priority, p.low_priority}},
                {"reaches", d.reaches},
                {"resident", Json::array()}};
    for (const Residency& r : d.kernels)
      one["resident"].push_back({{"kernel", r.kernel},
                                 {"threads", r.threads},
                                 {"blocks", r.blocks},
                                 {"registers", r.info.registers},
                                 {"local_bytes", r.info.local_bytes},
                                 {"shared_bytes", r.info.shared_bytes},
                                 {"why", r.why}});
    j["devices"].push_back(std::move(one));
  }
  return j;
}

std::string transport_words(const Facts& f) {
  std::string present, missing;
  for (const Transport& t : f.transports) {
    if (t.present)
      present += fmt::format("{}{} ({})", present.empty() ? "" : ", ", t.name, t.why);
    else
      missing += fmt::format("; {} {}", t.name, t.why);
  }
  return (present.empty() ? "none" : present) + missing;
}

std::string core_words(const Facts& f) {
  if (!f.machine) return "unknown: " + f.machine_error;
  const Machine& m = *f.machine;
  std::string text =
      fmt::format("{}, {} in {}, {}", plural(m.cores, "core"), plural(m.threads, "hardware thread"),
                  plural(m.packages, "package"), plural(m.numa_nodes, "NUMA node"));
  if (m.usable_threads != m.threads) text += fmt::format("; {} may be used", m.usable_threads);
  if (f.cpu_limit) text += fmt::format("; quota {:.2g} cores", f.cpu_limit->cores);
  return m.model.empty() ? text : fmt::format("{} ({})", text, m.model);
}

std::string cache_words(const Facts& f) {
  std::string text;
  if (f.machine)
    for (const Cache& c : f.machine->caches)
      text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", c.name, human_bytes(c.bytes),
                          c.cores_each > 1 ? fmt::format(" for {} cores", c.cores_each) : "");
  return text.empty() ? "unknown" : text;
}

/// The cores that ranks may use, one line for each group that shares an outermost cache and a NUMA node.
std::string allowed_lines(const rt::Machine& m) {
  std::map<std::pair<int, int>, std::vector<const rt::Core*>> places;
  for (const rt::Core& c : m.cores) places[{c.domain, c.node}].push_back(&c);
  std::string text;
  for (const auto& [place, cores] : places) {
    rt::Cpus ids, threads;
    for (const rt::Core* c : cores) {
      ids.push_back(c->id);
      threads.insert(threads.end(), c->cpus.begin(), c->cpus.end());
    }
    std::sort(threads.begin(), threads.end());
    const rt::Core& one = *cores.front();
    const std::string cache =
        one.domain < 0 ? "cache unknown"
                       : fmt::format("{} {} of {}", one.l3 >= 0 ? "L3" : "L2", one.l3 >= 0 ? one.l3 : one.l2,
                                     human_bytes(one.outermost_bytes()));
    text += line(text.empty() ? "for ranks" : "",
                 fmt::format("{}, NUMA node {}: cores {}, hardware threads {}", cache,
                             one.node < 0 ? "unknown" : fmt::format("{}", one.node), rt::to_text(ids),
                             rt::to_text(threads)));
  }
  if (m.source != "hwloc") text += line("", m.source);
  if (m.invented) text += line("", "an invented machine: ranks cannot be bound to it");
  return text;
}

std::string memory_words(const Facts& f) {
  return fmt::format("{}, {} available; control group: {}", human_bytes(f.memory_total),
                     human_bytes(f.memory_available),
                     f.memory_limit ? fmt::format("{} at {}, {} used", human_bytes(f.memory_limit->bytes),
                                                  f.memory_limit->where, human_bytes(f.memory_limit->used))
                                    : "no limit");
}

std::string limit_words(const Facts& f) {
  return fmt::format("{} open files (hard {}), {} locked memory", number_or_unlimited(f.files_soft),
                     number_or_unlimited(f.files_hard), bytes_or_unlimited(f.locked_memory));
}

std::string check_words(const std::vector<Check>& checks) {
  const auto count = [&](Verdict v) {
    return std::count_if(checks.begin(), checks.end(), [v](const Check& c) { return c.verdict == v; });
  };
  const auto broken = count(Verdict::broken), warnings = count(Verdict::warning);
  if (broken + warnings == 0) return "nothing in the way";
  return fmt::format("{} broken, {} to be warned of: see ouro-info --doctor", broken, warnings);
}

}  // namespace

std::string version_line(const Facts& f) {
  return fmt::format("ouro {} on {} (Linux {}, {}{})\n", f.version, f.host, f.kernel, f.architecture,
                     f.container.empty() ? "" : ", in " + f.container);
}

std::string brief(const Facts& f, const std::vector<Check>& checks) {
  return version_line(f) + line("devices", device_words(f)) + line("transports", transport_words(f)) +
         line("cores", core_words(f)) + line("caches", cache_words(f)) +
         line("host loops", f.instruction_set) + line("memory", memory_words(f)) +
         line("limits", limit_words(f)) + line("check", check_words(checks));
}

std::string devices(const Facts& f) {
  std::string text = line("host", fmt::format("present; loops run on {}", f.instruction_set)) +
                     line("cuda", device_words(f));
  for (std::size_t i = 0; i < f.cuda.devices.size(); ++i)
    text += line("", fmt::format("{}: {}", i, f.cuda.devices[i]));
  text += gpu_lines(f.gpus);
  text += "transports\n";
  for (const Transport& t : f.transports)
    text += fmt::format("  {:<14} {:<8} {}\n", t.name, t.present ? "present" : "missing", t.why);
  return text + ucx_lines(f.ucx);
}

std::string topology(const Facts& f) {
  if (!f.machine) return line("topology", "unknown: " + f.machine_error) + allowed_lines(f.allowed);
  std::string text = line("cores", core_words(f));
  for (const Cache& c : f.machine->caches)
    text += line(c.name.c_str(),
                 c.cores_each > 1 ? fmt::format("{} x {}, each shared by {} cores", c.count,
                                                human_bytes(c.bytes), c.cores_each)
                                  : fmt::format("{} x {}, one for each core", c.count, human_bytes(c.bytes)));
  return text + allowed_lines(f.allowed) + f.machine->tree;
}

std::string limits(const Facts& f) {
  std::string text = line("memory", memory_words(f)) + line("limits", limit_words(f));
  text +=
      line("quota",
           f.cpu_limit ? fmt::format("{:.2g} cores at {}", f.cpu_limit->cores, f.cpu_limit->where) : "none");
  return text +
         line("huge pages", fmt::format("private memory: {}, shared memory: {}",
                                        f.huge_pages.empty() ? "unknown" : f.huge_pages,
                                        f.huge_pages_shared.empty() ? "unknown" : f.huge_pages_shared));
}

std::string parameters(const std::vector<env::Setting>& settings) {
  std::string text;
  for (const env::Setting& s : settings) {
    text += fmt::format("{:<20} {:<22} {}\n", s.parameter->name, s.value.value_or("(not set)"),
                        s.origin.empty() ? "" : "from " + s.origin);
    text += fmt::format("  {}{}\n", s.parameter->doc,
                        s.parameter->accepts.empty() ? "" : fmt::format(" [{}]", s.parameter->accepts));
    if (!s.valid.ok()) text += fmt::format("  ! {}\n", s.valid.message());
  }
  return text;
}

std::string build(const Facts& f) {
  const Build& b = f.build;
  return line("compiler", b.compiler) + line("build type", b.type.empty() ? "none" : b.type) +
         line("cuda", b.cuda ? "compiled in" : kNoCuda) + line("ucx", b.ucx ? "compiled in" : kNoUcx) +
         line("sanitizers", b.sanitizers.empty() ? "none" : b.sanitizers);
}

std::string doctor(const std::vector<Check>& checks, int ranks) {
  std::string text = fmt::format("Checks for {} on this host:\n", plural(ranks, "rank"));
  for (const Check& c : checks) {
    text += fmt::format("  {:<8} {:<18} {}\n", name(c.verdict), c.name, c.found);
    if (!c.fix.empty()) text += fmt::format("  {:<8} {:<18} fix: {}\n", "", "", c.fix);
  }
  return text + (worst(checks) == Verdict::broken ? "Something is broken; see the fixes above.\n"
                                                  : "Nothing is broken.\n");
}

nlohmann::ordered_json to_json(const Facts& f, const std::vector<env::Setting>& settings) {
  using Json = nlohmann::ordered_json;
  const auto limit = [](std::uint64_t n) {
    return n == kUnlimited ? Json(nullptr) : Json(n);
  };  // null means unlimited
  Json j = {{"version", f.version},
            {"host",
             {{"name", f.host},
              {"kernel", f.kernel},
              {"architecture", f.architecture},
              {"container", f.container}}},
            {"build",
             {{"compiler", f.build.compiler},
              {"type", f.build.type},
              {"cuda", f.build.cuda},
              {"ucx", f.build.ucx},
              {"sanitizers", f.build.sanitizers}}},
            {"cuda",
             {{"driver", f.cuda.found},
              {"driver_version", f.cuda.version},
              {"why", f.cuda.why},
              {"devices", f.cuda.devices}}},
            {"gpus", gpus_json(f.gpus)},
            {"ucx", ucx_json(f.ucx)},
            {"instruction_set", f.instruction_set},
            {"memory",
             {{"total", f.memory_total}, {"available", f.memory_available}, {"usable", f.usable_memory()}}},
            {"limits",
             {{"files_soft", limit(f.files_soft)},
              {"files_hard", limit(f.files_hard)},
              {"locked_memory", limit(f.locked_memory)}}},
            {"huge_pages", {{"private", f.huge_pages}, {"shared", f.huge_pages_shared}}}};
  j["memory"]["limit"] = f.memory_limit ? Json{{"bytes", f.memory_limit->bytes},
                                               {"used", f.memory_limit->used},
                                               {"where", f.memory_limit->where}}
                                        : Json(nullptr);
  j["cpu_quota"] =
      f.cpu_limit ? Json{{"cores", f.cpu_limit->cores}, {"where", f.cpu_limit->where}} : Json(nullptr);
  j["probes"] = Json::array();
  for (const Probe& p : f.probes)
    j["probes"].push_back({{"name", p.name}, {"works", p.works}, {"detail", p.detail}});
  j["transports"] = Json::array();
  for (const Transport& t : f.transports)
    j["transports"].push_back({{"name", t.name}, {"present", t.present}, {"why", t.why}});
  if (f.machine) {
    const Machine& m = *f.machine;
    j["machine"] = {{"model", m.model},
                    {"packages", m.packages},
                    {"cores", m.cores},
                    {"threads", m.threads},
                    {"usable_threads", m.usable_threads},
                    {"numa_nodes", m.numa_nodes},
                    {"caches", Json::array()}};
    for (const Cache& c : m.caches)
      j["machine"]["caches"].push_back(
          {{"name", c.name}, {"bytes", c.bytes}, {"count", c.count}, {"cores_each", c.cores_each}});
  } else {
    j["machine"] = {{"error", f.machine_error}};
  }
  j["allowed"] = {{"source", f.allowed.source},
                  {"invented", f.allowed.invented},
                  {"outermost_cache_bytes", f.allowed.l3_bytes},
                  {"same_cache", f.allowed.same_cache()},
                  {"cores", Json::array()}};
  for (const rt::Core& c : f.allowed.cores) {
    const auto known = [](int number) { return number < 0 ? Json(nullptr) : Json(number); };
    j["allowed"]["cores"].push_back({{"id", c.id},
                                     {"threads", c.cpus},
                                     {"l2", known(c.l2)},
                                     {"l3", known(c.l3)},
                                     {"domain", known(c.domain)},
                                     {"node", known(c.node)}});
  }
  j["parameters"] = Json::array();
  for (const env::Setting& s : settings) {
    Json p = {{"name", s.parameter->name},
              {"value", nullptr},
              {"origin", s.origin},
              {"doc", s.parameter->doc},
              {"valid", s.valid.ok()}};
    if (s.value) p["value"] = *s.value;
    j["parameters"].push_back(std::move(p));
  }
  return j;
}

nlohmann::ordered_json to_json(const std::vector<Check>& checks, int ranks) {
  nlohmann::ordered_json j = {
      {"ranks", ranks}, {"verdict", name(worst(checks))}, {"checks", nlohmann::json::array()}};
  for (const Check& c : checks)
    j["checks"].push_back(
        {{"name", c.name}, {"verdict", name(c.verdict)}, {"found", c.found}, {"fix", c.fix}});
  return j;
}

}  // namespace ouro::info

// Evaluates the facts. Used through doctor.h.
#include "tools/info/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "transport/shm/shm.h"

namespace ouro::info {
namespace {

std::string number(std::uint64_t n) { return n == kUnlimited ? "unlimited" : fmt::format("{}", n); }

Check probe_check(const Probe& p) {
  struct Known {
    const char* name;
    const char* fix;
  };
  static constexpr Known kKnown[] = {
      {"memfd",
       "allow memfd_create and fallocate: a seccomp profile of the container forbids them, or its memory is "
       "full, or file sizes are limited (`ulimit -f`)"},
      {"seals", "allow fcntl(F_ADD_SEALS) on memfd: needs Linux 3.17 and no filter in the way"},
      {"pidfd",
       "allow pidfd_open (Linux 5.3): without it a dead rank is noticed by a check of /proc at "
       "intervals, not at once"},
      {"descriptor passing",
       "allow Unix-domain sockets with SCM_RIGHTS: a filter of the container forbids them"},
      {"memory of other processes",
       "set kernel.yama.ptrace_scope to 0, or allow process_vm_readv (docker run --cap-add SYS_PTRACE): "
       "without it large private buffers are copied twice, through staging buffers"},
  };
  if (p.works) return {p.name, Verdict::ok, "works", ""};
  Check c{p.name, p.required() ? Verdict::broken : Verdict::warning, p.detail, ""};
  for (const Known& k : kKnown)
    if (p.name == k.name) c.fix = k.fix;
  return c;
}

Check files(const Facts& f, int ranks, const Needs& needs) {
  Check c{"open files", Verdict::ok,
          fmt::format("need {} a rank for {} ranks, have {}", needs.files, ranks, number(f.files_soft)), ""};
  if (f.files_soft >= needs.files) return c;
  // Ranks raise their soft limit up to this when they join (provide_descriptors).
  if (f.files_hard >= needs.files) {
    c.found += fmt::format("; ranks raise it themselves, to {} at most", number(f.files_hard));
    return c;
  }
  c.verdict = Verdict::broken;
  c.fix = fmt::format(
      "raise the hard limit ({}): LimitNOFILE= of the service, --ulimit nofile={} of the container, or "
      "/etc/security/limits.conf",
      number(f.files_hard), needs.files);
  return c;
}

Check memory(const Facts& f, int ranks, const Needs& needs) {
  const std::string limit = f.memory_limit
                                ? fmt::format("limit {} at {}, {} used", human_bytes(f.memory_limit->bytes),
                                              f.memory_limit->where, human_bytes(f.memory_limit->used))
                                : "no control group limits it";
  Check c{"memory", Verdict::ok,
          fmt::format("a group of {} ranks needs {} for links, have {} ({})", ranks,
                      human_bytes(needs.link_memory), human_bytes(f.usable_memory()), limit),
          ""};
  if (f.usable_memory() >= needs.link_memory) return c;
  c.verdict = Verdict::broken;
  c.fix = f.memory_limit ? "raise the limit (docker run --memory, resources.limits.memory, MemoryMax=) or "
                           "lower OURO_SLOT_BYTES"
                         : "free memory, start fewer ranks or lower OURO_SLOT_BYTES";
  return c;
}

Check cores(const Facts& f, int ranks) {
  Check c{"cores", Verdict::ok, "", ""};
  if (!f.machine) return {"cores", Verdict::warning, f.machine_error, "hwloc must be able to read /sys"};
  double have = f.machine->usable_threads;
  c.found =
      fmt::format("{} of {} hardware threads may be used", f.machine->usable_threads, f.machine->threads);
  if (f.cpu_limit) {
    c.found += fmt::format("; quota {:.2g} cores at {}", f.cpu_limit->cores, f.cpu_limit->where);
    have = std::min(have, f.cpu_limit->cores);
  }
  if (have < ranks) {
    c.verdict = Verdict::warning;
    c.found += fmt::format("; {} ranks share them", ranks);
    c.fix =
        "correct but slow, as ranks wait for each other's turns: start fewer ranks, or raise the quota "
        "(docker run --cpus, resources.limits.cpu) or the affinity mask (taskset, --cpu-bind)";
  }
  return c;
}

Check kernel(const Facts& f) {
  int major = 0, minor = 0;
  if (std::sscanf(f.kernel.c_str(), "%d.%d", &major, &minor) != 2)
    return {"kernel", Verdict::warning, fmt::format("cannot read the version \"{}\"", f.kernel), ""};
  if (std::pair(major, minor) >= std::pair(5, 3)) return {"kernel", Verdict::ok, "Linux " + f.kernel, ""};
  return {"kernel", Verdict::warning,
          fmt::format("Linux {} is older than 5.3, the first with pidfd", f.kernel),
          "a newer kernel notices dead ranks at once"};
}

Check huge_pages(const Facts& f) {
  if (f.huge_pages_shared.empty()) return {"huge pages", Verdict::note, "the kernel does not say", ""};
  return {"huge pages", Verdict::ok,
          fmt::format("private memory: {}, shared memory: {}", f.huge_pages, f.huge_pages_shared), ""};
}

}  // namespace

const char* name(Verdict v) {
  switch (v) {
    case Verdict::ok:
      return "ok";
    case Verdict::note:
      return "note";
    case Verdict::warning:
      return "warning";
    case Verdict::broken:
      return "broken";
  }
  return "?";
}

Needs needs_of(int ranks, std::uint32_t slot_bytes) {
  // kOwn: standard streams, the program's own files and the job's sockets. kPeer, for each peer: a control
  // page, a process descriptor and, during start-up, a socket.
  constexpr std::uint64_t kOwn = 32, kPeer = 3;
  return {kOwn + kPeer * static_cast<std::uint64_t>(std::max(0, ranks - 1)),
          transport::ShmLinkLayout::of(ranks, slot_bytes).bytes};
}

std::vector<Check> examine(const Facts& f, int ranks, const Needs& needs) {
  std::vector<Check> all;
  for (const Probe& p : f.probes) all.push_back(probe_check(p));
  all.push_back(kernel(f));
  all.push_back(files(f, ranks, needs));
  all.push_back(memory(f, ranks, needs));
  all.push_back(cores(f, ranks));
  all.push_back(huge_pages(f));
  if (!f.cuda.found)
    all.push_back({"cuda", Verdict::ok, f.cuda.why + ": host backend", ""});
  else if (f.cuda.devices.empty())
    all.push_back({"cuda", Verdict::note, f.cuda.why + ": host backend", "check the driver with nvidia-smi"});
  else if (!f.build.cuda)
    all.push_back(
        {"cuda", Verdict::note,
         fmt::format("{} device(s) found, but this build has no CUDA code and works on host memory only",
                     f.cuda.devices.size()),
         "copy to host memory around collectives"});
  else
    all.push_back({"cuda", Verdict::ok, fmt::format("{} device(s)", f.cuda.devices.size()), ""});
  all.push_back({"container", Verdict::ok,
                 f.container.empty()
                     ? "no sign of one"
                     : f.container + "; the size of /dev/shm does not matter, ouro does not use it",
                 ""});
  for (const std::string& text : f.settings_errors)
    all.push_back({"setting", Verdict::broken, text, "correct or unset it"});
  for (const std::string& text : f.settings_warnings)
    all.push_back({"setting", Verdict::warning, text, "correct or unset it"});
  return all;
}

Verdict worst(const std::vector<Check>& all) {
  Verdict v = Verdict::ok;
  for (const Check& c : all) v = std::max(v, c.verdict);
  return v;
}

}  // namespace ouro::info

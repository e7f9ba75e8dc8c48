// Machine: the cores that this process may use, which caches and memory they share, and where to put a rank.
// Used by selection and waiting, by ouro-run and ouro-perf to bind ranks, and by ouro-info.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro::rt {

/// Hardware threads by the system's numbers, in ascending order.
using Cpus = std::vector<int>;
std::string to_text(const Cpus&);  ///< "0-3,8"

/// The unit that a rank is bound to; `none` leaves it where the system puts it.
enum class Bind : std::uint8_t { none, core, cache, numa };
const char* name(Bind);
/// Error invalid: the text lists what is accepted.
Result<Bind> parse_bind(std::string_view);
/// The policy of a command line or, if that is empty, of OURO_BIND. Errors: invalid.
Result<Bind> chosen_bind(std::string_view);

struct Core {
  int id = 0;   ///< number in the whole machine, in the order of its topology
  Cpus cpus;    ///< hardware threads that this process may use, at least one
  int l2 = -1;  ///< which L2 and L3; cores with equal numbers share one. -1: none or unknown
  int l3 = -1;
  std::uint64_t l2_bytes = 0, l3_bytes = 0;  ///< of the whole cache; 0: none or unknown
  int domain = -1;                           ///< which outermost cache (L3, else L2); -1: unknown
  int node = -1;                             ///< NUMA node by the system's number; -1: unknown
  std::uint64_t outermost_bytes() const { return l3 >= 0 ? l3_bytes : l2_bytes; }
};

/// The place where a rank is to run.
struct Placement {
  Cpus cpus = {};       ///< empty: anywhere
  int node = -1;        ///< NUMA node whose memory to prefer; -1: no preference
  bool shared = false;  ///< more ranks than hardware threads: other ranks use these, too
};

struct Machine {
  /// Cores with a thread in the process's affinity mask, in the order of the topology, so that neighbours
  /// share caches.
  std::vector<Core> cores;
  /// Bytes of the largest outermost cache (L3, else L2) of these cores; 0: unknown.
  std::uint64_t l3_bytes = 0;
  std::string source = {};  ///< "hwloc", or why only the affinity mask is known
  bool invented = false;    ///< described by HWLOC_XMLFILE or HWLOC_SYNTHETIC: threads cannot be bound to it

  /// Whether two cores (indices into `cores`), or all of them, share one outermost cache; false if unknown.
  /// This is what the system reports: a hypervisor may move virtual processors apart without notice.
  bool same_cache(std::size_t a, std::size_t b) const noexcept;
  bool same_cache() const noexcept;
  int threads() const noexcept;  ///< hardware threads of all cores
  int nodes() const noexcept;    ///< distinct NUMA nodes of the cores; 0: unknown

  /// The place of rank `rank` of the `ranks` ranks on this host, 0 <= rank < ranks.
  /// core: each rank gets a core with all of its threads, neighbours in rank on neighbouring cores. With more
  /// ranks than cores, each gets one thread, second threads of a core last; with more ranks than threads,
  /// ranks take threads in turn (`shared`).
  /// cache, numa: the ranks are spread evenly along the cores, in order; each gets all cores that share the
  /// outermost cache, or the NUMA node, with the core at its position.
  Placement place(int rank, int ranks, Bind policy) const;
  /// A copy without the hardware threads that are not in `mask`, and without cores that have no other;
  /// possibly empty.
  Machine limited_to(const Cpus& mask) const;
};

/// This process's machine, read at the first call (milliseconds), limited to the affinity mask that the main
/// thread had then: binding threads later changes nothing. Thread-safe. Never fails: if hwloc fails, there is
/// one core for each thread of the mask, and what they share is unknown.
const Machine& machine() noexcept;

/// Hardware threads of this host, whether or not this process may use them; at least one.
std::size_t processors_of_host() noexcept;

/// All cores that hwloc reports for this machine, or for the one that `synthetic` describes ("l3:2 core:4
/// pu:2"). Errors: invalid (description), resource (hwloc fails).
Result<Machine> read_machine(const std::string& synthetic = "");
/// The machine as far as it is known without hwloc. `why` becomes its source.
Machine flat_machine(const Cpus& mask, std::string why);

/// The affinity mask of a process's main thread, or for 0 of the calling thread. Empty if it cannot be read.
Cpus affinity_of(pid_t);
/// Whether ranks with these affinity masks, one mask each, can all run at the same time, each on a hardware
/// thread of its own. Exact if any two masks are disjoint or nested; false if one is empty.
bool room_for_each(std::span<const Cpus> masks);

/// A place in the kernel's form. Its functions return an errno and do nothing but one system call, so they
/// may be called between fork and exec.
class Binding {
 public:
  explicit Binding(const Placement&);
  int bind_thread()
      const noexcept;  ///< applies to the calling thread, and to the threads and programs that it starts
  int prefer_memory()
      const noexcept;  ///< for pages that these touch first; returns 0 if there is no preference

 private:
  std::vector<unsigned long> cpus_, nodes_;
};

/// Binds the calling thread and the threads that it starts from now on, which include those of streams that
/// it makes. The memory preference is best effort: a refusal is logged. Errors: resource (the system refuses
/// the threads).
Status bind_this_thread(const Placement&);

}  // namespace ouro::rt

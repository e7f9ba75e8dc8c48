// All that ouro-info knows about this process's surroundings, gathered once. Used by report and doctor.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/context/machine.h"
#include "tools/info/cgroup.h"
#include "tools/info/gpus.h"
#include "tools/info/machine.h"
#include "tools/info/probes.h"
#include "tools/info/ucx.h"

namespace ouro::info {

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};  ///< of a limit: there is none

struct Transport {
  std::string name;
  bool present = false;
  std::string why;  ///< what it rests on, or why it is missing
};

struct Build {
  std::string compiler, type;  ///< "g++ 12.2.0", "RelWithDebInfo"
  bool cuda = false, ucx = false;
  std::string sanitizers;  ///< "" for none
};

struct Facts {
  std::string version;
  Build build;
  std::string host, kernel, architecture;  ///< kernel: "6.1.0-18-amd64"
  std::string container;                   ///< "docker", "kubernetes", ...; "" if there is no sign of one

  CudaDriver cuda;  ///< what the machine has, whether this build can use it or not
  Gpus gpus;        ///< what ranks started here would use
  Ucx ucx;          ///< what OURO_FABRIC=ucx would use
  std::vector<Probe> probes;
  std::vector<Transport> transports;

  std::optional<Machine> machine;  ///< nullopt: machine_error says why
  std::string machine_error;
  rt::Machine allowed;          ///< the part of it that ranks started here may use; no cores: not asked
  std::string instruction_set;  ///< of the host loops
  std::optional<CpuLimit> cpu_limit;

  std::uint64_t memory_total = 0, memory_available = 0;  ///< of the machine
  std::optional<MemoryLimit> memory_limit;
  std::uint64_t files_soft = 0, files_hard = 0;  ///< open file limits; UINT64_MAX: unlimited
  std::uint64_t locked_memory = 0;               ///< bytes that may be locked; UINT64_MAX: unlimited
  std::string huge_pages, huge_pages_shared;     ///< "always", "madvise", "never"; "" if unknown

  std::vector<std::string> settings_errors;    ///< OURO_* values that cannot be used
  std::vector<std::string> settings_warnings;  ///< OURO_* names that nobody reads

  /// Memory that may still be taken: of the machine and of the tightest control group.
  std::uint64_t usable_memory() const;
  bool works(std::string_view probe) const;
};

/// Everything, of this process. `root` is "/" but for tests, which bring their own /proc, /sys and /etc.
Facts gather(const std::filesystem::path& root = "/");

/// The word in brackets: "always [madvise] never" is "madvise".
std::string bracketed(const std::string& line);
inline constexpr const char* kNoCuda = "not in this build (OURO_CUDA=on adds it)";
/// Shared-memory, as the probes say, and what is or is not in this build.
std::vector<Transport> transports_of(const std::vector<Probe>&, const Build&, const Ucx& = {.why = kNoUcx});

}  // namespace ouro::info

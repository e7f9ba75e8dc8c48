// Everything that ouro-info knows about the environment of this process, gathered once. Used by report
// and doctor.
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

inline constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};  ///< value of a limit that is not set

struct Transport {
  std::string name;
  bool present = false;
  std::string why;  ///< what the transport is based on, or why it is missing
};

struct Build {
  std::string compiler, type;  ///< "g++ 12.2.0", "RelWithDebInfo"
  bool cuda = false, ucx = false;
  std::string sanitizers;  ///< "" if there are none
};

struct Facts {
  std::string version;
  Build build;
  std::string host, kernel, architecture;  ///< kernel: "6.1.0-18-amd64"
  std::string container;                   ///< "docker", "kubernetes", ...; "" if there is no sign of one

  CudaDriver cuda;  ///< what the machine has, whether or not this build can use it
  Gpus gpus;        ///< what ranks started here would use
  Ucx ucx;          ///< what OURO_FABRIC=ucx would use
  std::vector<Probe> probes;
  std::vector<Transport> transports;

  std::optional<Machine> machine;  ///< nullopt: machine_error gives the reason
  std::string machine_error;
  /// The part of the machine that ranks started here may use; without cores: not queried.
  rt::Machine allowed;
  std::string instruction_set;  ///< used by the loops on the host
  std::optional<CpuLimit> cpu_limit;

  std::uint64_t memory_total = 0, memory_available = 0;  ///< bytes of the machine
  std::optional<MemoryLimit> memory_limit;
  std::uint64_t files_soft = 0, files_hard = 0;  ///< open file limits; UINT64_MAX: unlimited
  std::uint64_t locked_memory = 0;               ///< bytes that may be locked; UINT64_MAX: unlimited
  std::string huge_pages, huge_pages_shared;     ///< "always", "madvise", "never"; "" if unknown

  std::vector<std::string> settings_errors;    ///< OURO_* variables with unusable values
  std::vector<std::string> settings_warnings;  ///< OURO_* variables that are not known

  /// Memory that may still be allocated, by the machine and by the tightest control group.
  std::uint64_t usable_memory() const;
  bool works(std::string_view probe) const;
};

/// Gathers all facts of this process. `root` is "/" except in tests, which supply their own /proc,
/// /sys and /etc.
Facts gather(const std::filesystem::path& root = "/");

/// The word in brackets: for "always [madvise] never" it is "madvise".
std::string bracketed(const std::string& line);
inline constexpr const char* kNoCuda = "not in this build (OURO_CUDA=on adds it)";
/// The transports with their state: shared memory according to the probes, the others according to the build.
std::vector<Transport> transports_of(const std::vector<Probe>&, const Build&, const Ucx& = {.why = kNoUcx});

}  // namespace ouro::info

// Every OURO_* parameter: one table, typed access, configuration files. Used by all code that can be
// configured from outside; ouro-info prints the table. Read parameters when an object is made, never on
// a hot path.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/status.h"

namespace ouro {

/// A set of environment variables, so that functions of them can be pure.
using Environment = std::map<std::string, std::string>;
Environment process_environment();

namespace env {

enum class Type : std::uint8_t { text, flag, integer, real };

struct Parameter {
  std::string_view name;
  Type type;
  std::string_view fallback;  ///< "": no value unless set
  std::string_view accepts;   ///< text: "a|b" (empty: anything); numbers: "low..high"
  std::string_view doc;
  std::string_view former = "";  ///< an older name, read if `name` is not set
};

inline constexpr Parameter kParameters[] = {
    {"OURO_RANK", Type::integer, "", "0..1023", "this process's rank in the job; set by ouro-run"},
    {"OURO_WORLD_SIZE", Type::integer, "", "1..1024", "number of ranks of the job; set by ouro-run"},
    {"OURO_LOCAL_RANK", Type::integer, "", "0..1023", "this process's rank among those on its host"},
    {"OURO_LOCAL_SIZE", Type::integer, "", "1..1024", "number of ranks on this host"},
    {"OURO_JOB_ID", Type::text, "", "", "any text that is equal on all ranks of a job and on no other job"},
    {"OURO_LAUNCHER", Type::text, "", "ouro|torchrun|openmpi|pmix|pmi|mvapich|slurm|none",
     "whose variables say which rank this is, where several launchers left theirs; environment only"},
    {"OURO_OUTER_LAUNCHERS", Type::text, "", "",
     "whose rank ouro-run was itself, as launcher rank/size, comma-separated; set by ouro-run"},
    {"OURO_ROLL", Type::text, "", "",
     "where ranks read which others have ended, to wait for none that never joins; set by ouro-run"},
    {"OURO_NUMERICS", Type::text, "fast", "fast|canonical",
     "fast: quickest algorithm; canonical: reduced in rank order, "
     "the bits depend on inputs and rank count only"},
    {"OURO_ALGO", Type::text, "", "",
     "algorithm, by name, of all collectives that have it; a call that it cannot serve is an error; unset: "
     "selected per call"},
    {"OURO_DEADLINE", Type::real, "600", "0.001..1e9", "seconds until an operation that has not ended fails"},
    {"OURO_LATE", Type::real, "10", "0.001..1e9",
     "seconds until ranks that have not entered an operation are named"},
    {"OURO_JOIN_DEADLINE", Type::real, "300", "0.001..1e9", "seconds for all ranks of a job to join"},
    {"OURO_DEBUG", Type::text, "WARN", "VERSION|WARN|INFO|ABORT|TRACE", "how much is logged"},
    {"OURO_DEBUG_SUBSYS", Type::text, "INIT,BOOTSTRAP,ENV", "",
     "subsystems logged at INFO and above, comma-separated; ALL is all, ^X leaves X out"},
    {"OURO_DEBUG_FILE", Type::text, "", "", "log here instead of stderr; %h is the host, %p the process id"},
    {"OURO_CONF_FILE", Type::text, "", "", "read this configuration file instead of ~/.ouro.conf"},
    {"OURO_DATA_DIR", Type::text, "", "", "directory of data files; unset: <program>/../share/ouro/data"},
    {"OURO_ISA", Type::text, "", "avx512|avx2|baseline",
     "highest instruction set that the host loops may use"},
    {"OURO_SLOT_BYTES", Type::integer, "131072", "4096..67108864", "bytes of one slot of a link"},
    {"OURO_SPIN_US", Type::integer, "", "0..1000000",
     "microseconds to spin before yielding; unset: 50, or more where a wake takes long, if each local rank "
     "can have its core, else about a quarter"},
    {"OURO_STAGING_SLOT_BYTES", Type::integer, "", "4096..67108864",
     "bytes of one slot of a staging buffer; unset: 131072, in groups of 3 to 16 ranks 262144",
     "OURO_PAGE_BYTES"},
    {"OURO_SELECT", Type::text, "", "",
     "rows put before the selection table: collective[@private|@registered][<=bytes]:algorithm, "
     "comma-separated"},
    {"OURO_TUNE", Type::text, "", "",
     "file of rows put before the selection table, as ouro-perf --tune writes it"},
    {"OURO_STREAM_BYTES", Type::integer, "", "1..1099511627776",
     "bytes touched by all ranks of an operation from which outputs are written past the caches; unset: one "
     "to eight times the outermost caches that the ranks reach, by flow"},
    {"OURO_CALIBRATION", Type::text, "", "",
     "off: copies and algorithms are chosen by what is built in; else a file that ouro-info --calibration "
     "--json wrote; unset: measured, once, and kept in ~/.cache/ouro"},
    {"OURO_BIND", Type::text, "none", "core|cache|numa|none",
     "what ouro-run and ouro-perf bind each rank to: a core, an outermost cache, a NUMA node, or nothing"},
    {"OURO_GPU_PATH", Type::text, "auto", "auto|leader|resident|copies|stream|hierarchy|staged",
     "how operations on GPU memory run: one kernel for all ranks of a GPU, a kernel a rank, copy engines, "
     "flows on streams, on the GPUs of each host and then between hosts, through the host; a call that it "
     "cannot serve is an error",
     "OURO_GPU_WAY"},
    {"OURO_GPU_COPY_BYTES", Type::integer, "268435456", "4096..1099511627776",
     "bytes of the result from which all_gather and broadcast between GPUs run on copy engines"},
    {"OURO_GPU_DIRECT", Type::text, "auto", "auto|on|off",
     "whether the fabric ucx is handed GPU memory of messages: where UCX takes it by RDMA, always (an error "
     "where UCX cannot), never"},
    {"OURO_GPU_DIRECT_BYTES", Type::integer, "262144", "4096..1099511627776",
     "bytes of a message from which its GPU memory is handed to the fabric, up to 256 MiB"},
    {"OURO_GPU_TRACE", Type::flag, "0", "",
     "1: counts and times the calls to GPUs, by kind and by class of threads; the process logs them when it "
     "ends"},
    {"OURO_FAKE_GPUS", Type::integer, "0", "0..16",
     "GPUs made of host objects, for tests and for trying device code without a GPU"},
    {"OURO_NCCL_HOST", Type::flag, "0", "",
     "1: libnccl.so.2 works on memory of the host, even where there are GPUs"},
    {"OURO_NCCL_VERSION", Type::integer, "", "20000..99999",
     "version of NCCL that libnccl.so.2 says it has the interface of; unset: that of its nccl.h"},
    {"OURO_RENDEZVOUS", Type::text, "", "",
     "where the hosts of a job meet: HOST:PORT on which rank 0 listens, "
     "or file:PATH to which it writes its address"},
    {"OURO_SECRET_FILE", Type::text, "", "",
     "file, readable by its owner only, that holds the job's secret: at least 32 hexadecimal digits"},
    {"OURO_SECRET", Type::text, "", "",
     "the job's secret itself, in hexadecimal digits; other users may see it, OURO_SECRET_FILE is safer"},
    {"OURO_INSECURE", Type::text, "0", "0|1",
     "1, and no other word: hosts join without a secret, and every process that reaches a port is trusted"},
    {"OURO_SOCKET_IFNAME", Type::text, "", "",
     "network interfaces to use: prefixes, comma-separated; =NAME is exact, ^ before the list excludes; "
     "unset: NCCL_SOCKET_IFNAME"},
    {"OURO_HOSTID", Type::text, "", "",
     "name of this host: ranks with the same name share memory; unset: "
     "the kernel's boot id and network namespace"},
    {"OURO_FABRIC", Type::text, "tcp", "tcp|ucx|trusted",
     "what carries data between hosts: tcp; or ucx (the same: trusted), which trusts every process that "
     "reaches its ports"},
    {"OURO_SECURITY", Type::text, "auth", "auth|tls",
     "between hosts: auth proves who connects; tls also encrypts all of it, with keys from the job's secret"},
    {"OURO_TCP_CONNECTIONS", Type::integer, "1", "1..16",
     "data connections of the tcp fabric between two ranks"},
    {"OURO_CHECKSUM", Type::flag, "1", "",
     "0: chunks between hosts carry no checksum (under TLS they need none)"},
    {"OURO_FAULT", Type::text, "", "",
     "faults that ranks bring upon themselves, to test how a program takes them: ACTION:rank=R,op=N, "
     "semicolon-separated; docs/guide/failures.md"},
    {"OURO_SILENT_WARN", Type::real, "1", "0.3..3600",
     "seconds until a rank of another host that is silent is named"},
    {"OURO_SILENT_FAIL", Type::real, "5", "0.6..3600",
     "seconds until a rank of another host that is silent is given up"},
};
inline constexpr int kCount = static_cast<int>(std::size(kParameters));

/// The name of a listed parameter of type T. Any other string, or a wrong type, is a compile error.
template <Type T>
struct Name {
  int index;
  consteval Name(const char* text) : index(find(text)) {}

 private:
  static consteval int find(std::string_view text) {
    for (int i = 0; i < kCount; ++i) {
      if (kParameters[i].name == text && kParameters[i].type == T) return i;
    }
    throw "this name is not listed in kParameters with this type";
  }
};

// The effective value: from the environment, else supplied by another library (env_supply.h), else from a
// configuration file, else the table's default; nullopt if there is none. Errors: invalid, for a value that
// cannot be parsed or is out of range; the text says where it came from and what is accepted.
Result<std::optional<std::string>> text(Name<Type::text>);
Result<std::optional<bool>> flag(Name<Type::flag>);                ///< 1/0, true/false, yes/no, on/off
Result<std::optional<std::int64_t>> integer(Name<Type::integer>);  ///< decimal, binary suffix K, M or G
Result<std::optional<double>> real(Name<Type::real>);

/// in_environment: whether the environment sets a listed parameter. chosen: whether any source other than the
/// table's default does.
bool in_environment(std::string_view name);
bool chosen(std::string_view name);

struct Setting {
  const Parameter* parameter;
  std::optional<std::string> value;
  std::string origin;  ///< "environment", "/etc/ouro.conf:3", "default", or "" if there is no value
  Status valid;        ///< whether `value` can be used
};
/// All parameters, in the order of the table. The value of OURO_SECRET is not shown.
std::vector<Setting> settings();

/// Checks the values of all parameters, whether or not this process will read them, so that an error shows
/// before a job has grown to the size at which it matters. Errors: invalid, for the first value that cannot
/// be used. Does not check the parameters of the log and OURO_ISA, which fall back to a working value
/// with a warning.
Status valid();

/// Complaints about the configuration, one line each: OURO_* variables that are unknown, with the nearest
/// known name, and lines of configuration files that cannot be parsed.
std::vector<std::string> complaints();
/// Logs each complaint as a warning and each setting that is not a default as an INFO line; once per process.
void report();

/// Reads the configuration files again. For tests; not while other threads read parameters.
void reload();

/// The known name nearest to `unknown`, or "" if none is near.
std::string_view nearest(std::string_view unknown);

}  // namespace env
}  // namespace ouro

// Log lines: each has a level and a subsystem and is printed by one write. Used by every layer; OURO_DEBUG,
// OURO_DEBUG_SUBSYS and OURO_DEBUG_FILE control what is printed and where.
#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ouro::log {

/// The levels, from the fewest lines to the most. VERSION prints one line with the library's version, the
/// other levels print what their names say.
enum class Level : std::uint8_t { version, warn, info, abort, trace };

/// X(name): the only list of subsystems; INFO, ABORT and TRACE lines belong to one each. The names are those
/// of NCCL_DEBUG_SUBSYS, so that settings carry over. INIT: contexts. COLL: errors of groups. P2P: messages.
/// SHM: staging buffers and links. NET: connections. GRAPH: the machine. TUNING: the algorithms that calls
/// use. ENV: settings that are not defaults. ALLOC: memory that ouro allocates. REG: memory that other ranks
/// map. CALL: each operation (TRACE). PROXY: threads of streams and networks. BOOTSTRAP: joining. RAS: lost
/// ranks. DESTROY: groups and contexts that end. PROFILE has no lines.
// clang-format off
#define OURO_SUBSYSTEMS(X)                                                     \
  X(INIT) X(COLL) X(P2P) X(SHM) X(NET) X(GRAPH) X(TUNING) X(ENV) X(ALLOC)      \
  X(CALL) X(PROXY) X(BOOTSTRAP) X(REG) X(PROFILE) X(RAS) X(DESTROY)
// clang-format on

enum class Subsystem : std::uint8_t {
#define OURO_X(n) n,
  OURO_SUBSYSTEMS(OURO_X)
#undef OURO_X
};

/// Whether a line of this level and subsystem would be printed. Costs one relaxed load after the first call.
bool enabled(Level, Subsystem);
/// Prints one line: "host:pid:tid OURO INFO text".
void write(Level, std::string_view text);
/// Prints an empty line, then "[UTC time] host:pid:tid file:line OURO WARN text", and keeps the text.
void warn(const char* file, int line, std::string_view text);
/// The text of the last warning of this process, printed or not; "" if there was none.
std::string last_warning();

/// The name of this host, with which log lines begin and which peers receive; "localhost" if the system
/// gives none.
std::string host_name();

/// A mask with bit s for each Subsystem s of a list such as "INIT,COLL" or "^COLL". A list that begins with
/// an exclusion starts from all of them. Names that do not exist are added to `unknown`, comma-separated.
std::uint32_t parse_subsystems(std::string_view list, std::string* unknown);
/// Replaces %h by the host's name, %p by the process id and %% by %.
std::string expand_file_name(std::string_view pattern);
/// Reads the settings again. Thread-safe, also while other threads log.
void refresh();
/// Reads the configuration files again (env::reload), then the settings. For tests.
void reload();

}  // namespace ouro::log

#define OURO_LOG(level, subsystem, ...)                                                       \
  do {                                                                                        \
    if (::ouro::log::enabled(::ouro::log::Level::level, ::ouro::log::Subsystem::subsystem)) { \
      ::ouro::log::write(::ouro::log::Level::level, ::fmt::format(__VA_ARGS__));              \
    }                                                                                         \
  } while (0)
#define OURO_INFO(subsystem, ...) OURO_LOG(info, subsystem, __VA_ARGS__)
#define OURO_TRACE(subsystem, ...) OURO_LOG(trace, subsystem, __VA_ARGS__)
#define OURO_WARN(...) ::ouro::log::warn(__FILE__, __LINE__, ::fmt::format(__VA_ARGS__))

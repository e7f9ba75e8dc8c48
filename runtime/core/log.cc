// The logger behind log.h: settings are read once, a line is one write, nothing is buffered.
#include "runtime/core/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"
#include "runtime/core/per_process.h"

namespace ouro::log {

std::string host_name() {
  char buffer[256] = {};
  if (gethostname(buffer, sizeof buffer - 1) != 0) return "localhost";
  return buffer;
}

namespace {

constexpr const char* kLevels[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};
constexpr const char* kSubsystems[] = {
#define OURO_X(n) #n,
    OURO_SUBSYSTEMS(OURO_X)
#undef OURO_X
};
constexpr int kSubsystemCount = static_cast<int>(std::size(kSubsystems));
constexpr std::uint32_t kAll = (1u << kSubsystemCount) - 1;

/// Writes all of it or gives up: there is no other place to report that a log cannot be written.
void put(int fd, std::string_view line) { (void)write_whole(fd, line); }

struct Sink {
  Level level = Level::warn;
  std::uint32_t mask = 0;
  Fd file;  ///< none: standard error
  std::string host = host_name();

  Sink();
  int fd() const { return file ? file.get() : STDERR_FILENO; }
  std::string prefix() const { return fmt::format("{}:{}:{}", host, getpid(), gettid()); }
  void plain(std::string_view kind, std::string_view text) const {
    put(fd(), fmt::format("{} OURO {} {}\n", prefix(), kind, text));
  }
  void warning(std::string_view where, std::string_view text) const {
    using namespace std::chrono;
    const auto now = floor<microseconds>(system_clock::now());
    const auto second = floor<seconds>(now);
    put(fd(), fmt::format("\n[{:%FT%T}.{:06}Z] {} {} OURO WARN {}\n", second, (now - second).count(),
                          prefix(), where, text));
  }
};

/// Reads a setting. One that cannot be parsed must not silence the log: it falls back to `fallback` and adds
/// the reason to `trouble`, which is logged once the sink exists.
std::string read(env::Name<env::Type::text> parameter, std::string fallback, std::string& trouble) {
  Result<std::optional<std::string>> r = env::text(parameter);
  if (r.ok()) return r->value_or(fallback);
  trouble += r.status().message() + "; ";
  return fallback;
}

Sink::Sink() {
  std::string trouble;
  const std::string wanted = read("OURO_DEBUG", "WARN", trouble);
  for (int i = 0; i < static_cast<int>(std::size(kLevels)); ++i) {
    if (wanted == kLevels[i]) level = static_cast<Level>(i);
  }
  std::string unknown;
  mask = parse_subsystems(read("OURO_DEBUG_SUBSYS", "", trouble), &unknown);
  if (!unknown.empty()) trouble += fmt::format("OURO_DEBUG_SUBSYS: no such subsystem: {}; ", unknown);
  if (const std::string pattern = read("OURO_DEBUG_FILE", "", trouble); !pattern.empty()) {
    const std::string path = expand_file_name(pattern);
    file = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file) trouble += fmt::format("OURO_DEBUG_FILE: cannot open {}: {}; ", path, std::strerror(errno));
  }
  if (!trouble.empty() && level >= Level::warn) {
    trouble.resize(trouble.size() - 2);
    warning("log settings", trouble);
  }
  if (const char* set = std::getenv("OURO_DEBUG"); set != nullptr && *set != '\0')
    plain("version", OURO_VERSION);
}

/// Level in bits 24..31, subsystem mask below; kUnread until the settings have been read. A line that is not
/// printed therefore costs one load. Written when a sink is installed, read by `enabled`; relaxed order is
/// enough, because the reader loads no other data that depends on it.
constexpr std::uint32_t kUnread = ~0u;
std::atomic<std::uint32_t> wanted{kUnread};

/// The sink in force, which is never destroyed at exit: other threads may still log.
std::atomic<Sink*> g_sink{nullptr};
std::atomic<int> g_writers{0};  // threads that may use it; reset in a forked child, where none of them runs
[[maybe_unused]] const int g_forgets_writers = pthread_atfork(nullptr, nullptr, [] { g_writers.store(0); });

void put_in_force(const Sink& s) {
  wanted.store(static_cast<std::uint32_t>(s.level) << 24 | s.mask, std::memory_order_relaxed);
}

/// Makes the first sink.
constinit MadeOnce<bool> g_begun;
void begin() {
  g_begun.get([] {
    Sink* none = g_sink.load();
    if (none) return true;
    auto fresh = std::make_unique<Sink>();
    if (g_sink.compare_exchange_strong(none, fresh.get())) put_in_force(*fresh.release());
    return true;
  });
}

/// Access to the sink in force, which is not deleted while this object lives: a writer counts itself, then
/// loads the sink, while `refresh` replaces the sink, then loads the count.
class Writing {
 public:
  Writing() {
    begin();
    g_writers.fetch_add(1, std::memory_order_seq_cst);
    sink_ = g_sink.load(std::memory_order_seq_cst);
  }
  ~Writing() { g_writers.fetch_sub(1, std::memory_order_release); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
  const Sink* operator->() const { return sink_; }

 private:
  const Sink* sink_;
};

struct LastWarning {
  std::mutex mutex;
  std::string text;
};
constinit PerProcess<LastWarning> g_last;

}  // namespace

bool enabled(Level level, Subsystem subsystem) {
  std::uint32_t now = wanted.load(std::memory_order_relaxed);
  if (now == kUnread) {
    begin();
    now = wanted.load(std::memory_order_relaxed);
  }
  return static_cast<std::uint32_t>(level) <= now >> 24 && (now >> static_cast<int>(subsystem) & 1u) != 0;
}

void write(Level level, std::string_view text) {
  const Writing sink;
  sink->plain(kLevels[static_cast<int>(level)], text);
}

void warn(const char* file, int line, std::string_view text) {
  {
    LastWarning& kept = *g_last;
    const std::lock_guard lock(kept.mutex);
    kept.text = text;
  }
  const Writing sink;
  if (sink->level >= Level::warn) sink->warning(fmt::format("{}:{}", file, line), text);
}

std::string last_warning() {
  LastWarning& kept = *g_last;
  const std::lock_guard lock(kept.mutex);
  return kept.text;
}

std::uint32_t parse_subsystems(std::string_view list, std::string* unknown) {
  std::uint32_t mask = list.starts_with('^') ? kAll : 0;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const bool exclude = item.starts_with('^');
    if (exclude) item.remove_prefix(1);
    std::uint32_t bits = item == "ALL" ? kAll : 0;
    for (int i = 0; i < kSubsystemCount; ++i) {
      if (item == kSubsystems[i]) bits = 1u << i;
    }
    if (bits == 0 && !item.empty() && unknown != nullptr) {
      *unknown += fmt::format("{}{}", unknown->empty() ? "" : ",", item);
    }
    mask = exclude ? mask & ~bits : mask | bits;
  }
  return mask;
}

std::string expand_file_name(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    switch (next) {
      case 'h':
        out += host_name();
        ++i;
        break;
      case 'p':
        out += std::to_string(getpid());
        ++i;
        break;
      case '%':
        out += '%';
        ++i;
        break;
      default:
        out += pattern[i];
    }
  }
  return out;
}

void refresh() {
  using namespace std::chrono_literals;
  auto fresh = std::make_unique<Sink>();
  put_in_force(*fresh);
  Sink* const old = g_sink.exchange(fresh.release(), std::memory_order_seq_cst);
  // Writing a line takes microseconds. If a write hangs on a full pipe, the old sink is leaked.
  for (int k = 0; k < 1000 && g_writers.load(std::memory_order_seq_cst) > 0; ++k)
    std::this_thread::sleep_for(1ms);
  if (g_writers.load(std::memory_order_seq_cst) == 0) delete old;
}

void reload() {
  env::reload();
  refresh();
}

}  // namespace ouro::log

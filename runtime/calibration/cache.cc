// A file that only its owner can have written. See cache.h.
#include "runtime/calibration/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"
#include "runtime/core/process.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::rt {
namespace {

constexpr std::size_t kMostBytes = 1u << 16;

std::string name_of(const std::string& key) {
  return fmt::format("calibration-{:016x}.json", XXH3_64bits(key.data(), key.size()));
}

Status system_error(const std::string& path, const char* what) {
  return {Reason::resource, fmt::format("{}: {}: {}", path, what, file_error(errno))};
}

/// Checks that an open file or directory belongs to this user, and that nobody else may change it.
Status only_ours(int fd, const std::string& path, bool directory) {
  struct stat s {};
  if (::fstat(fd, &s) != 0) return system_error(path, "cannot be examined");
  if (directory ? !S_ISDIR(s.st_mode) : !S_ISREG(s.st_mode))
    return {Reason::refused, fmt::format("{}: not a {}", path, directory ? "directory" : "plain file")};
  if (s.st_uid != ::geteuid())
    return {Reason::refused, fmt::format("{}: belongs to user {}; expected {}", path, s.st_uid, ::geteuid())};
  if ((s.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return {Reason::refused,
            fmt::format("{}: others may write to it (mode {:o}); chmod go-w", path, s.st_mode & 07777)};
  return {};
}

/// Opens the directory; if `make`, creates it and its parents if they do not exist.
Result<Fd> open_directory(const std::string& path, bool make) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd && errno == ENOENT && make) {
    for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
      if (::mkdir(path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST)
        return system_error(path, "cannot be made");
      if (at == std::string::npos) break;
    }
    fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  if (!fd) return system_error(path, "cannot be opened");
  OURO_TRY(only_ours(fd.get(), path, true));
  return fd;
}

Result<std::string> read_all(int fd, const std::string& path) {
  std::string text(kMostBytes, '\0');
  std::size_t had = 0;
  while (had < text.size()) {
    const ssize_t some = ::read(fd, text.data() + had, text.size() - had);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return system_error(path, "cannot be read");
    if (some == 0) break;
    had += static_cast<std::size_t>(some);
  }
  text.resize(had);
  return text;
}

}  // namespace

std::string calibration_key(const std::string& topology) {
  constexpr std::string_view kFields[] = {"vendor_id", "cpu family",      "model",    "stepping",
                                          "microcode", "CPU implementer", "CPU part", "CPU revision"};
  std::string processor;
  std::ifstream info("/proc/cpuinfo");
  // Fields of the first processor only: a host with different processors differs in its topology.
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view field(line.data(), line.find_last_not_of(" \t", colon - 1) + 1);
    if (std::find(std::begin(kFields), std::end(kFields), field) != std::end(kFields))
      processor += line.substr(colon + 1);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  processor += "; sanitized code";  // so that no other program uses these figures
#endif
  utsname system{};
  (void)::uname(&system);
  // Includes the version of the set of figures, so that files are ignored that lack figures or were
  // measured otherwise.
  return fmt::format("processor{}; kernel {} {}; {}; figures 9", processor, system.release, system.machine,
                     topology);
}

std::string calibration_cache_directory() {
  const char* cache = ::secure_getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/') return std::string(cache) + "/ouro";
  const char* home = ::secure_getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.cache/ouro" : "";
}

CalibrationCache::CalibrationCache(std::string directory, std::string key)
    : directory_(std::move(directory)),
      key_(std::move(key)),
      name_(name_of(key_)),
      file_(directory_.empty() ? "" : directory_ + "/" + name_) {}

Result<std::optional<Calibration>> CalibrationCache::load() const {
  const std::optional<Calibration> nothing;
  struct stat there {};
  if (file_.empty() || ::lstat(file_.c_str(), &there) != 0) return nothing;
  OURO_ASSIGN(const Fd directory, open_directory(directory_, false));
  const Fd fd(::openat(directory.get(), name_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd)
    return errno == ELOOP ? Status(Reason::refused, file_ + ": a symbolic link")
                          : system_error(file_, "cannot be opened");
  OURO_TRY(only_ours(fd.get(), file_, false));
  OURO_ASSIGN(const std::string text, read_all(fd.get(), file_));
  std::string key;
  auto record = parse_calibration(text, &key);
  if (!record.ok()) return invalid(fmt::format("{}: {}", file_, record.status().failure()->text));
  if (key != key_) return invalid(file_ + ": of another machine or system");
  if (!record->undisturbed()) return invalid(file_ + ": figures are missing");
  return std::optional<Calibration>(*record);
}

Status CalibrationCache::store(const Calibration& c) const {
  if (file_.empty()) return {};
  OURO_ASSIGN(const Fd directory, open_directory(directory_, true));
  const std::string text = to_json(c, key_), part = fmt::format("{}.{:x}", name_, process_number());
  (void)::unlinkat(directory.get(), part.c_str(), 0);
  Fd fd(::openat(directory.get(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd && (errno = write_whole(fd.get(), text)) == 0 &&
      ::renameat(directory.get(), part.c_str(), directory.get(), name_.c_str()) == 0)
    return {};
  const Status why = system_error(file_, "cannot be written");
  if (fd) (void)::unlinkat(directory.get(), part.c_str(), 0);
  return why;
}

}  // namespace ouro::rt

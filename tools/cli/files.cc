// Writing and reading files. See files.h.
#include "tools/cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>

#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"
#include "tools/cli/output.h"

namespace ouro::tools {
namespace {

constexpr int kMaxFileNames = 10'000;

Status unwritable(const std::string& path, int error) {
  return {Reason::resource, fmt::format("{}: cannot be written: {}", path, file_error(error))};
}

/// The number of the descriptor that a name refers to; nullopt: none.
std::optional<int> descriptor_of(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = 0;
    const char* const end = path.data() + path.size();
    const auto [stop, error] = std::from_chars(path.data() + folder.size(), end, number);
    if (error == std::errc() && stop == end && number >= 0) return number;
  }
  return std::nullopt;
}

/// A descriptor is duplicated, so that writing continues at its position: opening its name again would start
/// at the beginning of the file, and fails for sockets. Sets errno if there is no descriptor.
Fd open_to_write(const std::string& path, int flags) {
  const std::optional<int> known = descriptor_of(path);
  if (!known) return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666));
  if (was_closed(*known)) return errno = EBADF, Fd();
  return Fd(::fcntl(*known, F_DUPFD_CLOEXEC, 3));
}

/// Writes the file. Returns 0, or errno.
int fill(const std::string& path, std::string_view text, bool onto_medium) {
  Fd file = open_to_write(path, O_TRUNC);
  if (!file) return errno;
  int error = write_all(file.get(), text);
  if (error == 0 && onto_medium && ::fsync(file.get()) != 0) error = errno;
  if (::close(file.release()) != 0 && error == 0) error = errno;
  return error;
}

}  // namespace

bool is_special(const std::string& path) {
  struct stat found {};
  return descriptor_of(path) || (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode));
}

Status write_file(const std::string& path, std::string_view text) {
  const int error = fill(path, text, false);
  return error == 0 ? Status{} : unwritable(path, error);
}

Status replace_file(const std::string& path, std::string_view text) {
  if (is_special(path)) return write_file(path, text);
  const std::string half = path + kPart;
  int error = fill(half, text, true);
  if (error == 0 && std::rename(half.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  (void)::unlink(half.c_str());
  return unwritable(path, error);
}

Status try_replace(const std::string& path) {
  if (is_special(path)) return try_file(path);
  const std::string half = path + kPart;
  const int error = fill(half, "", false);
  if (error == 0 && ::unlink(half.c_str()) == 0) return {};
  return unwritable(path, error != 0 ? error : errno);
}

std::string GrowingFile::name_of_part() const { return special_ ? path_ : path_ + kPart; }

void GrowingFile::add(std::string_view text) {
  if (error_ != 0) return;
  if (!file_) {
    special_ = is_special(path_);
    file_ = open_to_write(name_of_part(), O_TRUNC);
  }
  error_ = file_ ? write_all(file_.get(), text) : errno;
  any_ = any_ || error_ == 0;
  if (error_ != 0 && file_ && !any_ && !special_) (void)::unlink(name_of_part().c_str());
}

Status GrowingFile::finish() {
  if (error_ == 0 && file_ && ::close(file_.release()) != 0) error_ = errno;
  if (error_ == 0 && any_ && !special_ && std::rename(name_of_part().c_str(), path_.c_str()) != 0)
    error_ = errno;
  any_ = any_ && error_ != 0;
  return error_ == 0 ? Status{} : unwritable(path_, error_);
}

std::string GrowingFile::where() const { return any_ && !special_ ? name_of_part() : ""; }

Status try_file(const std::string& path) {
  if (!is_special(path)) return write_file(path, "");
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return unwritable(path, EISDIR);
  if (const std::optional<int> known = descriptor_of(path)) {
    const int flags = was_closed(*known) ? -1 : ::fcntl(*known, F_GETFL);
    const bool writable = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    return writable ? Status{} : unwritable(path, EBADF);
  }
  // A pipe is not opened here: its reader would see end of file when this descriptor is closed.
  return ::access(path.c_str(), W_OK) == 0 ? Status{} : unwritable(path, errno);
}

Result<std::string> reserve_file(const std::string& path) {
  if (is_special(path)) {
    OURO_TRY(try_file(path));
    return path;
  }
  for (int i = -1; i < kMaxFileNames; ++i) {
    const std::string candidate = i < 0 ? path : fmt::format("{}.{}", path, i);
    if (const Fd made = open_to_write(candidate, O_EXCL)) return candidate;
    if (errno != EEXIST)
      return Status(Reason::resource, fmt::format("cannot create {}: {}", candidate, file_error(errno)));
  }
  return Status(Reason::resource,
                fmt::format("{} and {} numbered names after it exist", path, kMaxFileNames));
}

Result<std::string> read_file(const std::string& path, std::size_t most) {
  const auto unreadable = [&](const std::string& why) {
    return Status(Reason::resource, fmt::format("{}: cannot be read: {}", path, why));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return unreadable(std::strerror(errno));
  std::string text;
  char part[1 << 16];
  for (;;) {
    const ssize_t n = ::read(file.get(), part, sizeof part);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable(std::strerror(errno));
    text.append(part, static_cast<std::size_t>(n));
    if (text.size() > most) return unreadable(fmt::format("it has more than {} bytes", most));
  }
}

}  // namespace ouro::tools

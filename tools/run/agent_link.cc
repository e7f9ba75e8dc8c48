// Pipes and process of one agent. Used through agent_link.h.
#include "tools/run/agent_link.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>
#include <variant>

#include "tools/run/system.h"

namespace ouro::run {

AgentLink::AgentLink(Host where, std::size_t at, int first, Audience& audience)
    : host(std::move(where)),
      node(at),
      first_rank(first),
      alive(static_cast<std::size_t>(host.slots), 1),
      audience_(audience) {}

AgentLink::~AgentLink() {
  in.reset();
  if (present()) child.reap();
}

Result<std::optional<int>> AgentLink::call(const std::vector<std::string>& command, Patience patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe");
  const Fd read_end(ends[0]);
  in = Fd(ends[1]);
  ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  // If this process dies, the command gets SIGTERM, not SIGKILL: an agent then ends its ranks, and ssh
  // its connection.
  OURO_ASSIGN(auto started, spawn(command, process_environment(), read_end.get(), {}, SIGTERM, patience));
  if (const StartError* failed = std::get_if<StartError>(&started)) return std::optional<int>(failed->error);
  child = std::move(std::get<Child>(started));
  return std::optional<int>();
}

void AgentLink::send(const Message& message) {
  if (!in) return;
  outgoing_ += encode(message);
  flush();
}

void AgentLink::flush() {
  while (unsent()) {
    const ssize_t n = ::write(in.get(), outgoing_.data(), outgoing_.size());
    if (n >= 0) {
      outgoing_.erase(0, static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      in.reset();  // the end of the process is noticed elsewhere
    }
  }
}

void AgentLink::drain_errors() {
  char buffer[16384];
  const auto print = [&](std::string_view text, std::size_t, LineEnd) {
    if (!text.empty()) last_error_line = text;
    audience_.error_line(*this, text);
  };
  while (child.err) {
    const ssize_t n = ::read(child.err.get(), buffer, sizeof buffer);
    if (n > 0) {
      errors_.add({buffer, static_cast<std::size_t>(n)}, print);
    } else if (n < 0 && errno == EAGAIN) {
      return;
    } else if (n == 0 || errno != EINTR) {
      errors_.finish(print);
      child.err.reset();
    }
  }
}

void AgentLink::drain() {
  constexpr int kReads = 16;
  char buffer[65536];
  for (int i = 0; i < kReads && child.out; ++i) {
    const ssize_t n = ::read(child.out.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return child.out.reset();
    reader_.add({buffer, static_cast<std::size_t>(n)});
    while (state == State::called) {
      const std::optional<std::string> line = reader_.next_line();
      if (!line) break;
      if (*line == kGreeting) {
        state = State::connected;
        break;
      }
      if (!line->empty()) last_error_line = *line;  // printed by the remote shell
      audience_.error_line(*this, *line);
    }
    while (state != State::called && child.out) {
      const Result<std::optional<Message>> message = reader_.next();
      if (!message.ok()) {
        child.out.reset();
        return audience_.garbled(*this, message.status().failure()->text);
      }
      if (!*message) break;
      audience_.on_message(*this, **message);
    }
  }
}

std::vector<int> AgentLink::bury() {
  drain_errors();
  // Bounded; a pipe holds only a few reads.
  for (int i = 0; i < 1000 && child.out && state != State::over; ++i) {
    pollfd more{child.out.get(), POLLIN, 0};
    if (::poll(&more, 1, 0) <= 0) break;
    drain();
  }
  child.reap();
  in.reset();
  std::vector<int> lost;
  append_alive(lost);
  std::fill(alive.begin(), alive.end(), char{0});
  return lost;
}

void AgentLink::append_alive(std::vector<int>& ranks) const {
  for (std::size_t i = 0; i < alive.size(); ++i)
    if (alive[i] != 0) ranks.push_back(first_rank + static_cast<int>(i));
}

/// Orders are sent on standard input, so this path is the only text that a remote shell parses.
Result<std::string> agent_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Reason::resource, "cannot read /proc/self/exe");
  std::string path = self.parent_path() / "ouro-run";
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._+-,=@").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!std::all_of(path.begin(), path.end(), plain))
    return invalid(
        fmt::format("{}: a remote shell might misread this path; install ouro-run elsewhere", path));
  return path;
}

}  // namespace ouro::run

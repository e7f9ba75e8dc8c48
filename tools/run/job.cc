// The ranks of one host: handles their ends and their output, and ends them. Used through job.h.
#include "tools/run/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "tools/run/launcher.h"
#include "tools/run/open_files.h"

namespace ouro::run {

rt::Placement Job::place_of(int index) const {
  return bound() ? rt::machine().place(index, static_cast<int>(ranks_.size()), spec_.bind) : rt::Placement{};
}

bool Job::any_alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.alive(); });
}

std::vector<int> Job::alive() const {
  std::vector<int> alive;
  for (const Rank& r : ranks_) {
    if (r.alive()) alive.push_back(rank_of(r));
  }
  return alive;
}

Result<std::optional<int>> Job::start(Signals& signals, When limit) {
  constexpr std::size_t kEach = 3, kWhileStarting = 16;
  OURO_TRY(
      make_room(kEach * ranks_.size() + kWhileStarting, fmt::format("starting {} ranks", ranks_.size())));
  const Fd empty(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!empty) return system_error("cannot open /dev/null");
  const int count = static_cast<int>(ranks_.size());
  if (place_of(count - 1).shared)
    audience_.say(
        fmt::format("{} ranks take the hardware threads ({}) in turn", count, rt::machine().threads()));
  bool memory_told = false;  // printed once: the system refuses all ranks alike
  for (int i = 0; i < count; ++i) {
    Rank& r = ranks_[static_cast<std::size_t>(i)];
    Environment variables = spec_.environments[static_cast<std::size_t>(i)];
    const rt::Placement place = place_of(i);
    if (bound()) variables["OURO_BIND"] = name(rt::Bind::none);
    const int input = i == 0 && spec_.input >= 0 ? spec_.input : empty.get();
    OURO_ASSIGN(auto child, spawn(spec_.argv, variables, input, place, SIGKILL, {&signals, limit}));
    if (const StartError* failed = std::get_if<StartError>(&child)) {
      if (failed->binding)
        return Status(Reason::resource,
                      fmt::format("cannot bind rank {} to hardware threads {}: {}", rank_of(r),
                                  rt::to_text(place.cpus), std::strerror(failed->error)));
      if (failed->error == EINTR || failed->error == ETIME) {
        int number = 0;
        while (failed->error == EINTR && (number = signals.take()) != 0 && !ends_the_job(number)) {
        }
        audience_.say(fmt::format("{} while rank {} was being started: the system has not executed {} yet",
                                  number != 0 ? fmt::format("signal {} ({})", number, ::strsignal(number))
                                              : "the end of the job's time",
                                  rank_of(r), spec_.argv[0]));
        return std::optional<int>(number != 0 ? 128 + number : kTimeoutCode);
      }
      audience_.say(fmt::format("cannot run {}: {}", spec_.argv[0], std::strerror(failed->error)));
      return std::optional<int>(failed->error == ENOENT ? 127 : 126);
    }
    r.child = std::move(std::get<Child>(child));
    if (r.child.memory_error != 0 && !std::exchange(memory_told, true))
      audience_.say(fmt::format("memory of NUMA node {} cannot be preferred for rank {}: {}", place.node,
                                rank_of(r), std::strerror(r.child.memory_error)));
  }
  return std::optional<int>();
}

void Job::signal_all(int number) {
  for (Rank& r : ranks_) {
    if (r.alive()) r.child.signal_group(number);
  }
}

void Job::kill_all() {
  signal_all(SIGKILL);
  for (Rank& r : ranks_) {
    if (r.alive()) r.child.reap();
  }
}

void Job::line(Rank& r, bool is_error, std::string_view text, std::size_t shown, LineEnd end) {
  constexpr std::string_view kMark = " OURO WARN ";
  if (const std::size_t mark = text.find(kMark); mark != std::string_view::npos) {
    r.last_warning = text.substr(mark + kMark.size());
  }
  constexpr std::string_view kHint =
      "Try";  // "Try: x --help", "Try 'x --help' for more": the line before it says what is wrong
  const bool hint = text.starts_with(kHint) && text.find("--help") != std::string_view::npos;
  if (is_error && !text.empty() && (!hint || r.last_error_line.empty())) r.last_error_line = text;
  audience_.line(rank_of(r), is_error, text.substr(shown), end);
}

/// Reads what is available; with `all` even if the audience is full, because a process that has ended left no
/// more than its pipe holds. Closes the pipe at the end of the stream.
void Job::drain(Rank& r, bool is_error, bool all) {
  Fd& fd = is_error ? r.child.err : r.child.out;
  LineSplitter& lines = is_error ? r.err : r.out;
  const auto take = [&](std::string_view text, std::size_t shown, LineEnd end) {
    line(r, is_error, text, shown, end);
  };
  constexpr int kReads = 16;  // bounded, so that the other ranks get their turn
  char buffer[16384];
  for (int i = 0; i < kReads && fd && (all || !audience_.full(is_error)); ++i) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      lines.add({buffer, static_cast<std::size_t>(n)}, take);
      When& since = is_error ? r.err_since : r.out_since;
      since = lines.unfinished() ? When(Clock::now()) : When();
      if (since && !show_) show_ = *since + kUnfinished;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      lines.finish(take);
      fd.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

/// Prompts and progress bars end without a newline: shows a line that has been unterminated for kUnfinished.
void Job::show_unfinished() {
  const auto now = Clock::now();
  for (Rank& r : ranks_)
    for (const bool is_error : {false, true}) {
      LineSplitter& lines = is_error ? r.err : r.out;
      When& since = is_error ? r.err_since : r.out_since;
      if (!since || !lines.unfinished()) continue;
      if (now - *since < kUnfinished) {
        show_ = earliest({show_, *since + kUnfinished});
        continue;
      }
      lines.partial(
          [&](std::string_view text) { audience_.line(rank_of(r), is_error, text, LineEnd::piece); });
      since.reset();
    }
}

void Job::drain(Rank& r) {
  drain(r, false, true);
  drain(r, true, true);
}

/// If several ranks ended at once, one that was killed by a signal is taken as the cause, the others
/// as consequences.
void Job::collect(const std::vector<Rank*>& ended) {
  Rank* culprit = nullptr;
  for (Rank* r : ended) {
    r->child.reap();
    drain(*r);
    audience_.ended(rank_of(*r), r->child.ending->exit_code());
    if (!r->child.ending->failed()) continue;
    if (culprit == nullptr || (r->child.ending->signal != 0 && culprit->child.ending->signal == 0))
      culprit = r;
  }
  if (culprit == nullptr || code_) return;
  code_ = culprit->child.ending->exit_code();
  audience_.failed(*code_, obituary(*culprit));
  if (!forwarded_) stop(kGrace);
}

std::string Job::obituary(const Rank& culprit) const {
  std::string text =
      fmt::format("rank {} (pid {}) {}", rank_of(culprit), culprit.child.pid, culprit.child.ending->text());
  if (!culprit.last_warning.empty()) {
    text += fmt::format("; its last warning: {}", culprit.last_warning);
  } else if (!culprit.last_error_line.empty()) {
    text += fmt::format("; its last line on stderr: {}", culprit.last_error_line);
  }
  return text;
}

void Job::stop(milliseconds until_term) {
  const auto term = Clock::now() + until_term;
  if (!kill_ && (!term_ || term < *term_)) term_ = term;  // an end that is already scheduled is not postponed
}

void Job::forward(int number) {
  if (!ends_the_job(number)) return signal_all(number);
  if (std::exchange(forwarded_, true) || number == SIGKILL) return signal_all(SIGKILL);
  signal_all(number);
  signal_all(SIGCONT);  // a stopped process cannot act on the signal
  term_.reset();
  kill_ = Clock::now() + kForwardToKill;
}

When Job::next() const {
  When first = earliest({term_, kill_, show_});
  for (const Rank& r : ranks_) first = earliest({first, r.child.next()});
  return first;
}

void Job::on_time() {
  if (due(term_)) {
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process cannot act on SIGTERM
    kill_ = Clock::now() + kTermToKill;
  }
  if (due(kill_)) signal_all(SIGKILL);
  if (due(show_)) show_unfinished();
}

void Job::watch(std::vector<pollfd>& fds) const {
  for (const Rank& r : ranks_) {  // poll ignores -1
    fds.push_back({r.child.pidfd.get(), POLLIN, 0});
    fds.push_back({audience_.full(false) ? -1 : r.child.out.get(), POLLIN, 0});
    fds.push_back({audience_.full(true) ? -1 : r.child.err.get(), POLLIN, 0});
  }
}

void Job::handle(const pollfd* fds) {
  std::vector<Rank*> ended;
  for (Rank& r : ranks_) {
    if (fds[1].revents != 0) drain(r, false, false);
    if (fds[2].revents != 0) drain(r, true, false);
    if (r.child.has_ended(fds[0])) ended.push_back(&r);
    fds += 3;
  }
  collect(ended);
}

void Job::finish() {
  for (Rank& r : ranks_) {
    drain(r);
    for (const bool is_error : {false, true})
      (is_error ? r.err : r.out).finish([&](std::string_view text, std::size_t shown, LineEnd end) {
        line(r, is_error, text, shown, end);
      });
  }
}

}  // namespace ouro::run

// tapnet: a network emulator in user space. Joins TAP interfaces, one in each network namespace, into a
// switch, and applies delay, loss, corruption and so on for each directed link. Used by tools/netlab if the
// kernel has no netem.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <queue>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/net/packet.h"

namespace ouro::net {
namespace {

constexpr std::size_t kMaxFrame = 65536;
constexpr std::size_t kMaxQueued =
    std::size_t{1} << 18;   // limit on frames in flight over all links; further frames are dropped
constexpr int kBurst = 64;  // frames read from one port before the others are served

std::int64_t now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "tapnet: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

struct Fault {
  double delay = 0;   // ms
  double jitter = 0;  // ms, uniform in +-jitter; reorders, because each frame draws its own
  double loss = 0;    // probabilities, of IP packets only (see Packet::is_subject)
  double dup = 0;
  double reorder = 0;  // share of packets that skip the delay
  double corrupt = 0;  // probability of flipping one bit of the TCP or UDP payload
  double fixup = 0;    // 1: correct the checksum after the flip, so that it reaches the application
  double rate = 0;     // Mbit/s, 0 = unlimited
  double queue = 200;  // ms of backlog at `rate` before tail drop
  double maxlen = 0;   // drop IP packets longer than this silently; 0 = off
  double cut = 0;      // 1: drop everything, ARP included
};

struct Key {
  std::string_view name;
  double Fault::*field;
  double most;  // values are from 0 to this
  bool whole = false;
};
constexpr double kHour = 3'600'000;  // ms
constexpr Key kKeys[] = {
    {"delay", &Fault::delay, kHour},   {"jitter", &Fault::jitter, kHour},
    {"loss", &Fault::loss, 1},         {"dup", &Fault::dup, 1},
    {"reorder", &Fault::reorder, 1},   {"corrupt", &Fault::corrupt, 1},
    {"fixup", &Fault::fixup, 1, true}, {"rate", &Fault::rate, 1e6},
    {"queue", &Fault::queue, kHour},   {"maxlen", &Fault::maxlen, kMaxFrame, true},
    {"cut", &Fault::cut, 1, true},
};

template <class Number>
bool read(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Parses "loss=0.1". Returns false and changes nothing if the key is unknown or the value is not allowed.
bool assign(Fault& fault, std::string_view text) {
  const std::size_t equals = text.find('=');
  double value = 0;
  if (equals == text.npos || !read(text.substr(equals + 1), value)) return false;
  for (const Key& key : kKeys) {
    if (key.name != text.substr(0, equals)) continue;
    if (!(value >= 0 && value <= key.most) || (key.whole && value != std::floor(value))) return false;
    fault.*key.field = value;
    return true;
  }
  return false;
}

struct Link {
  Fault fault;
  std::uint64_t index = 0;   // number of packets that were subject to a decision so far
  std::int64_t free_at = 0;  // when the rate limiter can start the next frame
  std::uint64_t frames = 0, lost = 0, cut = 0, toolong = 0, overflow = 0;
  std::uint64_t dup = 0, reordered = 0, corrupted = 0;
};

struct Port {
  std::string name;
  int fd = -1;
};

struct Frame {
  std::int64_t due;
  std::uint64_t order;  // frames with equal times leave in the order of arrival
  int to;
  std::vector<std::uint8_t> data;
};
struct Later {
  bool operator()(const Frame& a, const Frame& b) const {
    return a.due != b.due ? a.due > b.due : a.order > b.order;
  }
};

class Switch {
 public:
  Switch(std::vector<Port> ports, Fault fault, std::uint64_t seed)
      : ports_(std::move(ports)), seed_(seed), links_(ports_.size() * ports_.size()) {
    for (Link& l : links_) l.fault = fault;
  }

  void run() {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGINT);
    ::sigaddset(&set, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    int signals = ::signalfd(-1, &set, SFD_CLOEXEC);
    int input = STDIN_FILENO;
    std::printf("ready\n");
    std::fflush(stdout);
    while (!quit_) {
      std::vector<pollfd> fds{{signals, POLLIN, 0}, {input, POLLIN, 0}};
      for (Port& p : ports_) fds.push_back({p.fd, POLLIN, 0});
      timespec wait{};
      if (!queue_.empty()) {
        std::int64_t ns = std::max<std::int64_t>(0, queue_.top().due - now_ns());
        wait = {ns / 1'000'000'000, ns % 1'000'000'000};
      }
      if (::ppoll(fds.data(), fds.size(), queue_.empty() ? nullptr : &wait, nullptr) < 0 && errno != EINTR)
        fail("poll");
      if (fds[0].revents) break;
      if (fds[1].revents && !read_commands(input)) input = -1;
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        if (fds[i + 2].revents & POLLIN) receive(int(i));
        if (fds[i + 2].revents & (POLLERR | POLLNVAL)) ports_[i].fd = -1;  // the namespace has been removed
      }
      send_due();
    }
    print_stats(stderr);
  }

 private:
  Link& link(int from, int to) { return links_[std::size_t(from) * ports_.size() + std::size_t(to)]; }

  void receive(int from) {
    std::uint8_t buffer[kMaxFrame];
    for (int k = 0; k < kBurst; ++k) {
      ssize_t n = ::read(ports_[std::size_t(from)].fd, buffer, sizeof buffer);
      if (n < 14) return;
      std::uint64_t dst = 0, src = 0;
      std::memcpy(&dst, buffer, 6);
      std::memcpy(&src, buffer + 6, 6);
      owner_[src] = from;
      auto it = owner_.find(dst);
      bool flood = (buffer[0] & 1) || it == owner_.end();
      Packet packet = parse(buffer, std::size_t(n));
      for (int to = 0; to < int(ports_.size()); ++to)
        if (to != from && (flood || to == it->second)) forward(from, to, buffer, std::size_t(n), packet);
    }
  }

  void forward(int from, int to, const std::uint8_t* data, std::size_t n, const Packet& packet) {
    Link& l = link(from, to);
    const Fault& f = l.fault;
    ++l.frames;
    if (f.cut > 0) return void(++l.cut);
    const bool subject = packet.is_subject();
    const Dice dice(seed_, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to),
                    subject ? l.index++ : 0);
    if (subject) {
      if (f.maxlen > 0 && double(packet.ip_length) > f.maxlen) return void(++l.toolong);
      if (dice.hit(Draw::loss, f.loss)) return void(++l.lost);
    }
    std::int64_t now = now_ns(), leave = now;
    if (queue_.size() >= kMaxQueued) return void(++l.overflow);
    if (f.rate > 0) {
      std::int64_t start = std::max(now, l.free_at);
      if (double(start - now) > f.queue * 1e6) return void(++l.overflow);
      l.free_at = leave = start + std::int64_t(double(n) * 8e3 / f.rate);
    }
    std::vector<std::uint8_t> frame(data, data + n);
    if (subject && packet.has_payload() && dice.hit(Draw::corrupt, f.corrupt)) {
      flip_bit(frame, packet, dice, f.fixup > 0);
      ++l.corrupted;
    }
    if (subject && dice.hit(Draw::reorder, f.reorder)) {
      ++l.reordered;
    } else {
      double ms = f.delay + (subject ? f.jitter * (2 * dice.unit(Draw::jitter) - 1) : 0);
      leave += std::max<std::int64_t>(0, std::int64_t(ms * 1e6));
    }
    if (subject && dice.hit(Draw::dup, f.dup)) {
      queue_.push({leave, order_++, to, frame});
      ++l.dup;
    }
    queue_.push({leave, order_++, to, std::move(frame)});
  }

  void send_due() {
    std::int64_t now = now_ns();
    while (!queue_.empty() && queue_.top().due <= now) {
      const Frame& f = queue_.top();
      // A failed write means that the interface is down: the frame is lost, as on a wire.
      if (ports_[std::size_t(f.to)].fd >= 0)
        (void)!::write(ports_[std::size_t(f.to)].fd, f.data.data(), f.data.size());
      queue_.pop();
    }
  }

  bool read_commands(int fd) {
    char buffer[4096];
    ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return false;
    pending_.append(buffer, std::size_t(n));
    for (std::size_t eol; (eol = pending_.find('\n')) != std::string::npos;) {
      std::string line = pending_.substr(0, eol);
      pending_.erase(0, eol + 1);
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      std::printf("%s\n", command(line) ? "ok" : "error");
      std::fflush(stdout);
    }
    return true;
  }

  bool command(const std::string& line) {
    std::istringstream in(line);
    std::string word, from, to;
    in >> word;
    if (word == "stats") return print_stats(stdout), true;
    if (word == "quit") return quit_ = true;
    if (word != "set" || !(in >> from >> to)) return false;
    auto names = [&](const std::string& text, std::size_t port) {
      return text == "*" || text == ports_[port].name || text == std::to_string(port);
    };
    std::vector<std::string> changes;
    for (Fault scratch; in >> word; changes.push_back(word))
      if (!assign(scratch, word)) return false;  // nothing is applied unless all words are valid
    bool matched = false;
    for (std::size_t i = 0; i < ports_.size(); ++i)
      for (std::size_t j = 0; j < ports_.size(); ++j)
        if (i != j && names(from, i) && names(to, j)) {
          for (const std::string& c : changes) assign(link(int(i), int(j)).fault, c);
          matched = true;
        }
    return matched;
  }

  void print_stats(FILE* out) {
    for (std::size_t i = 0; i < ports_.size(); ++i)
      for (std::size_t j = 0; j < ports_.size(); ++j) {
        const Link& l = link(int(i), int(j));
        if (!l.frames) continue;
        std::fprintf(out,
                     "{\"from\":\"%s\",\"to\":\"%s\",\"frames\":%lu,\"decided\":%lu,\"lost\":%lu,"
                     "\"cut\":%lu,\"toolong\":%lu,\"overflow\":%lu,\"dup\":%lu,\"reordered\":%lu,"
                     "\"corrupted\":%lu}\n",
                     ports_[i].name.c_str(), ports_[j].name.c_str(), l.frames, l.index, l.lost, l.cut,
                     l.toolong, l.overflow, l.dup, l.reordered, l.corrupted);
      }
    std::fflush(out);
  }

  std::vector<Port> ports_;
  std::uint64_t seed_;
  std::vector<Link> links_;
  std::map<std::uint64_t, int> owner_;  // MAC address -> port
  std::priority_queue<Frame, std::vector<Frame>, Later> queue_;
  std::uint64_t order_ = 0;
  std::string pending_;
  bool quit_ = false;
};

// NS is a name made by `ip netns add`, or a path such as /proc/PID/ns/net.
Port open_port(const std::string& spec) {
  auto colon = spec.rfind(':');
  std::string ns = spec.substr(0, colon), name = spec.substr(colon + 1);
  if (name.empty() || name.size() >= IFNAMSIZ) {
    errno = EINVAL;
    fail(spec);
  }
  std::string path = ns.find('/') == std::string::npos ? "/run/netns/" + ns : ns;
  int ns_fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (ns_fd < 0 || ::setns(ns_fd, CLONE_NEWNET)) fail(path);
  ::close(ns_fd);
  int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::memcpy(request.ifr_name, name.c_str(), name.size() + 1);
  if (::ioctl(fd, TUNSETIFF, &request)) fail(spec);
  return {ns, fd};
}

}  // namespace
}  // namespace ouro::net

constexpr const char* kUsage =
    "usage: tapnet [seed=N] [KEY=VALUE...] NS:IF NS:IF...\n"
    "Joins interface IF of network namespace NS "
    "(a name, or a path such as /proc/PID/ns/net) with the others.\n"
    "keys: delay jitter queue (ms, up to an hour)  rate (Mbit/s, up to 1e6; 0: no limit)\n"
    "      loss dup reorder corrupt (0 to 1)  fixup cut (0 or 1)  maxlen (bytes; 0: any)\n"
    "commands on standard input: set FROM TO KEY=VALUE..., stats, quit; the answer ends with ok or error\n"
    "Ends on SIGTERM. Exit code: 0; 1 the system refuses; 2 wrong usage.\n";

int main(int argc, char** argv) {
  using namespace ouro::net;
  const auto refuse = [](const std::string& what) {
    std::fprintf(stderr, "tapnet: %s: Invalid argument\n%s", what.c_str(), kUsage);
    return 2;
  };
  Fault fault;
  std::uint64_t seed = 1;
  std::vector<std::string> places;
  std::vector<Port> ports;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg == "--help" || arg == "-h") return std::fputs(kUsage, stdout), 0;
    if (arg.starts_with("seed=")) {
      if (!read(std::string_view(arg).substr(5), seed)) return refuse(arg);
    } else if (arg.find('=') != std::string::npos) {
      if (!assign(fault, arg)) return refuse(arg);
    } else if (arg.find(':') != std::string::npos) {
      places.push_back(arg);
    } else {
      return refuse(arg);
    }
  }
  if (places.size() < 2) return refuse("fewer than two interfaces");
  for (const std::string& place : places) ports.push_back(open_port(place));
  Switch(std::move(ports), fault, seed).run();
}

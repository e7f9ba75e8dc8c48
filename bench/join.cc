// How long a job of many hosts takes to join: each host has one rank, one listener and one client of the
// rendezvous, spread over a few processes, all on the loopback. Usage: bench_join [hosts [processes [arity]]]
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "bench/arguments.h"
#include "runtime/core/fd.h"
#include "runtime/join/rendezvous.h"

namespace {

using namespace ouro;
using namespace ouro::rt;
using namespace std::chrono_literals;
constexpr auto kLimit = 60s;

Identity who(int rank, int world) {
  const wire::Bytes secret(32, 42);
  return {.job = {7},
          .rank = rank,
          .world = world,
          .host = fmt::format("node{:05}", rank),
          .host_id = fmt::format("{:032x}", rank),
          .pid = getpid(),
          .secret = *wire::Secret::from_bytes(secret)};
}

struct Node {
  std::unique_ptr<LineListener> listener;
  std::unique_ptr<RendezvousClient> client;
  bool done = false;
};

RendezvousOptions options(Node& node, asio::io_context& io, int rank, int world, const std::string& place,
                          int arity) {
  RendezvousOptions o;
  o.identity = who(rank, world);
  auto listener = LineListener::open(io, o.identity, {.bind = "127.0.0.1"}, [&node](Line line) {
    if (node.client && line.purpose == Purpose::table) node.client->serve(std::move(line));
  });
  if (!listener.ok()) {
    fmt::print(stderr, "{}\n", listener.status().message());
    std::exit(1);
  }
  node.listener = std::move(*listener);
  o.self = {rank, o.identity.pid, o.identity.host, o.identity.host_id, node.listener->endpoint(), "A=1 B=2",
            {}};
  o.place = place;
  o.arity = arity;
  o.deadline = kLimit;
  return o;
}

/// "127.0.0.1:PORT" with a free port: it is known before the server starts, and needs no file.
std::string free_place() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
    return "";
  return fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
}

/// Seconds since a point in time that is common to all processes.
double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

template <class Done>
void run(asio::io_context& io, Done done) {
  const auto end = Clock::now() + kLimit;
  while (!done() && Clock::now() < end) {
    io.restart();
    io.run_one_for(100ms);
  }
}

/// Joins as the ranks first, first + step, ...; writes the time at which each had the table; 0 if it failed.
int client_process(int first, int step, int world, const std::string& place, int arity, int go, int report) {
  asio::io_context io;
  std::vector<Node> nodes(static_cast<std::size_t>((world - first + step - 1) / step));
  std::vector<double> times;
  std::vector<RendezvousOptions> all;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    all.push_back(options(nodes[i], io, first + static_cast<int>(i) * step, world, place, arity));
  char byte = 0;
  if (::write(report, "r", 1) != 1 || ::read(go, &byte, 1) != 0)
    return 1;  // the end of the pipe is the signal
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].client = std::make_unique<RendezvousClient>(io, all[i]);
    nodes[i].client->bring(all[i].self);
    nodes[i].client->async_table([&times, world](Result<std::vector<MemberRecord>> table) {
      const bool good = table.ok() && table->size() == static_cast<std::size_t>(world);
      if (!good) fmt::print(stderr, "{}\n", table.status().message());
      times.push_back(good ? now() : 0);
    });
  }
  run(io, [&] { return times.size() == nodes.size(); });
  run(io, [&] {
    return std::all_of(nodes.begin(), nodes.end(), [](const Node& n) { return n.client->served(); });
  });
  times.resize(nodes.size(), 0);
  for (const double t : times)  // one by one: so small a write is never mixed with another process's
    if (::write(report, &t, sizeof t) != sizeof t) return 1;
  for (Node& n : nodes) n.client.reset();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using ouro::bench::number;
  const std::optional<int> hosts = number(argc, argv, 1, 4096, 2, 65'536);
  const std::optional<int> spread = number(argc, argv, 2, 4, 1, 64),
                           branches = number(argc, argv, 3, 8, 1, 64);
  const bool right = hosts && spread && branches && *spread < *hosts && argc <= 4;
  if (const auto code = ouro::bench::help_or_refuse(
          argc, argv, right, "bench_join [HOSTS (2..65536; 4096) [PROCESSES (1..64; 4) [ARITY (1..64; 8)]]]"))
    return *code;
  const int world = *hosts, processes = *spread, arity = *branches;
  ::setenv("OURO_DEBUG", "VERSION", 0);  // thousands of ranks that are joining have nothing to say
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const std::string place = free_place();
  if (place.empty()) {
    fmt::print(stderr, "bench_join: no free port on the loopback\n");
    return 1;
  }

  int go[2], report[2];
  if (pipe2(go, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0) return 1;
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p) {
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it died before it could be watched
      close(go[1]), close(report[0]);
      _exit(client_process(1 + p, processes, world, place, arity, go[0], report[1]));
    }
    if (child > 0) children.push_back(child);
  }
  close(go[0]), close(report[1]);
  asio::io_context io;
  Node root;
  auto opened = RendezvousServer::open(io, options(root, io, 0, world, place, arity));
  if (!opened.ok()) {
    fmt::print(stderr, "{}\n", opened.status().message());
    return 1;
  }
  auto& server = **opened;
  std::optional<double> root_done;
  server.async_table([&](Result<std::vector<MemberRecord>> table) {
    if (!table.ok()) fmt::print(stderr, "{}\n", table.status().message());
    root_done = now();
  });
  char ready = 0;
  for (int p = 0; p < processes; ++p)
    if (::read(report[0], &ready, 1) != 1) return 1;
  const double start = now();
  close(go[1]);
  run(io, [&] { return root_done && server.served(); });

  std::vector<double> times;
  for (double t = 0; ::read(report[0], &t, sizeof t) == sizeof t;) times.push_back(t - start);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  std::sort(times.begin(), times.end());
  const auto failed = std::count_if(times.begin(), times.end(), [](double x) { return x < 0; });
  const auto at = [&](double q) {
    return times.empty() ? 0.0 : times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))];
  };
  fmt::print(
      "{} hosts, {} processes, arity {}: all seats at rank 0 after {:.3f} s; table: p50 {:.3f} s, p99 {:.3f} "
      "s, last {:.3f} s; {} failed\n",
      world, processes, arity, root_done.value_or(0) - start, at(0.5), at(0.99), at(1),
      failed + world - 1 - static_cast<long>(times.size()));
  return failed == 0 && times.size() == static_cast<std::size_t>(world - 1) ? 0 : 1;
}

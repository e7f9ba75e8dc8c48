// The launch of one rank, from its arguments to the last line printed.
// Used by ouro_peer.cc, mpi_peer.cc and gloo_peer.cc.
#include "bench/comparison/harness.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "bench/comparison/methods.h"
#include "bench/comparison/pattern.h"
#include "bench/comparison/probe.h"
#include "bench/comparison/shared.h"

namespace ouro::compare {
namespace {

struct Point {
  Collective collective;
  std::size_t bytes;
  Element element;
  Buffer buffer;
  Method method;
  bool in_place;
  std::string algorithm;
};

struct Arguments {
  std::string points, directory;
  std::vector<int> cores;
  int rank = -1, ranks = 0;
  unsigned seconds = 600;
  Effort effort;
};

template <class T>
bool pick(const std::map<std::string, T>& names, const std::string& word, T& value) {
  const auto it = names.find(word);
  if (it == names.end()) return false;
  value = it->second;
  return true;
}

Error parse(const std::string& line, Point& p) {
  std::istringstream words(line);
  std::string collective, element, buffer, method, place;
  words >> collective >> p.bytes >> element >> buffer >> method >> place;
  const bool whole = static_cast<bool>(words);
  words >> p.algorithm;
  const bool known =
      pick<Collective>({{"all_reduce", Collective::all_reduce},
                        {"broadcast", Collective::broadcast},
                        {"all_gather", Collective::all_gather},
                        {"reduce_scatter", Collective::reduce_scatter},
                        {"all_to_all", Collective::all_to_all}},
                       collective, p.collective) &&
      pick<Element>({{"float32", Element::float32}, {"bfloat16", Element::bfloat16}}, element, p.element) &&
      pick<Buffer>({{"private", Buffer::private_memory}, {"registered", Buffer::registered}}, buffer,
                   p.buffer) &&
      pick<Method>({{"A", Method::application}, {"B", Method::call_by_call}, {"C", Method::back_to_back}},
                   method, p.method) &&
      pick<bool>({{"in", true}, {"out", false}}, place, p.in_place);
  if (!whole || !known || p.bytes == 0) return "not a point: " + line;
  if (p.collective == Collective::broadcast && !p.in_place) return "broadcast is in place here: " + line;
  const bool one_buffer = p.collective == Collective::all_reduce || p.collective == Collective::broadcast;
  if (p.in_place && !one_buffer) return "not measured in place: " + line;
  return {};
}

/// The rank that mpirun gave this process, -1 without one.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return -1;
}

Error parse(int argc, char** argv, Arguments& a) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--points")
      a.points = value;
    else if (name == "--directory")
      a.directory = value;
    else if (name == "--rank")
      a.rank = std::atoi(value.c_str());
    else if (name == "--ranks")
      a.ranks = std::atoi(value.c_str());
    else if (name == "--cores")
      a.cores = parse_cores(value);
    else if (name == "--seconds")
      a.seconds = static_cast<unsigned>(std::atoi(value.c_str()));
    else if (name == "--blocks")
      a.effort.blocks = std::max(1, std::atoi(value.c_str()));
    else if (name == "--block-ms")
      a.effort.block_ms = std::atof(value.c_str());
    else if (name == "--samples-ms")
      a.effort.samples_ms = std::atof(value.c_str());
    else
      return "unknown argument " + name;
  }
  if (a.rank < 0) a.rank = launched_rank();
  if (argc % 2 == 0 || a.points.empty() || a.directory.empty() || a.ranks < 1 || a.rank < 0 ||
      a.rank >= a.ranks)
    return "wants --points FILE --directory DIR --ranks N --cores LIST and a rank; bench/compare starts it";
  return {};
}

Call call_of(const Point& p, int ranks) {
  Call c;
  c.collective = p.collective;
  c.element = p.element;
  c.algorithm = p.algorithm;
  const std::size_t all = std::max<std::size_t>(1, p.bytes / size_of(p.element)),
                    n = static_cast<std::size_t>(ranks);
  const bool whole = p.collective == Collective::all_reduce || p.collective == Collective::broadcast;
  // At least an element a rank: 8 bytes among four ranks are 16.
  c.block = whole ? all : std::max<std::size_t>(1, all / n);
  c.in_count = p.collective == Collective::reduce_scatter || p.collective == Collective::all_to_all
                   ? c.block * n
                   : c.block;
  c.out_count = p.collective == Collective::all_gather || p.collective == Collective::all_to_all ? c.block * n
                                                                                                 : c.block;
  return c;
}

/// Bytes of large pages among those of the mapping that holds `at`, 0..1; -1 where the kernel does not say.
double large_pages(const void* at) {
  std::ifstream maps("/proc/self/smaps");
  const auto want = reinterpret_cast<std::uintptr_t>(at);
  bool inside = false;
  double resident = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    double kb = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2 && line.find('-') < line.find(' ')) {
      inside = from <= want && want < to;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %lf kB", &kb) == 1) {
      resident = kb;
    } else if (inside && line.starts_with("VmFlags")) {
      break;
    } else if (inside &&
               (std::sscanf(line.c_str(), "AnonHugePages: %lf kB", &kb) == 1 ||
                std::sscanf(line.c_str(), "ShmemPmdMapped: %lf kB", &kb) == 1) &&
               kb > 0) {
      return resident > 0 ? kb / resident : -1;
    }
  }
  return resident > 0 ? 0 : -1;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

class Rank {
 public:
  Rank(const Arguments& a, Peer& peer) : a_(a), peer_(peer) {}
  Error run();

 private:
  Error join();
  Error allocate(const std::vector<Point>&);
  Error measure(std::size_t index, const Point&);
  double handoff();

  struct Pair {
    void* in = nullptr;
    void* out = nullptr;
    std::size_t in_bytes = 0, out_bytes = 0;
  };

  const Arguments& a_;
  Peer& peer_;
  Shared all_;
  Waiting how_ = Waiting::spin;
  Pair buffers_[2];
  double last_handoff_ = 0;
};

Error Rank::join() {
  const bool crowded = a_.cores.size() < static_cast<std::size_t>(a_.ranks);
  how_ = peer_.needs_idle_cores() ? Waiting::sleep : crowded ? Waiting::yield : Waiting::spin;
  if (!crowded) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(a_.cores[static_cast<std::size_t>(a_.rank)], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) return "cannot pin a rank to its core";
  }
  if (Error e = all_.open(a_.directory + "/meeting", a_.rank, a_.ranks); !e.empty()) return e;
  std::vector<std::byte> id;
  if (a_.rank == 0) {
    if (Error e = peer_.make_id(id); !e.empty()) return e;
    if (id.size() + sizeof(std::uint32_t) > kIdBytes) return "the peer's id is too long";
    const auto n = static_cast<std::uint32_t>(id.size());
    std::memcpy(all_.id(), &n, sizeof n);
    if (n) std::memcpy(all_.id() + sizeof n, id.data(), n);
  }
  all_.barrier(Waiting::sleep);
  std::uint32_t n = 0;
  std::memcpy(&n, all_.id(), sizeof n);
  id.assign(all_.id() + sizeof n, all_.id() + sizeof n + n);
  return peer_.start({.rank = a_.rank, .ranks = a_.ranks, .directory = a_.directory, .id = &id});
}

Error Rank::allocate(const std::vector<Point>& points) {
  for (const Point& p : points) {
    const Call c = call_of(p, a_.ranks);
    Pair& b = buffers_[static_cast<int>(p.buffer)];
    // In place, `out` is the larger of the two buffers.
    b.in_bytes = std::max(b.in_bytes, p.in_place ? 0 : c.in_bytes());
    b.out_bytes = std::max({b.out_bytes, c.out_bytes(), p.in_place ? c.in_bytes() : 0});
  }
  for (const Buffer kind : {Buffer::private_memory, Buffer::registered}) {
    Pair& b = buffers_[static_cast<int>(kind)];
    for (auto [bytes, at] : {std::pair{b.in_bytes, &b.in}, {b.out_bytes, &b.out}}) {
      if (bytes == 0) continue;
      *at = peer_.allocate(kind, bytes);
      if (!*at) return "no memory, or no such class of buffers";
      rewrite(*at, bytes, 0);  // first touch, by the rank that uses it
    }
  }
  return {};
}

double Rank::handoff() {
  // The probe needs both cores: the others sleep until rank 0 arrives.
  if (a_.rank == 0) last_handoff_ = handoff_ns(a_.cores);
  all_.barrier(Waiting::sleep);
  return last_handoff_;
}

Error Rank::measure(std::size_t index, const Point& p) {
  Call call = call_of(p, a_.ranks);
  const Pair& b = buffers_[static_cast<int>(p.buffer)];
  call.out = b.out;
  call.in = p.in_place ? b.out : b.in;
  bool supported = true;
  if (Error e = peer_.prepare(call, supported); !e.empty()) return e;
  if (!supported) {
    if (a_.rank == 0) std::printf("{\"point\":%zu,\"unsupported\":true}\n", index), std::fflush(stdout);
    return {};
  }
  std::int64_t bad = 0;
  auto verify = [&](std::uint32_t salt) {
    fill(call, a_.rank, salt);
    all_.barrier(how_);
    const bool ok = peer_.run(call);
    bad += all_.sum(ok ? wrong(call, a_.rank, a_.ranks, salt) : 1, how_);
    return ok;
  };
  const double before = last_handoff_;
  const auto salt = static_cast<std::uint32_t>(index);
  if (!verify(salt + 1)) return peer_.error();
  const Timing t = time(p.method, peer_, call, all_, how_, a_.effort);
  if (t.failed || !verify(salt + 2)) return "in the timed loop: " + peer_.error();
  const double after = handoff();
  if (a_.rank == 0) {
    std::printf(
        "{\"point\":%zu,\"us\":%.4f,\"p99_us\":%.4f,\"overhead_us\":%.4f,\"calls\":%lld,\"wrong\":%lld,"
        "\"handoff_before_ns\":%.1f,\"handoff_after_ns\":%.1f}\n",
        index, t.us, t.p99_us, t.overhead_us, static_cast<long long>(t.calls), static_cast<long long>(bad),
        before, after);
    std::fflush(stdout);
  }
  return {};
}

Error Rank::run() {
  std::vector<Point> points;
  std::ifstream file(a_.points);
  if (!file) return "cannot read " + a_.points;
  for (std::string line; std::getline(file, line);) {
    Point p{};
    if (Error e = parse(line, p); !e.empty()) return e;
    points.push_back(p);
  }
  if (Error e = join(); !e.empty()) return e;
  if (Error e = allocate(points); !e.empty()) return e;
  handoff();
  if (a_.rank == 0) {
    const void* first = buffers_[0].out ? buffers_[0].out : buffers_[1].out;
    std::printf("{\"library\":%s,\"large_pages\":%.2f}\n", quoted(peer_.library()).c_str(),
                large_pages(first));
    std::fflush(stdout);
  }
  for (std::size_t i = 0; i < points.size(); ++i)
    if (Error e = measure(i, points[i]); !e.empty()) return "point " + std::to_string(i) + ": " + e;
  all_.barrier(how_);
  peer_.stop();
  return {};
}

}  // namespace

void die_with_parent(unsigned seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGALRM, SIG_DFL);
  alarm(seconds);
  if (getppid() == 1) _exit(1);  // the parent had ended before it could be watched
}

std::vector<int> parse_cores(const std::string& list) {
  std::vector<int> cores;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) cores.push_back(std::atoi(word.c_str()));
  return cores;
}

int run_harness(int argc, char** argv, Peer& peer) {
  Arguments a;
  Error e = parse(argc, argv, a);
  if (e.empty()) {
    die_with_parent(a.seconds);
    e = Rank(a, peer).run();
  }
  if (e.empty()) return 0;
  std::fprintf(stderr, "rank %d: %s\n", a.rank, e.c_str());
  // Peers may be blocked in an operation with this rank: exit at once; bench/compare ends them.
  _exit(1);
}

}  // namespace ouro::compare

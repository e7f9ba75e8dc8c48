// Times two ranks that share no memory. See pair.h.
#include "bench/comparison/pair.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "bench/comparison/harness.h"
#include "tools/measure/figures.h"

namespace ouro::compare {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

using measure::median;

struct Plan {
  std::vector<std::pair<std::string, std::size_t>> points;
  std::vector<int> cores;
  int blocks = 5;
  double block_us = 100e3;
  unsigned seconds = 60;
};

bool parse(int argc, char** argv, Plan& plan) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--points") {
      std::istringstream list(value);
      for (std::string one; std::getline(list, one, ',');) {
        const std::size_t colon = one.find(':');
        if (colon == std::string::npos) return false;
        plan.points.emplace_back(one.substr(0, colon), std::stoull(one.substr(colon + 1)));
      }
    } else if (name == "--cores") {
      plan.cores = parse_cores(value);
    } else if (name == "--blocks") {
      plan.blocks = std::stoi(value);
    } else if (name == "--block-ms") {
      plan.block_us = std::stod(value) * 1e3;
    } else if (name == "--seconds") {
      plan.seconds = static_cast<unsigned>(std::stoul(value));
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && !plan.points.empty() && plan.blocks > 0;
}

class Timer {
 public:
  Timer(Pair& pair, int rank, const Plan& plan) : pair_(pair), rank_(rank), plan_(plan) {}

  /// Time of one way: half of the median round trip.
  double latency(std::size_t bytes, long& wrong) {
    std::vector<unsigned char> mine(bytes, 7), got(bytes);
    std::vector<double> all;
    const auto trip = [&](int i) {
      mine[0] = static_cast<unsigned char>(i);
      if (rank_ == 0) {
        const double start = now_us();
        pair_.send(mine.data(), bytes);
        pair_.recv(got.data(), bytes);
        all.push_back((now_us() - start) / 2);
        wrong += got[0] != static_cast<unsigned char>(i);
      } else {
        pair_.recv(got.data(), bytes);
        pair_.send(got.data(), bytes);
      }
    };
    const int count = agree(calls([&] { trip(0); }));
    all.clear();
    for (int i = 0; i < count * plan_.blocks; ++i) trip(i);
    return rank_ == 0 ? median(all) : 0;
  }

  /// Time of one message of a one-way stream, from the median block.
  double stream(std::size_t bytes, long& wrong) {
    std::vector<unsigned char> data(bytes, static_cast<unsigned char>(rank_ + 1));
    const auto block = [&](int count) {
      const double start = now_us();
      unsigned char ended = 1;
      if (rank_ == 0) {
        pair_.send_many(data.data(), bytes, count);
        pair_.recv(&ended, 1);
      } else {
        pair_.recv_many(data.data(), bytes, count);
        pair_.send(&ended, 1);
      }
      return (now_us() - start) / count;
    };
    const int count = std::max(2, agree(calls([&] { block(4); }) * 4));
    std::vector<double> all;
    for (int i = 0; i < plan_.blocks; ++i) all.push_back(block(count));
    if (rank_ == 1) wrong += std::count(data.begin(), data.end(), 1) != static_cast<std::ptrdiff_t>(bytes);
    return median(all);
  }

  /// Time of one call, from the median block.
  double all_reduce(std::size_t bytes, long& wrong) {
    const std::size_t n = std::max<std::size_t>(1, bytes / sizeof(float));
    std::vector<float> in(n), out(n);
    const auto check = [&] {
      for (std::size_t i = 0; i < n; ++i) {
        wrong += out[i] != static_cast<float>(2 * (i % 1000) + 1);
        out[i] = -1;
      }
    };
    for (std::size_t i = 0; i < n; ++i)
      in[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(rank_));
    pair_.all_reduce(in.data(), out.data(), n);
    check();
    const int count = agree(calls([&] { pair_.all_reduce(in.data(), out.data(), n); }));
    std::vector<double> all;
    for (int b = 0; b < plan_.blocks; ++b) {
      const double start = now_us();
      for (int i = 0; i < count; ++i) pair_.all_reduce(in.data(), out.data(), n);
      all.push_back((now_us() - start) / count);
    }
    check();
    return median(all);
  }

 private:
  /// How many times `call` fits into a block.
  template <class Call>
  int calls(Call&& call) {
    for (int i = 0; i < 3; ++i) call();
    const double start = now_us();
    for (int i = 0; i < 3; ++i) call();
    return static_cast<int>(std::clamp(plan_.block_us * 3 / (now_us() - start), 1.0, 1e5));
  }
  /// Returns rank 0's number on both ranks.
  int agree(int mine) {
    std::int64_t n = mine;
    if (rank_ == 0)
      pair_.send(&n, sizeof n);
    else
      pair_.recv(&n, sizeof n);
    return static_cast<int>(n);
  }

  Pair& pair_;
  const int rank_;
  const Plan& plan_;
};

}  // namespace

int run_pair(int argc, char** argv, Pair& pair) {
  Plan plan;
  if (!parse(argc, argv, plan)) {
    std::fprintf(stderr,
                 "usage: --points WHAT:BYTES[,...] --cores A,B --blocks N --block-ms MS --seconds S\n");
    return 2;
  }
  die_with_parent(plan.seconds);
  int rank = -1;
  if (const std::string why = pair.start(&rank); !why.empty()) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 1;
  }
  if (!plan.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(plan.cores[static_cast<std::size_t>(rank) % plan.cores.size()], &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  Timer timer(pair, rank, plan);
  long all_wrong = 0;
  for (const auto& [what, bytes] : plan.points) {
    long wrong = 0;
    double us = 0;
    if (what == "latency") {
      us = timer.latency(bytes, wrong);
    } else if (what == "stream") {
      us = timer.stream(bytes, wrong);
    } else if (what == "all_reduce") {
      us = timer.all_reduce(bytes, wrong);
    } else {
      std::fprintf(stderr, "no such point: %s\n", what.c_str());
      return 2;
    }
    // Both check what they have received.
    long theirs = 0;
    if (rank == 0)
      pair.recv(&theirs, sizeof theirs);
    else
      pair.send(&wrong, sizeof wrong);
    all_wrong += wrong + theirs;
    if (rank != 0) continue;
    std::printf("{\"what\": \"%s\", \"bytes\": %zu, \"us\": %.4f, \"wrong\": %ld, \"library\": \"%s\"}\n",
                what.c_str(), bytes, us, wrong + theirs, pair.library().c_str());
    std::fflush(stdout);
  }
  pair.stop();
  return all_wrong == 0 ? 0 : 1;
}

}  // namespace ouro::compare

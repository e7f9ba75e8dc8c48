// Runs one seed from start to end. See run.h.
#include "tests/simulate/job/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/join/descriptors.h"
#include "tests/simulate/job/judge.h"
#include "tests/simulate/os/network.h"

namespace simulate {
namespace {

using Kind = Injection::Kind;

constexpr Nanos kEnd = 400 * kSecond;
constexpr std::uint64_t kMostEvents = 20'000'000;
constexpr std::size_t kMostBuffered = 16 << 20;  // limit on bytes in all sockets of a job

class Run {
 public:
  Run(std::uint64_t seed, bool trace) : scenario_(seed), world_(seed), network_(scenario_.ranks) {
    world = &world_, files = &files_, network = &network_;
    world_.tracing = trace;
    world_.most_latency = scenario_.most_latency;
    world_.preempted = scenario_.preempted;
    network_.send_room = scenario_.send_room, network_.receive_room = scenario_.receive_room;
  }
  ~Run() { world = nullptr, files = nullptr, network = nullptr; }

  Outcome run() {
    if (world_.tracing) fmt::print(stderr, "{}", scenario_.text());
    set_up();
    const auto over = [this] {
      return world_.events() > kMostEvents ||
             std::all_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r->process.dead; });
    };
    world_.run(kEnd, over);
    Outcome o{.digest = world_.digest(), .events = world_.events(), .connections = network_.connections()};
    o.seconds = static_cast<double>(world_.now()) / static_cast<double>(kSecond);
    for (const auto& r : ranks_)
      for (const Call& c : r->calls) {
        ++o.calls;
        o.failed_calls += !c.outcome.ok();
        o.shrinks += c.kind == Call::Kind::shrink && c.ended >= 0 && c.outcome.ok();
      }
    auto wrong = judge(scenario_, ranks_, world_.now());
    if (network_.most_buffered > kMostBuffered)
      wrong.push_back(fmt::format("{} bytes lay in sockets at once", network_.most_buffered));
    if (wrong.empty()) return o;
    o.wrong = scenario_.text();
    for (const std::string& w : wrong) o.wrong += "  " + w + "\n";
    return o;
  }

 private:
  void set_up() {
    Random& random = world_.random();
    for (int a = 0; a < scenario_.ranks; ++a)
      for (int b = 0; b < scenario_.ranks; ++b)
        network_.path(a, b) = {.delay = a == b ? 0 : random.between(scenario_.delay / 2, scenario_.delay),
                               .jitter = scenario_.jitter,
                               .loss = scenario_.loss};
    for (int r = 0; r < scenario_.ranks; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>(scenario_, r));
      rank.process.clock_offset = random.between(kSecond, 1'000'000 * kSecond);
      rank.process.clock_rate =
          1 + scenario_.clock_error * (static_cast<double>(random.below(2001)) / 1000 - 1);
      world_.spawn(rank.process, fmt::format("{}.main", r), [this, &rank] {
        rank.run();
        rank.descriptors_left = files_.count(rank.process);
        rank.threads_left = world_.alive(rank.process) - 1;
        world_.after(0, [this, &rank] { end_process(rank); });
      });
    }
    for (const Injection& i : scenario_.injections) world_.at(i.when, [this, &i] { inject(i); });
  }
  Rank& rank(int r) { return *ranks_[static_cast<std::size_t>(r)]; }

  void end_process(Rank& r) {
    if (r.process.dead) return;
    world_.note("ends", r.process.rank);
    world_.kill(r.process);
    files_.close_all(r.process);
  }

  void inject(const Injection& i) {
    world_.note("inject", static_cast<int>(i.kind), i.rank, i.other);
    Rank& it = rank(i.rank);
    switch (i.kind) {
      case Kind::kill:
        return end_process(it);
      case Kind::lose:
        for (int r = 0; r < scenario_.ranks; ++r) cut(i.rank, r, 1), cut(r, i.rank, 1);
        return world_.kill(it.process);
      case Kind::suspend:
        for (const auto& r : ranks_) suspend(*r, i.lasts);
        return;
      case Kind::stop:
        if (it.process.dead) return;
        world_.stop(it.process);
        return world_.after(i.lasts, [this, &it] { world_.go_on(it.process); });
      case Kind::part:
        part(i, 1);
        return world_.after(i.lasts, [this, &i] { part(i, -1); });
      case Kind::one_way:
        cut(i.rank, i.other, 1);
        return world_.after(i.lasts, [this, &i] { cut(i.rank, i.other, -1); });
      case Kind::reset:
        return network_.forge_reset(world_.random(), i.rank, i.other);
      case Kind::slow:
        slow(i.rank, i.delay);
        return world_.after(i.lasts, [this, &i] { slow(i.rank, -i.delay); });
      case Kind::far:
        far(i.rank, i.other, i.delay);
        return world_.after(i.lasts, [this, &i] { far(i.rank, i.other, -i.delay); });
    }
  }
  void suspend(Rank& r, Nanos lasts) {
    const Nanos first = world_.random().between(0, 100 * kMilli);
    world_.after(first, [this, &r, lasts] {
      if (r.process.dead) return;
      world_.stop(r.process);
      world_.after(lasts + world_.random().between(0, 100 * kMilli), [this, &r] { world_.go_on(r.process); });
    });
  }
  void part(const Injection& i, int by) {
    for (int a = 0; a < scenario_.ranks; ++a)
      for (int b = 0; b < scenario_.ranks; ++b)
        if ((i.side >> a & 1) != (i.side >> b & 1)) cut(a, b, by);
  }
  /// Cuts of one path may overlap.
  void cut(int from, int to, int by) {
    int& cuts = cuts_[{from, to}];
    const bool before = cuts > 0;
    cuts += by;
    if (from != to && before != (cuts > 0)) network_.cut(from, to, cuts > 0);
  }
  void slow(int of, Nanos by) {
    for (int r = 0; r < scenario_.ranks; ++r)
      if (r != of) network_.path(of, r).delay += by, network_.path(r, of).delay += by;
  }

  void far(int a, int b, Nanos by) { network_.path(a, b).delay += by, network_.path(b, a).delay += by; }

  const Scenario scenario_;
  World world_;
  Files files_;
  Network network_;
  std::map<std::pair<int, int>, int> cuts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  const ouro::rt::Provided descriptors_;  // the real system's descriptors are not examined
};

}  // namespace

Outcome run(std::uint64_t seed, bool trace) { return Run(seed, trace).run(); }

}  // namespace simulate

// One rank of a cell of the fault matrix: runs to a phase, undergoes the fault, shrinks with the survivors,
// checks another all-reduce, leaves, and counts leaked resources. Reports events as lines of JSON. Started
// by cells.py.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/core/log.h"
#include "tests/system/hosts/check.h"

namespace {

using namespace ouro;
using nlohmann::json;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;  // shared by all namespaces of a machine

constexpr int kActs = 30;    // the round in which a rank performs FAULTS_ACT
constexpr int kEnough = 20;  // number of rounds after a shrink

double now() { return static_cast<double>(Clock::now().time_since_epoch().count()) / 1e9; }
void say(const char* event, json fields = json::object()) {
  fields["event"] = event;
  fields["t"] = now();
  std::puts(fields.dump().c_str());
  std::fflush(stdout);
}
json failure_of(const Status& s) {
  json f = json::parse(s.json());
  f["message"] = s.message();
  return f;
}
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

struct Holdings {
  std::ptrdiff_t descriptors = 0, threads = 0, segments = 0;
  static Holdings now() {
    const auto entries = [](const char* folder) {
      std::error_code e;
      return std::distance(std::filesystem::directory_iterator(folder, e),
                           std::filesystem::directory_iterator());
    };
    Holdings h{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) h.segments += line.find("memfd:ouro") != line.npos;
    return h;
  }
};

/// Forks a child as a data loader does: the child lives on for a while; with "calls" it uses the inherited
/// context instead.
void fork_a_child(const std::string& how, Context& context) {
  if (fork() != 0) return;
  int sum = 0;
  int code = 0;
  if (how == "calls") code = test::exact_all_reduce(context.world(), 10, 0, &sum).reason() != Reason::forked;
  context = Context();
  if (how != "calls") sleep(3);
  _exit(code);
}

/// The rank skips a collective: it does nothing until the file says that the job ends.
void skip_until(const std::string& stop_file) {
  const auto end = Clock::now() + 30s;
  while (Clock::now() < end && !std::filesystem::exists(stop_file)) std::this_thread::sleep_for(1ms);
}

/// The deviant action of one rank in round kActs. Returns true if the rank leaves the loop.
bool act(const std::string& what, Context& context, Group& group, const std::string& stop_file) {
  std::vector<float> in(64, 1), out(64);
  std::vector<std::int32_t> other(64, 1);
  const std::span<const float> from(in);
  const std::span<float> to(out);
  if (what.empty()) return false;
  say("acts", {{"what", what}});
  if (what == "segv") raise(SIGSEGV);
  if (what == "abort") std::abort();
  if (what == "throw") throw std::runtime_error("as asked");
  if (what == "exit") std::_Exit(0);
  if (what == "skip") skip_until(stop_file);
  if (what == "destroy") context = Context();
  if (what == "destroy") return true;
  if (what == "revoke") {
    std::thread([&group] { group.abort("as asked"); }).join();
    return false;
  }
  // Calls that the other ranks do not make; the next call returns their failure.
  if (what == "dtype") (void)all_reduce(group, std::span<const std::int32_t>(other), std::span(other));
  if (what == "count") (void)all_reduce(group, from.first(63), to.first(63));
  if (what == "zero") (void)all_reduce(group, from.first(0), to.first(0));
  if (what == "op") (void)all_reduce(group, from, to, ReduceOp::max);
  if (what == "root") (void)broadcast(group, from, to, 1);
  if (what == "order") (void)barrier(group);
  return false;
}
/// The call of the other ranks in the round in which one rank deviates.
void counterpart(const std::string& what, Group& group) {
  std::vector<float> in(64, 1), out(64);
  if (what == "root")
    (void)broadcast(group, std::span<const float>(in), std::span<float>(out), 0);
  else if (what == "dtype" || what == "count" || what == "zero" || what == "op")
    (void)all_reduce(group, std::span<const float>(in), std::span<float>(out));
}

class Rank {
 public:
  Rank(Context& context, std::string phase, std::size_t count, std::string stop)
      : context_(context), phase_(std::move(phase)), stop_(std::move(stop)), count_(count) {}

  int run() {
    group_ = &context_.world();
    int sum = 0;
    if (Status s = test::exact_all_reduce(*group_, count_, 0, &sum); !s.ok() && !recover(s)) return 3;
    if (Status s = barrier(*group_); !s.ok() && !recover(s)) return 3;
    if (phase_ == "group") {
      auto made = group_->split(0, group_->rank());
      if (made.ok()) {
        child_ = std::move(*made);
        group_ = &child_;
      } else if (!recover(made.status())) {
        return 3;
      }
    }
    say("ready", {{"pid", getpid()}});
    if (phase_ == "idle") {
      while (group_->status().ok() && !asked_to_stop()) std::this_thread::sleep_for(1ms);
      if (Status s = group_->status(); !s.ok() && !recover(s)) return 4;
    }
    return rounds();
  }

 private:
  bool asked_to_stop() const { return std::filesystem::exists(stop_); }

  int rounds() {
    const std::string mine = variable("FAULTS_ACT"), theirs = variable("FAULTS_THEIRS");
    const bool slow = !variable("FAULTS_SLOW").empty();
    int done = 0;
    for (int round = 1, sum = 0; sum == 0; ++round) {
      if (round == kActs && shrinks_ == 0) {
        if (act(mine, context_, *group_, stop_)) return 0;
        if (mine.empty()) counterpart(theirs, *group_);
      }
      const bool enough = (shrinks_ > 0 || phase_ == "teardown" ? done >= kEnough : asked_to_stop());
      const auto begin = Clock::now();
      Status s = test::exact_all_reduce(*group_, count_, enough && group_->rank() == 0 ? 1 : 0, &sum);
      if (s.ok()) {
        longest_ = std::max(longest_, std::chrono::duration<double>(Clock::now() - begin).count());
        if (done++ == 0 && shrinks_ > 0) say("exact", {{"size", group_->size()}});
        if (slow) std::this_thread::sleep_for(1ms);
        continue;
      }
      if (!recover(s)) return 4;
      done = 0, sum = 0;
    }
    say("stopped", {{"rounds", done}, {"longest", longest_}});
    return 0;
  }

  /// Shrinks after a failure. False: the others have continued without this rank, or the shrink failed.
  bool recover(Status s) {
    say("failed", failure_of(s));
    if (s.reason() == Reason::fenced || ++shrinks_ > 4) return false;
    const auto begin = Clock::now();
    ShrinkReport report;
    auto next = group_->shrink(&report);
    const double took = std::chrono::duration<double>(Clock::now() - begin).count();
    if (!next.ok()) {
      json f = failure_of(next.status());
      f["seconds"] = took;
      say("unshrunk", f);
      return false;
    }
    kept_.push_back(std::move(*next));
    group_ = &kept_.back();
    say("shrunk", {{"dead", report.dead}, {"size", group_->size()}, {"seconds", took}});
    return true;
  }

  Context& context_;
  const std::string phase_, stop_;
  const std::size_t count_;
  Group child_;
  std::list<Group> kept_;
  Group* group_ = nullptr;
  int shrinks_ = 0;
  double longest_ = 0;
};

}  // namespace

/// rank init|group|running|idle|teardown COUNT STOP_FILE
int main(int argc, char** argv) {
  if (argc != 4) return std::fputs("rank PHASE COUNT STOP_FILE\n", stderr), 2;
  const std::string phase = argv[1];
  if (!variable("FAULTS_ALARM").empty()) {  // interrupts system calls 10,000 times a second
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    sigaction(SIGALRM, &nothing, nullptr);
    const itimerval often{{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  OURO_INFO(INIT, "a rank of the fault matrix");  // opens the log file
  const Holdings before = Holdings::now();
  int code = 0;
  {
    const double begin = now();
    auto joined = Context::from_env();
    if (!joined.ok()) {
      say("refused", failure_of(joined.status()));
      code = 5;
    } else {
      Context context = std::move(*joined);
      say("joined", {{"seconds", now() - begin}});
      if (const std::string how = variable("FAULTS_CHILD"); !how.empty()) fork_a_child(how, context);
      {
        Rank rank(context, phase, static_cast<std::size_t>(std::atol(argv[2])), argv[3]);
        if (phase != "init") code = rank.run();
      }
      const double closing = now();
      (void)context.close().ok();
      say("left", {{"closing", now() - closing}});
    }
  }
  const Holdings after = Holdings::now();
  say("holds", {{"descriptors", after.descriptors - before.descriptors},
                {"threads", after.threads - before.threads},
                {"segments", after.segments - before.segments}});
  return code;
}

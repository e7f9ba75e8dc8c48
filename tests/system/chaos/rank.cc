// One rank of a chaos job: runs steps and checks them against a replay until it is told to stop. After a
// failed operation the survivors shrink and continue. Reports events as lines of JSON. Started by chaos.py.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/system/chaos/replay.h"

namespace {

using namespace ouro;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

void say(const char* event, json fields = json::object()) {
  fields["event"] = event;
  std::puts(fields.dump().c_str());
  std::fflush(stdout);
}
void say_failure(const char* event, const Status& s) {
  json f = json::parse(s.json());
  f["message"] = s.message();
  say(event, f);
}

/// Resources that a process must not have more of after it has left its job.
struct Belongings {
  std::ptrdiff_t descriptors = 0, threads = 0, segments = 0;

  static Belongings now() {
    const auto entries = [](const char* folder) {
      return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
    };
    Belongings b{entries("/proc/self/fd"), entries("/proc/self/task"), 0};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) b.segments += line.find("memfd:") != std::string::npos;
    return b;
  }
};

class Survivor {
 public:
  Survivor(Context& context, std::uint64_t seed, std::string stop_file)
      : group_(context.world()), step_{seed, 0}, stop_file_(std::move(stop_file)) {
    members_.assign(group_.ranks().begin(), group_.ranks().end());
  }

  /// Returns the exit code. 0: told to stop. 3: a wrong result. 4: cannot continue, which is reported.
  int run() {
    for (bool stopped = false; !stopped;) {
      const Status s = step(&stopped);
      if (s.ok()) continue;
      if (s.message().find("nobody said so") != std::string::npos) return say_failure("wrong", s), 3;
      say_failure("failed", s);
      if (s.reason() == Reason::fenced || ++failures_ > 10'000) return 4;
      if (!shrink()) return 4;
    }
    tell();
    return 0;
  }

 private:
  /// Runs one step. In a new group the ranks first agree on its number.
  Status step(bool* stopped) {
    if (!agreed_) OURO_TRY(agree());
    const bool stop = group_.rank() == 0 && fs::exists(stop_file_);
    OURO_TRY(chaos::run(step_, group_, members_, stop, stopped, &completed_));
    ++step_.number;
    ++checked_;
    if (Clock::now() - told_ > std::chrono::milliseconds(100)) tell();
    return {};
  }

  /// The survivors continue with the first step that one of them has not completed. Also reports what
  /// resume_seq should have been: the operation after the last one that all have completed.
  Status agree() {
    const std::vector<std::uint64_t> mine = {step_.number, before_};
    std::vector<std::uint64_t> all(2 * members_.size());
    OURO_TRY(all_gather(group_, CView{std::span(mine)}, View{std::span(all)}));
    ++completed_;
    std::uint64_t least = before_;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      step_.number = std::min(step_.number, all[2 * m]);
      least = std::min(least, all[2 * m + 1]);
    }
    say("agreed", {{"step", step_.number}, {"next", least + 1}, {"resume", resume_}});
    agreed_ = true;
    tell();
    return {};
  }

  bool shrink() {
    ShrinkReport report;
    auto shrunk = group_.shrink(&report);
    if (!shrunk.ok()) return say_failure("unshrunk", shrunk.status()), false;
    std::vector<int> dead;
    for (const int r : report.dead) dead.push_back(members_.at(static_cast<std::size_t>(r)));
    group_ = std::move(*shrunk);
    members_.assign(group_.ranks().begin(), group_.ranks().end());
    before_ = completed_, resume_ = report.resume_seq, completed_ = 0;
    agreed_ = false;
    say("shrunk", {{"generation", group_.generation()}, {"dead", dead}, {"members", members_}});
    return true;
  }

  void tell() {
    told_ = Clock::now();
    say("at", {{"step", step_.number},
               {"checked", checked_},
               {"generation", group_.generation()},
               {"size", members_.size()},
               {"descriptors", Belongings::now().descriptors}});
  }

  Group group_;
  chaos::Step step_;
  std::string stop_file_;
  std::vector<int> members_;
  Clock::time_point told_{};
  bool agreed_ = true;
  int failures_ = 0;
  std::uint64_t checked_ = 0, completed_ = 0, before_ = 0, resume_ = 0;
};

}  // namespace

/// chaos_rank SEED STOP_FILE
int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("chaos_rank SEED STOP_FILE\n", stderr), 2;
  const Belongings before = Belongings::now();
  int code = 0;
  {
    auto joined = Context::from_env();
    if (!joined.ok()) return say_failure("refused", joined.status()), 5;
    say("joined", {{"rank", joined->rank()}, {"pid", getpid()}});
    code = Survivor(*joined, std::strtoull(argv[1], nullptr, 10), argv[2]).run();
    if (const Status s = joined->close(); !s.ok()) say_failure("unclosed", s), code = code ? code : 6;
  }
  const Belongings after = Belongings::now();
  say("left", {{"descriptors", after.descriptors - before.descriptors},
               {"threads", after.threads - before.threads},
               {"segments", after.segments - before.segments}});
  return code;
}

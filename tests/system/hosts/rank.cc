// One rank of a job on several hosts: checks collectives, or runs all-reduces in a loop until it is told to
// stop or cannot continue. Reports events as lines of JSON. Started by the tests of this folder.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "tests/system/hosts/check.h"

namespace {

using namespace ouro;
using nlohmann::json;
using Clock = std::chrono::steady_clock;  // shared by all namespaces of a machine

void say(const char* event, json fields = json::object()) {
  fields["event"] = event;
  fields["t"] = static_cast<double>(Clock::now().time_since_epoch().count()) / 1e9;
  std::puts(fields.dump().c_str());
  std::fflush(stdout);
}

json failure_of(const Status& s) {
  json f = json::parse(s.json());
  f["message"] = s.message();
  return f;
}

int check(Context& c) {
  int calls = 0;
  std::string wrong = test::check_collectives(c, &calls);
  if (wrong.empty()) wrong = test::check_messages(c);
  const auto hash = wrong.empty() ? test::canonical_hash(c) : Result<std::uint64_t>(0);
  if (wrong.empty() && !hash.ok()) wrong = hash.status().message();
  if (!wrong.empty()) return say("wrong", {{"text", wrong}}), 1;
  say("checked", {{"calls", calls}, {"hash", fmt::format("{:016x}", *hash)}});
  return 0;
}

/// Runs rounds until rank 0 finds the file `stop`, at most `limit`. After a failure the survivors shrink and
/// continue, except ranks that learn that the others have continued without them.
int loop(Context& c, std::size_t count, int limit, const std::string& stop) {
  Group* group = &c.world();
  Group survivors;
  int rounds = 0, broken = 0;
  double longest = 0;
  for (int sum = 0; sum == 0;) {
    const auto begin = Clock::now();
    const bool enough =
        rounds >= limit || (group->rank() == 0 && !stop.empty() && std::filesystem::exists(stop));
    Status s = test::exact_all_reduce(*group, count, enough ? 1 : 0, &sum);
    if (s.ok()) {
      longest = std::max(longest, std::chrono::duration<double>(Clock::now() - begin).count());
      if (rounds++ == 0) say("round", {{"size", group->size()}});
      continue;
    }
    say("failed", failure_of(s));
    if (s.reason() == Reason::data_corrupt || s.reason() == Reason::fenced || ++broken > 3) return 3;
    ShrinkReport report;
    auto shrunk = group->shrink(&report);
    if (!shrunk.ok()) return say("unshrunk", failure_of(shrunk.status())), 4;
    survivors = std::move(*shrunk);
    group = &survivors;
    say("shrunk", {{"dead", report.dead}, {"size", group->size()}, {"resume", report.resume_seq}});
    rounds = 0;
    sum = 0;
  }
  say("stopped", {{"rounds", rounds}, {"longest", longest}});
  return 0;
}

/// The n-th argument as a number, or `otherwise`.
long number(int argc, char** argv, int n, long otherwise) {
  return n < argc ? std::atol(argv[n]) : otherwise;
}

}  // namespace

/// Forks a child as a data loader does, which outlives this process. The child destroys its inherited
/// handles, as programs do.
void fork_a_child(Context& context) {
  if (fork() != 0) return;
  context = Context();
  sleep(4);
  _exit(0);
}

/// rank check | rank loop COUNT ROUNDS [STOP_FILE] | rank join. HOSTS_CHILD=1: with a forked child.
int main(int argc, char** argv) {
  const std::string_view task = argc > 1 ? argv[1] : "";
  if (task != "check" && task != "loop" && task != "join")
    return std::fputs("check, loop or join\n", stderr), 2;
  const auto begin = Clock::now();
  auto joined = Context::from_env();
  if (!joined.ok()) return say("refused", failure_of(joined.status())), 5;
  Context context = std::move(*joined);
  say("joined", {{"rank", context.rank()},
                 {"size", context.world_size()},
                 {"local_size", context.local_world_size()},
                 {"pid", getpid()},
                 {"seconds", std::chrono::duration<double>(Clock::now() - begin).count()}});
  if (std::getenv("HOSTS_CHILD") != nullptr) fork_a_child(context);
  int code = 0, sum = 0;
  if (task == "check") code = check(context);
  if (task == "loop")
    code = loop(context, static_cast<std::size_t>(number(argc, argv, 2, 1000)),
                static_cast<int>(number(argc, argv, 3, 1'000'000'000)), argc > 4 ? argv[4] : "");
  if (task == "join")
    if (const Status s = test::exact_all_reduce(context.world(), 100, 1, &sum); !s.ok())
      say("failed", failure_of(s)), code = 3;
  const auto closing = Clock::now();
  if (const Status s = context.close(); !s.ok()) say("unclosed", failure_of(s)), code = code ? code : 6;
  say("left", {{"sum", sum}, {"closing", std::chrono::duration<double>(Clock::now() - closing).count()}});
  return code;
}

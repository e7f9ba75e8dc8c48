// A rank is killed in the middle of a loop; the survivors find out which rank died, shrink the group and
// continue. Run it with: example-survive-a-death. It starts its four ranks itself, because ouro-run ends the
// whole job when one of its processes fails.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "ouro/ouro.hpp"

namespace {

constexpr int kRanks = 4, kVictim = 2, kSteps = 10, kLastStepOfVictim = 4;

/// Sums over the members of the group: world rank 0 contributes 1, rank 1 contributes 2, and so on.
ouro::Status step(ouro::Group& group, std::int64_t mine, std::int64_t& sum) {
  return ouro::all_reduce(group, std::span(&mine, 1), std::span(&sum, 1));
}

ouro::Status run(int rank, const ouro::UniqueId& id) {
  ouro::InitOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.id = id;
  ouro::Result<ouro::Context> context = ouro::Context::create(options);
  if (!context) return context.status();

  ouro::Group survivors;  // empty until a rank has died
  ouro::Group* group = &context->world();
  int first = 0;  // the step that was the first operation of *group
  for (int i = 0; i < kSteps; ++i) {
    if (rank == kVictim && i == kLastStepOfVictim) std::raise(SIGKILL);
    std::int64_t sum = 0;
    const ouro::Status outcome = step(*group, rank + 1, sum);
    if (outcome.reason() == ouro::Reason::peer_dead) {
      // The error is sticky: all later calls on this group return it, except shrink() and close().
      if (rank == 0) std::cout << outcome.message() << '\n';
      ouro::ShrinkReport report;
      ouro::Result<ouro::Group> smaller = group->shrink(&report);
      if (!smaller) return smaller.status();
      // One survivor may have completed a step that another has not. All resume with the first operation that
      // some survivor did not complete; a group counts its operations from 1.
      i = first + static_cast<int>(report.resume_seq) - 1;
      first = i--;
      survivors = std::move(*smaller);
      group = &survivors;
      if (rank == 0)
        std::cout << "rank " << report.dead.at(0) << " is dead, " << group->size()
                  << " ranks continue in generation " << group->generation() << '\n';
      continue;
    }
    OURO_TRY(outcome);
    std::int64_t expected = 0;
    for (const int r : group->ranks()) expected += r + 1;  // world ranks of the members
    if (sum != expected)
      return {ouro::Reason::data_corrupt, "step " + std::to_string(i) + " has a wrong sum"};
    if (rank == 0 && i + 1 == kSteps) std::cout << "last sum " << sum << '\n';
  }
  OURO_TRY(survivors.close());
  return context->close();
}

}  // namespace

int main() {
  const ouro::Result<ouro::UniqueId> id = ouro::UniqueId::create();  // names the job
  if (!id) return std::cerr << id.status().message() << '\n', 1;
  // The processes are forked before any of them joins, because a context does not survive fork().
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = fork();
    if (child < 0) return std::perror("fork"), 1;
    if (child > 0) continue;
    const ouro::Status outcome = run(rank, *id);
    if (!outcome) std::cerr << outcome.message() << '\n';
    std::cout.flush();
    _exit(outcome ? 0 : 1);
  }
  int killed = 0, well = 0, state = 0;
  while (wait(&state) > 0) {
    killed += WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
    well += WIFEXITED(state) && WEXITSTATUS(state) == 0;
  }
  return killed == 1 && well == kRanks - 1 ? 0 : 1;
}

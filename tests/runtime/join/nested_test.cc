// Rank discovery with variables of several launchers: which launcher counts, and when that is an error.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/join/environments.h"

namespace ouro {
namespace {

using testing::HasSubstr;

/// `env` with a rank set by hand, without torchrun's own variables.
Environment by_hand(const Environment& env, const char* rank, const char* size) {
  return with(env, {{"RANK", rank}, {"WORLD_SIZE", size}});
}
Environment of_ouro(const Environment& env, const char* rank, const char* size, const char* outer) {
  return with(env, {{"OURO_RANK", rank}, {"OURO_WORLD_SIZE", size}, {"OURO_OUTER_LAUNCHERS", outer}});
}

struct Nested {
  const char* what;
  Environment env;
  const char* outcome;  ///< "torchrun 0/1", or the two launchers that disagree, with their variables
};

const Nested kNested[] = {
    // It is unknown which launcher is the inner one.
    {"by hand under mpirun", by_hand(kOpenMpi, "0", "1"),
     "torchrun (RANK=0, WORLD_SIZE=1) and openmpi (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)"},
    {"the same rank of another size", by_hand(kOpenMpi, "1", "4"),
     "torchrun (RANK=1, WORLD_SIZE=4) and openmpi"},
    {"by hand under srun", by_hand(kSrun, "0", "1"),
     "torchrun (RANK=0, WORLD_SIZE=1) and slurm (SLURM_PROCID=4, SLURM_STEP_NUM_TASKS=5)"},
    {"by hand under hydra", by_hand(kHydra, "0", "2"),
     "torchrun (RANK=0, WORLD_SIZE=2) and pmi (PMI_RANK=1, PMI_SIZE=2)"},
    {"Open MPI and PMI", with(kOpenMpi, {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}),
     "openmpi (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2) and pmi (PMI_RANK=1, PMI_SIZE=3)"},
    {"Open MPI and another PMIx rank", with(kOpenMpi, {{"PMIX_RANK", "0"}}), "and pmix (PMIX_RANK=0)"},
    {"PMIx, whose size SLURM says, and another task", with(kSrun, {{"PMIX_RANK", "1"}}),
     "pmix (PMIX_RANK=1, SLURM_STEP_NUM_TASKS=5) and slurm (SLURM_PROCID=4"},
    {"ouro by hand under mpirun", of_ouro(kOpenMpi, "0", "1", ""),
     "ouro (OURO_RANK=0, OURO_WORLD_SIZE=1) and openmpi"},
    {"mpirun in a rank of ouro-run", of_ouro(kOpenMpi, "0", "1", "none"),
     "ouro (OURO_RANK=0, OURO_WORLD_SIZE=1) and openmpi"},
    {"mpirun in a rank of ouro-run in a task of srun", of_ouro(with(kSrun, kOpenMpi), "0", "1", "slurm 4/5"),
     "ouro (OURO_RANK=0, OURO_WORLD_SIZE=1) and openmpi"},
    {"srun in a rank of ouro-run in another step", of_ouro(kSrun, "0", "1", "slurm 3/5"),
     "ouro (OURO_RANK=0, OURO_WORLD_SIZE=1) and slurm"},
    {"torchrun in a rank of ouro-run", of_ouro(kTorchrun, "0", "1", "none"),
     "and torchrun (RANK=5, WORLD_SIZE=8)"},
    // The launchers agree.
    {"by hand as srun says", by_hand(kSrun, "4", "5"), "torchrun 4/5"},
    {"by hand as mpirun says", by_hand(kOpenMpi, "1", "2"), "torchrun 1/2"},
    {"mpirun as srun says", with(kSrun, {{"OMPI_COMM_WORLD_RANK", "4"}, {"OMPI_COMM_WORLD_SIZE", "5"}}),
     "openmpi 4/5"},
    {"ouro-run and its own RANK", of_ouro(by_hand({}, "1", "2"), "1", "2", "none"), "ouro 1/2"},
    // The inner launcher is known.
    {"torchrun on each node of srun", with(kSrun, kTorchrun), "torchrun 5/8"},
    {"torchrun on each node of mpirun", with(kOpenMpi, kTorchrun), "torchrun 5/8"},
    {"torchrun on its own in the only task",
     with(with(kSrun, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), kTorchrun), "torchrun 5/8"},
    {"ouro-run in a task of srun", of_ouro(kSrun, "1", "2", "slurm 4/5"), "ouro 1/2"},
    {"ouro-run in a worker of torchrun in srun",
     of_ouro(by_hand(kSrun, "1", "2"), "1", "2", "torchrun 0/1,slurm 4/5"), "ouro 1/2"},
    {"mpirun whose daemons srun started", with(kSrun, kOpenMpi), "openmpi 1/2"},
    {"hydra whose proxies srun started", with(kSrun, kHydra), "pmi 1/2"},
    {"an allocation's shell is no rank", by_hand(with(kSrun, {{"SLURM_STEP_ID", ""}}), "0", "1"),
     "torchrun 0/1"},
    // The user decides.
    {"OURO_LAUNCHER chooses the first", with(by_hand(kOpenMpi, "0", "1"), {{"OURO_LAUNCHER", "torchrun"}}),
     "torchrun 0/1"},
    {"OURO_LAUNCHER chooses the second", with(by_hand(kOpenMpi, "0", "1"), {{"OURO_LAUNCHER", "openmpi"}}),
     "openmpi 1/2"},
    {"OURO_LAUNCHER chooses none", with(kOpenMpi, {{"OURO_LAUNCHER", "none"}}), "none 0/1"},
    {"OURO_LAUNCHER chooses what is not there", with(kOpenMpi, {{"OURO_LAUNCHER", "slurm"}}),
     "OURO_LAUNCHER=slurm, but none of its variables is set"},
    {"OURO_LAUNCHER chooses nonsense", with(kOpenMpi, {{"OURO_LAUNCHER", "mpi"}}),
     "OURO_LAUNCHER=mpi: expected one of none, ouro, torchrun, openmpi, pmix, pmi, mvapich, slurm"},
};

TEST(DiscoverNested, DisagreeingLaunchersAreRefusedUnlessTheInnerIsKnown) {
  for (const Nested& c : kNested) {
    // These variables serve jobs on several hosts; here one host would do.
    const Environment env = with(c.env, {{"OURO_RENDEZVOUS", "a:7000"}, {"OURO_JOB_ID", "x"}});
    const Result<Launch> got = discover(env, kWho);
    if (got.ok()) {
      EXPECT_EQ(fmt::format("{} {}/{}", got->launcher, got->rank, got->size), c.outcome) << c.what;
      continue;
    }
    EXPECT_EQ(got.status().code(), Code::invalid) << c.what;
    EXPECT_THAT(got.status().message(), HasSubstr(c.outcome)) << c.what;
    if (c.outcome[0] != 'O') {
      EXPECT_THAT(got.status().message(), HasSubstr("choose with OURO_LAUNCHER=")) << c.what;
    }
  }
}

TEST(OuterLaunchers, NamesEveryLauncherOfTheProcess) {
  EXPECT_EQ(outer_launchers({}), "");
  EXPECT_EQ(outer_launchers(with(kSrun, kTorchrun)), "torchrun 5/8,slurm 4/5");
  EXPECT_EQ(outer_launchers(kOpenMpi), "openmpi 1/2,pmix 1/");
}

}  // namespace
}  // namespace ouro

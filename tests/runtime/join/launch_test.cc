// Rank discovery from environments as real launchers set them.
#include "runtime/join/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <ostream>

#include "tests/runtime/join/environments.h"

namespace ouro {
namespace {

using testing::HasSubstr;

struct Good {
  const char* what;
  Environment env;
  const char* launcher;
  int rank, size, local_rank, local_size;
  const char* key;
};

void PrintTo(const Good& g, std::ostream* out) { *out << g.what; }

std::string test_name(const testing::TestParamInfo<Good>& info) {
  std::string name;
  for (const char* c = info.param.what; *c != 0; ++c) {
    if (std::isalnum(static_cast<unsigned char>(*c))) {
      name += *c;
    } else if (!name.ends_with('_')) {
      name += '_';
    }
  }
  return name;
}

class Discover : public testing::TestWithParam<Good> {};

TEST_P(Discover, ReadsTheLaunchersVariables) {
  const Good& want = GetParam();
  const Result<Launch> got = discover(want.env, kWho);
  ASSERT_TRUE(got.ok()) << want.what << ": " << got.status().message();
  EXPECT_EQ(got->launcher, want.launcher) << want.what;
  EXPECT_EQ(got->rank, want.rank) << want.what;
  EXPECT_EQ(got->size, want.size) << want.what;
  EXPECT_EQ(got->local_rank, want.local_rank) << want.what;
  EXPECT_EQ(got->local_size, want.local_size) << want.what;
  EXPECT_EQ(got->job_key, want.key) << want.what;
}

const Environment kOuro = {{"OURO_RANK", "1"},
                           {"OURO_WORLD_SIZE", "3"},
                           {"OURO_LOCAL_RANK", "0"},
                           {"OURO_LOCAL_SIZE", "2"},
                           {"OURO_RENDEZVOUS", "10.0.0.1:7000"}};

INSTANTIATE_TEST_SUITE_P(
    Launchers, Discover,
    testing::Values(
        Good{"nothing", {{"PATH", "/bin"}}, "none", 0, 1, 0, 1, "process:200@9000"},
        Good{"ouro", with(kOuro, {{"OURO_JOB_ID", "ab"}}), "ouro", 1, 3, 0, 2, "ouro:ab"},
        Good{"two hosts, no job id: the rendezvous names the job", kOuro, "ouro", 1, 3, 0, 2,
             "rendezvous:10.0.0.1:7000"},
        Good{
            "hydra on two hosts",
            with(kHydra, {{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}, {"OURO_RENDEZVOUS", "a:7000"}}),
            "pmi", 1, 2, 0, 1, "rendezvous:a:7000"},
        Good{"ouro, one host, no job id",
             {{"OURO_RANK", "1"}, {"OURO_WORLD_SIZE", "3"}},
             "ouro",
             1,
             3,
             1,
             3,
             "parent:100@8000"},
        Good{"ouro-run beats what was around it",
             with(with(kOpenMpi, kTorchrun),
                  with(kOuro, {{"OURO_JOB_ID", "ab"},
                               {"OURO_OUTER_LAUNCHERS", "torchrun 5/8,openmpi 1/2,pmix 1/"}})),
             "ouro", 1, 3, 0, 2, "ouro:ab"},
        Good{"torchrun", kTorchrun, "torchrun", 5, 8, 1, 4, "torchrun:node0:29500:run7:1"},
        Good{"by hand, as PyTorch's env://",
             {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}},
             "torchrun",
             0,
             2,
             0,
             2,
             "torchrun:localhost:1234::"},
        Good{"torchrun without a master",
             {{"RANK", "0"}, {"WORLD_SIZE", "2"}},
             "torchrun",
             0,
             2,
             0,
             2,
             "parent:100@8000"},
        Good{"the job id names the job under any launcher", with(kTorchrun, {{"OURO_JOB_ID", "x"}}),
             "torchrun", 5, 8, 1, 4, "ouro:x"},
        Good{"openmpi", kOpenMpi, "openmpi", 1, 2, 1, 2, "PMIX_NAMESPACE:1979842561"},
        Good{"openmpi without PMIx", with(kOpenMpi, {{"PMIX_NAMESPACE", ""}}), "openmpi", 1, 2, 1, 2,
             "OMPI_MCA_ess_base_jobid:1979842561"},
        Good{"hydra", kHydra, "pmi", 1, 2, 1, 2, "parent:100@8000"},
        Good{"hydra under SLURM's srun", with(with(kSrun, kHydra), {{"SLURM_PROCID", "1"}}), "pmi", 1, 2, 1,
             2, "slurm:4711.0."},
        Good{"srun --mpi=pmix", with(kSrun, {{"PMIX_RANK", "4"}, {"PMIX_NAMESPACE", "slurm.pmix.4711.0"}}),
             "pmix", 4, 5, 0, 1, "PMIX_NAMESPACE:slurm.pmix.4711.0"},
        Good{"mvapich",
             {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}},
             "mvapich",
             1,
             2,
             1,
             2,
             "parent:100@8000"},
        Good{"srun, last node", kSrun, "slurm", 4, 5, 0, 1, "slurm:4711.0."},
        Good{"srun, second node, requeued",
             with(kSrun, {{"SLURM_NODEID", "1"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_RESTART_COUNT", "2"}}),
             "slurm", 3, 5, 1, 2, "slurm:4711.0.2"},
        Good{"srun, a step smaller than the job",
             with(kSrun, {{"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_STEP_NUM_NODES", "1"},
                          {"SLURM_PROCID", "1"},
                          {"SLURM_LOCALID", "1"}}),
             "slurm", 1, 2, 1, 2, "slurm:4711.0."},
        Good{"the shell of salloc is one rank", with(kSrun, {{"SLURM_STEP_ID", ""}, {"SLURM_STEPID", ""}}),
             "none", 0, 1, 0, 1, "process:200@9000"},
        Good{"an interactive step is one rank", with(kSrun, {{"SLURM_STEP_ID", "4294967290"}}), "none", 0, 1,
             0, 1, "process:200@9000"},
        Good{"empty variables count as unset",
             {{"OURO_RANK", ""}, {"OURO_WORLD_SIZE", ""}, {"RANK", ""}},
             "none",
             0,
             1,
             0,
             1,
             "process:200@9000"}),
    test_name);

struct Bad {
  Environment env;
  const char* says;
};

TEST(DiscoverErrors, NameTheWrongVariableAndTheRemedy) {
  const Bad cases[] = {
      {{{"OURO_WORLD_SIZE", "2"}}, "OURO_WORLD_SIZE is set, but OURO_RANK is not"},
      {{{"OURO_RANK", "0"}}, "OURO_RANK is set, but OURO_WORLD_SIZE is not"},
      {{{"RANK", "0"}}, "or unset RANK"},
      {{{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "x"}}, "the number of ranks is unknown"},
      {{{"OURO_RANK", "2"}, {"OURO_WORLD_SIZE", "2"}}, "OURO_RANK=2: expected 0 to 1, as OURO_WORLD_SIZE=2"},
      {{{"OURO_RANK", "-1"}, {"OURO_WORLD_SIZE", "2"}}, "OURO_RANK=-1"},
      {{{"OURO_RANK", "zero"}, {"OURO_WORLD_SIZE", "2"}}, "OURO_RANK=zero is not an integer"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", "2x"}}, "OURO_WORLD_SIZE=2x is not an integer"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", " 2"}}, "is not an integer"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", "99999999999999999999"}}, "is not an integer"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", "0"}}, "OURO_WORLD_SIZE=0: expected 1 to 1024 ranks"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", "-4"}}, "expected 1 to 1024"},
      {{{"OURO_RANK", "0"}, {"OURO_WORLD_SIZE", "1025"}}, "expected 1 to 1024"},
      {with(kOuro, {{"OURO_LOCAL_RANK", "2"}}),
       "OURO_LOCAL_RANK=2: expected 0 to 1, as this host has 2 ranks"},
      {with(kOuro, {{"OURO_LOCAL_RANK", "-1"}}), "OURO_LOCAL_RANK=-1"},
      {with(kOuro, {{"OURO_LOCAL_SIZE", "4"}}), "OURO_LOCAL_SIZE=4: expected 1 to 3"},
      {with(kOuro, {{"OURO_LOCAL_SIZE", "0"}}), "OURO_LOCAL_SIZE=0"},
      {with(kOuro, {{"OURO_RENDEZVOUS", ""}, {"OURO_JOB_ID", "x"}}), "ouro does not say where they meet"},
      {with(kOuro, {{"OURO_RENDEZVOUS", "file:/shared/job"}}),
       "set OURO_JOB_ID to the same text on all ranks"},
      {with(kHydra, {{"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"}}),
       "mpirun -genvlist OURO_RENDEZVOUS"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       "mpirun -x OURO_RENDEZVOUS"},
      {with(kTorchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535: expected 1 to 65534"},
      {with(kTorchrun, {{"MASTER_PORT", "http"}}), "MASTER_PORT=http"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                       {"MASTER_ADDR", "node0"},
                       {"MASTER_PORT", "0"}}),
       "MASTER_PORT=0: expected 1 to 65535"},
      {with(kTorchrun, {{"MASTER_ADDR", ""}}), "torchrun does not say where they meet"},
      {with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}}), "TORCHELASTIC_RESTART_COUNT=-1"},
      {with(kTorchrun, {{"GROUP_RANK", "x"}}), "GROUP_RANK=x is not an integer"},
      {with(kSrun, {{"SLURM_JOB_NODELIST", "[1-3"}}), "SLURM_JOB_NODELIST=[1-3 names no host"},
      {with(kSrun, {{"SLURM_NODEID", "3"}}), "has no entry for node 3"},
      {with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}), "has no entry for node 2"},
      {with(kSrun, {{"SLURM_NODEID", ""}}), "SLURM_NODEID is missing"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "one"}}),
       "OMPI_COMM_WORLD_LOCAL_RANK=one is not an integer"},
  };
  for (const Bad& c : cases) {
    const Result<Launch> got = discover(c.env, kWho);
    ASSERT_FALSE(got.ok()) << c.says;
    EXPECT_EQ(got.status().code(), Code::invalid);
    EXPECT_THAT(got.status().message(), HasSubstr(c.says));
  }
}

struct Rendezvous {
  const char* what;
  Environment env;
  const char* rendezvous;
  int node;
  std::uint64_t generation;
};

TEST(DiscoverHosts, FindsRendezvousHostNumberAndRestartCount) {
  const Rendezvous cases[] = {
      {"ouro-run", with(kOuro, {{"GROUP_RANK", "1"}, {"TORCHELASTIC_RESTART_COUNT", "0"}}), "10.0.0.1:7000",
       1, 0},
      {"torchrun", kTorchrun, "node0:29501", 1, 1},
      {"torchrun over IPv6", with(kTorchrun, {{"MASTER_ADDR", "fd77::1"}}), "[fd77::1]:29501", 1, 1},
      {"torchrun told", with(kTorchrun, {{"OURO_RENDEZVOUS", "file:/shared/x"}}), "file:/shared/x", 1, 1},
      {"one host needs no port",
       with(kTorchrun, {{"MASTER_PORT", "65535"}, {"WORLD_SIZE", "4"}, {"RANK", "1"}}), "", 1, 1},
      {"openmpi", kOpenMpi, "", -1, 0},
      {"openmpi told", with(kOpenMpi, {{"OURO_RENDEZVOUS", "a:7000"}}), "a:7000", -1, 0},
      {"openmpi and the usual pair", with(kOpenMpi, {{"MASTER_ADDR", "fd77::1"}, {"MASTER_PORT", "7000"}}),
       "[fd77::1]:7000", -1, 0},
      {"hydra", kHydra, "", -1, 0},
      {"hydra in an allocation's shell", with(kHydra, {{"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "n7"}}),
       "", -1, 0},
      {"srun", kSrun, "n1:24056", 2, 0},
      {"srun again", with(kSrun, {{"SLURM_RESTART_COUNT", "2"}}), "n1:24056", 2, 2},
      {"srun on part of the job", with(kSrun, {{"SLURM_STEP_NODELIST", "n[2-3]"}}), "n2:24056", 2, 0},
      {"the next step", with(kSrun, {{"SLURM_STEP_ID", "1"}}), "n1:18003", 2, 0},
      {"rack and node", with(kSrun, {{"SLURM_JOB_NODELIST", "r[2,4]n[007-012]-ib,x1"}}), "r2n007-ib:24056", 2,
       0},
      {"a plain list", with(kSrun, {{"SLURM_JOB_NODELIST", "b.example,a"}}), "b.example:24056", 2, 0},
  };
  for (const Rendezvous& c : cases) {
    const Result<Launch> got = discover(c.env, kWho);
    ASSERT_TRUE(got.ok()) << c.what << ": " << got.status().message();
    EXPECT_EQ(got->rendezvous, c.rendezvous) << c.what;
    EXPECT_EQ(got->node, c.node) << c.what;
    EXPECT_EQ(got->generation, c.generation) << c.what;
  }
}

TEST(Identity, NamesThisProcessAndItsParent) {
  const Identity first = identity(), second = identity();
  EXPECT_EQ(first.self, second.self);
  EXPECT_EQ(first.parent, second.parent);
  EXPECT_NE(first.self, first.parent);
  EXPECT_EQ(first.self.rfind(std::to_string(getpid()) + "@", 0), 0u);
  EXPECT_EQ(first.self.find('?'), std::string::npos);
}

}  // namespace
}  // namespace ouro

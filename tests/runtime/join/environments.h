// Environment variables as launchers set them. openmpi and hydra: recorded under Debian's openmpi-bin
// 4.1.4 and mpich 4.0.2; torchrun and SLURM: as their documentation lists them. Used by the tests of
// rank discovery.
#pragma once
#include "runtime/join/launch.h"

namespace ouro {

inline const Identity kWho{"200@9000", "100@8000"};

inline const Environment kOpenMpi = {
    {"OMPI_APP_CTX_NUM_PROCS", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"OMPI_COMM_WORLD_NODE_RANK", "1"},
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_FIRST_RANKS", "0"},
    {"OMPI_MCA_ess", "^singleton"},
    {"OMPI_MCA_ess_base_jobid", "1979842561"},
    {"OMPI_MCA_ess_base_vpid", "1"},
    {"OMPI_MCA_orte_app_num", "0"},
    {"OMPI_MCA_orte_ess_node_rank", "1"},
    {"OMPI_MCA_orte_ess_num_procs", "2"},
    {"OMPI_MCA_orte_num_nodes", "1"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"PMIX_ID", "1979842561.1"},
    {"PMIX_NAMESPACE", "1979842561"},
    {"PMIX_RANK", "1"},
    {"PMIX_SECURITY_MODE", "native"},
    {"PMIX_VERSION", "4.2.2rc2"},
};
inline const Environment kHydra = {
    {"HYDI_CONTROL_FD", "7"}, {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "vm"},
    {"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "1"},
    {"PMI_FD", "8"},          {"PMI_RANK", "1"},
    {"PMI_SIZE", "2"},
};
inline const Environment kTorchrun = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"GROUP_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"ROLE_RANK", "5"},
    {"ROLE_NAME", "default"},
    {"ROLE_WORLD_SIZE", "8"},
    {"MASTER_ADDR", "node0"},
    {"MASTER_PORT", "29500"},
    {"TORCHELASTIC_RESTART_COUNT", "1"},
    {"TORCHELASTIC_MAX_RESTARTS", "3"},
    {"TORCHELASTIC_RUN_ID", "run7"},
};
inline const Environment kSrun = {
    {"SLURM_JOB_ID", "4711"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_STEPID", "0"},
    {"SLURM_PROCID", "4"},
    {"SLURM_NTASKS", "5"},
    {"SLURM_NPROCS", "5"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "2"},
    {"SLURM_NNODES", "3"},
    {"SLURM_STEP_NUM_TASKS", "5"},
    {"SLURM_STEP_NUM_NODES", "3"},
    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
    {"SLURM_TASKS_PER_NODE", "2(x2),1"},
    {"SLURM_JOB_NODELIST", "n[1-3]"},
};

/// `base` with changes; an empty value removes the variable.
inline Environment with(Environment base, const Environment& changes) {
  for (const auto& [key, value] : changes) {
    if (value.empty()) {
      base.erase(key);
    } else {
      base[key] = value;
    }
  }
  return base;
}

}  // namespace ouro

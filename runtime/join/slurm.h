// The variables that SLURM sets for its tasks. Used by launch.cc and launchers.cc.
#pragma once
#include <string>
#include <string_view>

#include "runtime/join/variables.h"

namespace ouro::slurm {

/// Whether this is a process of srun. The shells of salloc and sbatch also have SLURM's other variables, and
/// an interactive or batch step with a reserved number, but are not ranks: a job that counted them would wait
/// for ranks that do not exist.
bool in_step(const Variables&);
/// Whether srun hosts this launcher, and thus sets variables that the launcher does not.
bool hosts(const Variables&, std::string_view launcher);
/// How many of the job's `size` ranks are on this host. Errors: invalid (SLURM does not say).
Result<int> local_size(const Variables&, int size);
/// A name of the step that is unique among all steps of the cluster; a restart has another one.
std::string step_name(const Variables&);
/// The first host of the step, and a port that all of its ranks compute alike and that two steps seldom
/// share, below the ephemeral ports. `host` "": the list names none; `list` "": there is no list.
struct FirstHost {
  std::string list;  ///< name of the variable with the list
  std::string host;
  int port = 0;
};
FirstHost first_host(const Variables&);

}  // namespace ouro::slurm

// What SLURM tells its tasks. Used by launch.cc and launchers.cc.
#pragma once
#include <string>
#include <string_view>

#include "runtime/join/variables.h"

namespace ouro::slurm {

/// Whether this is a process of srun. The shells of salloc and sbatch have SLURM's other variables too, and
/// an interactive or batch step with a reserved number, but are no ranks: counting them would wait for
/// nobody.
bool in_step(const Variables&);
/// Of some launchers srun may be the host, and then says what they do not.
bool hosts(const Variables&, std::string_view launcher);
/// How many of the job's `size` ranks are on this host. Errors: invalid (it does not say).
Result<int> local_size(const Variables&, int size);
/// Names the step among all steps of the cluster; a restart has another name.
std::string step_name(const Variables&);
/// The first host of the step, and a port that all ranks of it compute alike and that two steps seldom share;
/// below the ports that systems hand out by themselves. host "": the list names none; list "": there is none.
struct FirstHost {
  std::string list;  ///< the variable
  std::string host;
  int port = 0;
};
FirstHost first_host(const Variables&);

}  // namespace ouro::slurm

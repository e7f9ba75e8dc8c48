// Prints one line with what this process learns from its launcher. Started by mpirun_test.cc under
// real launchers.
#include <fmt/format.h>

#include <cstdio>

#include "runtime/join/launch.h"

int main() {
  const ouro::Result<ouro::Launch> l = ouro::discover();
  const std::string line = l.ok() ? fmt::format("{} {}/{} {}/{} key={} at={}", l->launcher, l->rank, l->size,
                                                l->local_rank, l->local_size, l->job_key, l->rendezvous)
                                  : l.status().message();
  std::puts(line.c_str());
  return l.ok() ? 0 : 1;
}

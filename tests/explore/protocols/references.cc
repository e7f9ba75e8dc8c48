// In-place references: registered buffers that all ranks read and write directly, after their arrival records
// have published their locations.
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/collectives.h"

namespace explore {

void add_references(std::vector<Protocol>* all) {
  using ouro::Collective, ouro::flow::Algorithm;
  using At = Fault::At;
  using What = Fault::What;
  const Call sum{.collective = Collective::all_reduce,
                 .algorithm = Algorithm::direct,
                 .staging = true,
                 .try_zero_copy = true,
                 .count = 16};
  const Call gather{.collective = Collective::all_gather,
                    .algorithm = Algorithm::direct,
                    .staging = true,
                    .try_zero_copy = true,
                    .count = 8};
  const Fault no_release{"a record is published without release", "record.word", At::store, What::relax},
      no_acquire{"the look at a record does not acquire", "record.word", At::load, What::relax};

  all->push_back({"references.once",
                  "an all-reduce in registered buffers (run_by_reference, ZeroCopyExecutor)",
                  new Collectives({.calls = {sum}, .registered = {true, true}}),
                  true,
                  {no_release, no_acquire}});
  all->push_back(
      {"references.all_reduce",
       "two of them: the buffers are the caller's before and after",
       new Collectives({.calls = {sum, sum}, .registered = {true, true}}),
       false,
       {no_release,
        no_acquire,
        {"the reference is taken for the result", "record.word", At::load, What::add, 2},
        {"who waits for references takes an older record", "record.word", At::load, What::add, 4}}});
  all->push_back({"references.some",
                  "the same with one rank's buffers private: all go through staging buffers",
                  new Collectives({.calls = {sum, sum}, .registered = {true, false}}),
                  false,
                  {no_release, no_acquire}});
  all->push_back(
      {"references.all_gather",
       "all-gathers in the registered buffers of three ranks",
       new Collectives({.ranks = 3, .calls = {gather}, .registered = {true, true, true}, .sleeps = true}),
       false,
       {no_release, no_acquire}});
}

}  // namespace explore

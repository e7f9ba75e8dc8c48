// Staging buffers: arrival records, eager slots and staging slots, round by round, as the single round and
// the staged flows use them.
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/collectives.h"

namespace explore {

void add_staging(std::vector<Protocol>* all) {
  using ouro::Collective, ouro::flow::Algorithm;
  using At = Fault::At;
  using What = Fault::What;
  const auto call = [](Collective c, Algorithm a, std::size_t count, std::size_t slot = Job::kStagingBytes) {
    return Call{.collective = c,
                .algorithm = a,
                .staging = true,
                .count = count,
                .slot = slot,
                .eager = slot < 64 * 3 ? 0u : 64u};
  };
  const Call sum = call(Collective::all_reduce, Algorithm::oneshot, 1),
             tell = call(Collective::broadcast, Algorithm::direct, 1),
             longer = call(Collective::broadcast, Algorithm::direct, 8),
             five = call(Collective::broadcast, Algorithm::direct, 40, 64),
             six = call(Collective::broadcast, Algorithm::direct, 48, 64),
             slices = call(Collective::all_reduce, Algorithm::direct, 48, 128),
             meet = call(Collective::barrier, Algorithm::direct, 0);
  const std::vector<Call> far(66, tell), far_eager(66, longer);
  const Fault no_release{"a record is published without release", "record.word", At::store, What::relax},
      no_acquire{"the look at a record does not acquire", "record.word", At::load, What::relax},
      early_round{"rounds are released one early", "done", At::store, What::add, 1},
      no_done{"rounds are released without release", "done", At::store, What::relax},
      no_room{"the look for room does not acquire", "done", At::load, What::relax},
      reused{"memory is used one round early", "done", At::load, What::add, 1};

  all->push_back(
      {"staging.all_reduce",
       "two all-reduces of 8 bytes (single rounds by hand, StagingRounds, arrival records)",
       new Collectives({.calls = {sum, sum}}),
       true,
       {no_release,
        no_acquire,
        {"a record is published a phase early", "record.word", At::store, What::add, -1},
        {"a record is taken for one of the next round", "record.word", At::load, What::add, 4},
        {"a record has another tag", "record.word", At::store, What::add, std::int64_t{1} << 32}}});
  all->push_back({"staging.three_ranks",
                  "three all-reduces of 8 bytes among three ranks",
                  new Collectives({.ranks = 3, .calls = {sum, sum, sum}, .sleeps = true}),
                  false,
                  {no_release, no_acquire}});
  all->push_back(
      {"staging.records",
       "broadcasts of 8 bytes; the root is 63 rounds ahead and comes round to the records that are read",
       new Collectives({.calls = far, .ahead = 63, .last = 3}),
       true,
       {early_round, no_done, no_room, reused}});
  all->push_back({"staging.eager",
                  "the same with 64 bytes, in eager slots",
                  new Collectives({.calls = far_eager, .ahead = 63, .last = 3}),
                  true,
                  {early_round, no_done, no_room, reused}});
  all->push_back({"staging.slots",
                  "a broadcast in five rounds through four staging slots",
                  new Collectives({.calls = {five}, .brief = true}),
                  true,
                  {no_release, no_acquire, no_done, no_room, reused}});
  all->push_back({"staging.six_rounds",
                  "a broadcast in six rounds through four staging slots",
                  new Collectives({.calls = {six}, .sleeps = true}),
                  false,
                  {no_release, no_acquire, early_round, no_done, no_room, reused}});
  Call round = five, shorter = call(Collective::broadcast, Algorithm::direct, 20, 64);
  round.ring = shorter.ring = true;
  all->push_back({"staging.ring",
                  "broadcasts in five and in three rounds, whose posts go round a ring",
                  new Collectives({.calls = {round, shorter}, .brief = true}),
                  false,
                  {no_release, no_acquire, no_done, no_room}});
  all->push_back({"staging.slices",
                  "an all-reduce in rounds: each rank reduces a slice, posts the result, and runs ahead",
                  new Collectives({.calls = {slices}, .sleeps = true}),
                  false,
                  {no_release, no_acquire}});
  all->push_back({"staging.barrier",
                  "barriers between all-reduces",
                  new Collectives({.calls = {meet, sum, meet}}),
                  false,
                  {{"the look at a record does not acquire", "record.word", At::load, What::relax}}});
  all->push_back({"staging.wakes",
                  "an all-reduce of 8 bytes: no sleeper is left behind, the window of decision 0003 aside",
                  new Collectives({.calls = {sum}, .wakes = true, .spurious = 1}),
                  false,
                  {{"who comes to sleep does not register", "record.sleepers", At::change, What::drop},
                   {"sleepers are not woken", "record.word", At::wake, What::drop},
                   {"a sleeper does not look again", "record.word", At::wait, What::drop}}});
  all->push_back({"staging.death",
                  "two all-reduces of 8 bytes, of which one rank may die at any step: the other ends",
                  new Collectives({.calls = {sum, sum}, .dies = 1}),
                  true,
                  {{"the abort word is not raised", "abort", At::store, What::drop}}});
}

}  // namespace explore

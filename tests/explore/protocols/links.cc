// Links: operations of the link executor over rings of two slots, waits with their sleeps, and the death of
// a rank.
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/collectives.h"

namespace explore {

void add_links(std::vector<Protocol>* all) {
  using ouro::Collective, ouro::flow::Algorithm;
  using At = Fault::At;
  using What = Fault::What;
  const auto chain = [](std::size_t chunks, int root) {
    return Call{.collective = Collective::broadcast,
                .algorithm = Algorithm::chain,
                .count = 8 * chunks,
                .root = root};
  };
  const Call ring{.collective = Collective::all_reduce, .algorithm = Algorithm::ring, .count = 4};
  const Fault no_release{"the chunk is published without release", "full", At::store, What::relax},
      no_acquire{"the look for a chunk does not acquire", "full", At::load, What::relax};

  all->push_back({"links.broadcast",
                  "a broadcast of four chunks through two slots (LinkExecutor, LinkView, Waiter)",
                  new Collectives({.calls = {chain(4, 0)}, .brief = true}),
                  true,
                  {no_release,
                   no_acquire,
                   {"a slot is given back without release", "freed", At::store, What::relax},
                   {"the look for room does not acquire", "freed", At::load, What::relax},
                   {"a slot is used one chunk early", "freed", At::load, What::add, 1},
                   {"a chunk is read before it is published", "full", At::load, What::add, 1},
                   {"a slot is given back before it is read", "freed", At::store, What::add, 1},
                   {"a chunk is published before it is written", "full", At::store, What::add, 1},
                   {"a slot is never given back", "freed", At::store, What::drop}}});
  all->push_back({"links.all_reduce",
                  "two all-reduces by the ring: each rank sends and receives",
                  new Collectives({.calls = {ring, ring}, .sleeps = true}),
                  false,
                  {no_release, no_acquire}});
  all->push_back({"links.three_ranks",
                  "two all-reduces by the ring among three ranks",
                  new Collectives({.ranks = 3, .calls = {ring, ring}, .sleeps = true}),
                  false,
                  {no_release, no_acquire}});
  all->push_back({"links.wakes",
                  "a broadcast of three chunks: no sleeper is left behind, the window of decision 0003 aside",
                  new Collectives({.calls = {chain(3, 0)}, .brief = true, .wakes = true, .spurious = 1}),
                  false,
                  {{"who comes to sleep does not register", "full.sleepers", At::change, What::drop},
                   {"who waits for room does not register", "freed.sleepers", At::change, What::drop},
                   {"sleepers of a full ring are not woken", "freed", At::wake, What::drop},
                   {"sleepers are not woken", "full", At::wake, What::drop},
                   {"a sleeper does not look again", "full", At::wait, What::drop}}});
  all->push_back({"links.receiver_dies",
                  "a broadcast whose receiver may die at any step: the sender ends",
                  new Collectives({.calls = {chain(3, 0)}, .brief = true, .dies = 1}),
                  true,
                  {{"the abort word is not raised", "abort", At::store, What::drop}}});
  all->push_back(
      {"links.sender_dies",
       "a broadcast whose sender may die at any step: the receiver ends, and what was published counts",
       new Collectives({.calls = {chain(3, 1)}, .brief = true, .dies = 1}),
       true,
       {{"the abort word is not raised", "abort", At::store, What::drop},
        {"the abort word is raised without release", "abort", At::store, What::relax},
        {"the look at the abort word does not acquire", "abort", At::load, What::relax},
        no_release}});
}

}  // namespace explore

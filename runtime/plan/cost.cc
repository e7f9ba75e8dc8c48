// A listener that charges steps. See cost.h.
#include "runtime/plan/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "kernels/flow/geometry.h"
#include "runtime/calibration/choose.h"
#include "runtime/core/collectives.h"

namespace ouro::rt {
namespace {

using flow::Algorithm, flow::Place, flow::Step;
using kernels::CopyKind, kernels::kCopySizes;

constexpr std::size_t kLine = 64, kLarge = std::size_t{1} << 20, kDisplaced = std::size_t{3} << 20;
// Another choice must take at most this fraction of the table's; a smaller gain may be the model's error.
// That error is smaller where only copies of private buffers of more than 1 MiB count, and each rank
// has a core.
constexpr double kSaves = 0.85, kSavesInCopies = 0.95;

/// Nanoseconds for so many bytes: proportional up to the first size and from the last one on, linear
/// between neighbours.
template <std::size_t N>
double interpolated(const std::array<std::size_t, N>& sizes, const std::array<double, N>& ns, double bytes) {
  const auto x = [&](std::size_t s) { return static_cast<double>(sizes[s]); };
  if (bytes <= x(0)) return ns[0] * bytes / x(0);
  for (std::size_t s = 1; s < N; ++s)
    if (bytes <= x(s)) return ns[s - 1] + (ns[s] - ns[s - 1]) * (bytes - x(s - 1)) / (x(s) - x(s - 1));
  return ns.back() * bytes / x(N - 1);
}

/// Nanoseconds by number of bytes, from measurements at kCopySizes.
class Curve {
 public:
  template <class F>
  explicit Curve(F&& at) {
    for (std::size_t s = 0; s < kCopySizes.size(); ++s) ns_[s] = at(s);
  }
  bool known() const {
    return std::all_of(ns_.begin(), ns_.end(), [](double ns) { return ns > 0; });
  }
  double operator()(double bytes) const { return interpolated(kCopySizes, ns_, bytes); }
  /// Includes the fixed cost of a call, however few bytes it moves: the time of the smallest size.
  double with_start(double bytes) const { return std::max((*this)(bytes), start()); }
  double start() const { return ns_[0]; }

 private:
  std::array<double, kCopySizes.size()> ns_{};
};

/// Nanoseconds that ordinary accesses to so many bytes lose because another core has touched them.
class Lost {
 public:
  explicit Lost(const AccessCost (&measured)[kAccessSizes.size()]) {
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
      const AccessCost& a = measured[s];
      if (!a.known()) return;
      ns_[s] = a.after > a.alone ? double(a.after - a.alone) : 0;
    }
    known_ = true;
  }
  bool known() const { return known_; }
  double operator()(double bytes) const { return known_ ? interpolated(kAccessSizes, ns_, bytes) : 0; }

 private:
  std::array<double, kAccessSizes.size()> ns_{};
  bool known_ = false;
};

struct Prices {
  double handoff, ask;
  double rewritten;  ///< the part of what a peer has read that is still in its caches
  bool afterwards;   ///< see CostQuery
  bool cached;       ///< the data is in the nearer caches
  Curve write, read, pull, local;
  Lost stores, loads;
};

/// The factor by which a copy takes longer while the other core copies, too.
double crowded(std::uint32_t together, std::uint32_t alone) {
  return together == 0 || alone == 0 ? 1 : std::max(1.0, double(together) / alone);
}

/// Nanoseconds of a copy of kCopySizes[size].
struct Cost {
  double write, read;
};

/// The cost of a copy while the other rank copies, too: of a post (staged), or to and from the buffer of
/// another rank. For large buffers it depends on where the buffers are, not on which core has read a line.
Cost crowded_copy(const PairCosts& far, CopyKind kind, bool staged, bool ring, bool much, std::size_t size) {
  constexpr std::size_t kPiece = kernels::copy_size_class(kLargePiece);
  const CopyCost alone = cost_of(far, kind, size);
  if (size < kPiece) return {double(alone.write), double(alone.read)};
  const bool built_in = kind == kernels::kDefaultCopyKinds[kPiece];
  const auto scaled = [&](const CopyCost& figure, std::size_t of) {
    const double times = double(kCopySizes[size]) / double(of);
    return Cost{figure.write * times, figure.read * times};
  };
  if ((ring || (much && !staged && built_in)) && far.ring.known()) return scaled(far.ring, kLargePiece);
  if (much && staged && far.large.known()) return scaled(far.large, kLargeBytes);
  const CopyCost& one = far.copies[kPiece][static_cast<std::size_t>(kind)];
  const CopyCost& both = built_in || !far.together_slots.known() ? far.together : far.together_slots;
  return {alone.write * crowded(both.write, one.write), alone.read * crowded(both.read, one.read)};
}

/// staged: for posts in staging buffers, else for the buffers of other ranks. alone: only one core copies at
/// a time. much: the buffers have displaced what copies were measured in.
Prices prices_of(const Calibration& c, const CostQuery& q, bool staged, bool alone, bool much) {
  const PairCosts& far = c.farthest();
  constexpr std::size_t kPiece = kernels::copy_size_class(kLargePiece);
  const bool ring = staged && ring_pays(c) && goes_round(q.collective, q.ranks, q.bytes);
  const kernels::CopyKinds kinds = !staged                                    ? buffer_kinds_by(c)
                                   : ring                                     ? kernels::kDefaultCopyKinds
                                   : is_large(q.collective, q.ranks, q.bytes) ? large_kinds_by(c)
                                                                              : slot_kinds_by(c);
  const auto cost = [&](std::size_t s) {
    const CopyCost one = cost_of(far, kinds[s], s);
    return alone ? Cost{double(one.write), double(one.read)}
                 : crowded_copy(far, kinds[s], staged, ring, much, s);
  };
  const double pulls = alone && !much ? 1 : crowded(far.pull_together, far.pull_huge[kPiece]);
  const bool rooted = traits_of(q.collective).rooted();
  const double rewritten = !much ? 1 : rooted ? 0.5 : 0;
  const auto pull = [&](std::size_t s) { return double(q.huge_pages ? far.pull_huge[s] : far.pull[s]); };
  // Half of a read between the nearest cores, since small copies within a core's own cache are not measured.
  // The built-in kind counts, because non-temporal stores leave what is read next in no cache.
  const auto local = [&](std::size_t s) {
    if (much && far.large_local && s >= kPiece)
      return double(far.large_local) / double(kLargeBytes) * double(kCopySizes[s]);
    const CopyCost& near = c.pair[0].copies[s][static_cast<std::size_t>(kernels::kDefaultCopyKinds[s])];
    return double(near.read) / 2;
  };
  return {.handoff = double(far.handoff),
          .ask = q.forced ? 0 : 2 * pull(0),
          .rewritten = rewritten,
          .afterwards = q.afterwards,
          .cached = !much,
          .write = Curve([&](std::size_t s) { return cost(s).write; }),
          .read = Curve([&](std::size_t s) { return cost(s).read; }),
          .pull = Curve([&](std::size_t s) { return pull(s) * (s < kPiece ? 1 : pulls); }),
          .local = Curve(local),
          .stores = Lost(far.stores),
          .loads = Lost(far.loads)};
}

class Charge;
/// The properties of a flow that the model needs, so that everything except its steps is compiled once.
struct Facts {
  bool by_reference = false, pulls = false, rooted = false, posts_others = false, posts_result = false;
  bool copies_own = false;  ///< not in a broadcast, which is in place in most programs
  int (*chunks)(Place) = nullptr;
  void (*run)(Place, Charge&) = nullptr;
};

/// A listener that adds up the cost of one rank's steps.
class Charge {
 public:
  Charge(const Facts& flow, const Prices& prices, int ranks, double chunk)
      : flow_(flow), p_(prices), n_(ranks), chunk_(chunk) {}
  void operator()(const Step& s) { pay(s); }
  double ns = 0;
  double read_in_place = 0;  ///< bytes out of the buffers of others; on average, others read as much of mine

 private:
  [[gnu::noinline]] void pay(const Step&);
  double pulled(bool reduces) const;
  /// A chunk of this rank's own memory that is only read, or only written: half of a copy within it.
  double half_copied() const { return p_.local(chunk_) / 2; }
  /// Cache lines of other ranks are requested one after the other, but their transfers overlap.
  double wait(double others) const { return p_.handoff * (1 + (others - 1) / 2); }
  const Facts& flow_;
  const Prices& p_;
  const int n_;
  const double chunk_;
};

/// A chunk out of another process; for a reduction by tiles, from which the result is then written. Reading
/// the tiles again is hidden where the reduction waits for memory.
double Charge::pulled(bool reduces) const {
  if (!reduces) return p_.pull.with_start(chunk_);
  const double tiles = std::ceil(chunk_ / kPullTile);
  return tiles * p_.pull.with_start(std::min(chunk_, double(kPullTile))) +
         half_copied() * (p_.cached ? 2 : 1) + (flow_.posts_result ? p_.rewritten * p_.stores(chunk_) : 0);
}

void Charge::pay(const Step& s) {
  const double sources = s.from == flow::kEveryone ? n_ - 1 : 1;
  if (s.verb & flow::kBarrier) ns += wait(n_ - 1);
  if (s.verb & flow::kPost) {
    if (flow_.pulls && !(s.verb & flow::kResult)) ns += p_.ask;
    if (!flow_.by_reference || (s.verb & flow::kResult))
      ns += p_.write(chunk_ * s.span);
    else
      ns += wait(n_ - 1);  // until all have published where their buffers are
    return;
  }
  if (s.verb & flow::kPosted) {
    if (!flow_.by_reference) ns += wait(sources);
    ns += sources * (flow_.pulls ? pulled(s.from == flow::kEveryone) : p_.read(chunk_));
    if (flow_.by_reference && !(s.verb & flow::kResult)) read_in_place += sources * chunk_;
    if (s.from == flow::kEveryone) ns += half_copied();  // this rank's own chunk is read
  } else if (s.verb & flow::kInput && flow_.copies_own) {
    ns += p_.local(chunk_);
  }
  if (s.verb & flow::kMulticast) {
    ns += (n_ - 1) * p_.write(chunk_);
    // The application then reads the others' stores out of the caches of their cores, not out of its own.
    if (p_.afterwards)
      ns += p_.cached && p_.loads.known() ? p_.loads((n_ - 1) * chunk_)
                                          : (n_ - 1) * std::max(0.0, p_.read(chunk_) - p_.local(chunk_));
  }
}

/// ahead: a root may post for its next call while readers take what it has posted. input: bytes of the buffer
/// that others may read in place.
double walk(const Facts& flow, const Prices& p, int ranks, int rounds, double chunk, bool ahead,
            double input = 0) {
  double most = 0, least = 0;
  for (int r = 0; r < std::min(ranks, 2);
       ++r) {  // a root and one other rank; in collectives without a root, all are alike
    Charge charge(flow, p, ranks, chunk);
    flow.run(Place{r, ranks, 0, rounds}, charge);
    if (p.afterwards) charge.ns += p.rewritten * p.stores(std::min(charge.read_in_place, input));
    most = std::max(most, charge.ns);
    least = r == 0 ? charge.ns : std::min(least, charge.ns);
  }
  // In a rooted flow, one side (the root or its readers) is one post behind the other.
  if (!flow.rooted || ahead) return most;
  return most + (flow.by_reference ? least : std::min(least, p.write(chunk)));
}

/// Only flows over one host's staging buffers and references have facts.
std::optional<Facts> facts_of(Collective c, Algorithm a) {
  std::optional<Facts> facts;
  flow::visit(c, a, [&]<class Flow>(const Flow&) {
    if constexpr (Flow::kStaging && !Flow::kSwitched && std::is_same_v<typename Flow::Data, flow::NoData>)
      facts = Facts{.by_reference = Flow::kByReference,
                    .pulls = Flow::kPulls,
                    .rooted = Flow::kRooted,
                    .posts_others = Flow::kPostsOthers,
                    .posts_result = Flow::kPostsResult,
                    .copies_own = c != Collective::broadcast,
                    .chunks = [](Place at) { return static_cast<int>(Flow{}.chunks(at)); },
                    .run = [](Place at, Charge& charge) { Flow{}(at, charge); }};
  });
  return facts;
}

/// The algorithm of the built-in table's first matching row. `staged`: rows that depend on the kind of
/// buffers (zerocopy, pull) are skipped.
Algorithm table_choice(const Rules& table, Collective c, Buffers buffers, int ranks, std::size_t bytes,
                       bool staged) {
  for (const Rule& r : table.rows) {
    if (r.collective != c || ranks < r.min_ranks || ranks > r.max_ranks || bytes > r.max_bytes) continue;
    if (r.hosts == Hosts::several || (r.buffers != Buffers::any && r.buffers != buffers)) continue;
    if (staged && (r.algorithm == Algorithm::zerocopy || r.algorithm == Algorithm::pull)) continue;
    return r.algorithm;
  }
  return Algorithm::direct;
}

/// Bytes of a rank's input and output together.
std::size_t touched(Collective c, int ranks, std::size_t bytes) {
  const CollectiveTraits traits = traits_of(c);
  return traits.in.elements(bytes, ranks) + traits.out.elements(bytes, ranks);
}

/// The part of a rank's buffers that is in no near cache any more when it is used again: none up to kLarge,
/// all from kDisplaced on.
double displaced(Collective c, int ranks, std::size_t bytes) {
  const std::size_t all = std::clamp(touched(c, ranks, bytes), kLarge, kDisplaced);
  return double(all - kLarge) / double(kDisplaced - kLarge);
}

/// As predicted_ns, with the record's figures of data that is in the nearer caches, or of much data.
std::optional<double> predicted_where(const Calibration& c, const CostQuery& q, const Facts& flow,
                                      bool much) {
  const bool alone = flow.by_reference && traits_of(q.collective).rooted() && q.ranks == 2;
  const Prices p = prices_of(c, q, !flow.by_reference, alone, much);
  if (!p.write.known() || !p.read.known() || (flow.pulls && !p.pull.known())) return std::nullopt;
  const auto n = static_cast<std::size_t>(q.ranks);
  const bool blocks = traits_of(q.collective).blocks();
  const double longest = static_cast<double>(q.bytes) / (blocks ? 1 : flow.chunks(Place{0, q.ranks, 0, 1}));
  if (flow.by_reference) {
    // If the call is in place, the peers write by zero copy what they have read.
    const bool written = q.in_place && !flow.pulls && traits_of(q.collective).reduces_all();
    const double input = written ? 0 : double(traits_of(q.collective).in.elements(q.bytes, q.ranks));
    return kCallNs + (flow.pulls ? 0 : kReferenceNs) + walk(flow, p, q.ranks, 1, longest, false, input);
  }
  const std::size_t pieces = (flow.posts_others ? n - 1 : 1) + (flow.posts_result ? 1 : 0);
  const auto capacity = static_cast<double>(std::max(kLine, q.staging_slot / pieces / kLine * kLine));
  const double rounds = std::max(1.0, std::ceil(longest / capacity)), chunk = longest / rounds;
  constexpr int kFew = 4, kMore = 8;
  if (rounds <= kMore)
    return kCallNs + walk(flow, p, q.ranks, static_cast<int>(rounds), chunk, rounds <= StagingView::kSlots);
  const double few = walk(flow, p, q.ranks, kFew, chunk, false),
               more = walk(flow, p, q.ranks, kMore, chunk, false);
  return kCallNs + more + (more - few) / (kMore - kFew) * (rounds - kMore);
}

}  // namespace

bool uses_ring(const Calibration& c, int ranks) { return ranks <= kRingRanks && ring_pays(c); }

bool goes_round(Collective c, int ranks, std::size_t bytes) {
  return ranks <= kRingRanks && (traits_of(c).rooted() || !is_large(c, ranks, bytes));
}

bool is_large(Collective c, int ranks, std::size_t bytes) { return touched(c, ranks, bytes) > kLarge; }

std::optional<double> predicted_ns(const Calibration& c, const CostQuery& q) {
  const auto flow = facts_of(q.collective, q.algorithm);
  if (!flow || !c.known() || q.ranks < 2) return std::nullopt;
  const double part = displaced(q.collective, q.ranks, q.bytes);
  const auto cached = part < 1 ? predicted_where(c, q, *flow, false) : 0.0,
             much = part > 0 ? predicted_where(c, q, *flow, true) : 0.0;
  if (!cached || !much) return std::nullopt;
  return *cached * (1 - part) + *much * part;
}

std::vector<Rule> rows_by_cost(const Calibration& c, int ranks, std::size_t staging_slot, Cores cores) {
  constexpr std::size_t kFrom = 4 << 10, kTo = 256 << 20;
  constexpr int kMostRanks = 64;  // with more, walking the flows takes milliseconds per group
  constexpr const char* kSame = "the built-in table's, by the host's calibration, too";
  constexpr Collective kChosen[] = {Collective::all_reduce, Collective::reduce_scatter,
                                    Collective::all_gather, Collective::broadcast, Collective::all_to_all};
  std::vector<Rule> rows;
  if (!c.known() || ranks < 2 || ranks > kMostRanks) return rows;
  const Rules table = built_in_rules();
  // Ranks that share cores have as much to copy, so large calls compare as if each rank had a core. The cost
  // of smaller ones depends on when each rank gets its turn.
  const bool crowded = cores == Cores::fewer;
  for (const Collective collective : kChosen)
    for (const Buffers buffers : {Buffers::registered, Buffers::private_}) {
      if (crowded && buffers == Buffers::registered) continue;
      std::vector<Rule> found;
      std::size_t differs = 0;  // number of rows up to the last that differs from the table
      // Otherwise calls that fit into arrival records would find the row for kFrom bytes.
      const auto smallest = table_choice(table, collective, buffers, ranks, Arrival::kInline, false);
      if (smallest == Algorithm::inlined)
        found.push_back(
            {collective, buffers, cores, ranks, ranks, Arrival::kInline, smallest, kSame, Hosts::one});
      for (std::size_t bytes = kFrom; bytes <= kTo; bytes *= 2) {
        const auto cost = [&](Algorithm a, bool in_place = false, bool huge_pages = true) {
          return predicted_ns(c, {.collective = collective,
                                  .algorithm = a,
                                  .ranks = ranks,
                                  .bytes = bytes,
                                  .staging_slot = staging_slot,
                                  .huge_pages = huge_pages,
                                  .in_place = in_place,
                                  .afterwards = true});
        };
        const auto better = [&](Algorithm than, std::initializer_list<Algorithm> others,
                                bool in_place = false, double saves = kSaves, bool huge_pages = true) {
          const auto known = cost(than, in_place);
          Algorithm best = than;
          double least = known.value_or(0) * saves;
          for (const Algorithm a : others)
            if (const auto ns = cost(a, in_place, huge_pages); ns && *ns < least) least = *ns, best = a;
          return best;
        };
        const Algorithm staged_before = table_choice(table, collective, buffers, ranks, bytes, true),
                        before = table_choice(table, collective, buffers, ranks, bytes, false),
                        staged = crowded ? staged_before
                                         : better(staged_before, {Algorithm::oneshot, Algorithm::direct}),
                        by_reference = buffers == Buffers::registered ? Algorithm::zerocopy : Algorithm::pull;
        const bool large = is_large(collective, ranks, bytes);
        const double saves = large && !crowded && by_reference == Algorithm::pull ? kSavesInCopies : kSaves;
        const Algorithm best = crowded && !large        ? before
                               : before == by_reference ? better(before, {staged})
                                                        : better(staged, {by_reference}, false, saves);
        // If zero copy pays off only in place, ranks whose call is not in place decline it.
        const bool in_place_only = collective == Collective::all_reduce && before == Algorithm::zerocopy &&
                                   best != before && better(before, {staged}, true) == before;
        const auto put = [&](Algorithm a) {
          Rule row{collective, buffers, cores, ranks, ranks, bytes, a, kSame, Hosts::one};
          if (const auto ns = cost(a), was = cost(before); ns && was && a != before)
            row.reason =
                fmt::format("by the host's calibration: {:.1f} us at {} bytes, {} {:.1f}{}", *ns / 1e3, bytes,
                            flow::name(before), *was / 1e3, crowded ? ", if each rank had a core" : "");
          found.push_back(std::move(row));
        };
        if (in_place_only) {
          put(before);
          found.back().in_place = true;
        }
        put(best);
        if (best == Algorithm::pull) {
          found.back().any_pages = better(staged, {best}, false, saves, false) == best;
          put(staged);  // for calls whose buffers cannot be pulled
        }
        if (best != before) differs = found.size();
      }
      found.resize(differs);
      rows.insert(rows.end(), found.begin(), found.end());
    }
  return rows;
}

const std::vector<Rule>& CostRows::of(const Calibration& c, int ranks, std::size_t staging_slot,
                                      Cores cores) {
  std::lock_guard lock(mutex_);
  const std::pair key(ranks, cores);
  auto it = rows_.find(key);
  if (it == rows_.end()) it = rows_.emplace(key, rows_by_cost(c, ranks, staging_slot, cores)).first;
  return it->second;
}

}  // namespace ouro::rt

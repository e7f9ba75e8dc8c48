// Races of algorithms at each size, and of kinds of stores. See tune_bench.h.
#include "tools/perf/tune_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/context/machine.h"
#include "tools/perf/measure.h"
#include "tools/perf/probe.h"
#include "tools/perf/report.h"

namespace ouro::perf {
namespace {

constexpr std::size_t kSizeFactor = 4;  // factor between sizes; halved where the winner changes
// Least number of bytes touched by all ranks where the threshold is sought.
constexpr std::size_t kLeastStream = 1u << 20;
constexpr const char *kNeverStream = "1024G", *kAlwaysStream = "1";  // as OURO_STREAM_BYTES accepts them
constexpr DType kType = DType::f32;
constexpr int kAttempts = 3;           // repetitions of a race that other programs disturb
constexpr double kRepeatSeconds = 90;  // after this time no race is repeated

Call call_of(Kind kind, std::size_t size, const Pair& p, int ranks) {
  return {.kind = kind,
          .in = p.send.at(0),
          .out = p.recv.at(0),
          .shape = layout(kind, size, size_of(kType), ranks),
          .dtype = kType,
          .op = ReduceOp::sum};
}

std::size_t unit_bytes(const Call& c) { return c.shape.count * size_of(c.dtype); }

/// The root is rank 0. If only one side of a call is used on a rank, the runner touches that side alone.
Runner runner(std::string_view name, Group& group, const Call& c, const Pair& p) {
  const bool root = group.rank() == c.root;
  const bool one_writes = c.kind == Kind::broadcast || c.kind == Kind::scatter;
  const bool one_reads = c.kind == Kind::reduce || c.kind == Kind::gather;
  const std::size_t in = one_writes && !root ? 0 : c.shape.in * size_of(c.dtype);
  const std::size_t out = one_reads && !root ? 0 : c.shape.out * size_of(c.dtype);
  return {.name = std::string(name),
          .call = [&group, c] { return issue(group, c, 1, {}); },
          .in = {p.send.at(0), in},
          .out = {p.recv.at(0), out}};
}

double shown(const Trial& t) { return t.us.empty() ? t.first_us : t.median(); }

/// "  oneshot 0.14  ring 0.29  tree (~812)", the fastest first.
std::string ranking(std::span<const Trial> trials) {
  std::vector<const Trial*> sorted;
  for (const Trial& t : trials) sorted.push_back(&t);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Trial* a, const Trial* b) {
    return a->us.empty() != b->us.empty() ? b->us.empty() : shown(*a) < shown(*b);
  });
  std::string s;
  for (const Trial* t : sorted)
    s += t->us.empty() ? fmt::format("  {} (~{})", t->name, format_time(shown(*t)))
                       : fmt::format("  {} {}", t->name, format_time(shown(*t)));
  return s;
}

}  // namespace

Result<Pair> Pair::make(Context& context, std::size_t bytes, bool registered) {
  Pair p;
  for (Buffer* b : {&p.send, &p.recv}) {
    auto made = Buffer::make(context, bytes + kGuard, registered);
    if (!made) return made.status();
    *b = std::move(*made);
  }
  return p;
}

// ---- contexts and groups --------------------------------------------------------------------------

Status TuneBench::with_variable(const char* name, const std::string& value,
                                const std::function<Status()>& f) {
  const bool sets = options_.threads <= 1 || outer_.rank() == 0;
  OURO_TRY(barrier(outer_.world(), kAuto));
  if (sets) ::setenv(name, value.c_str(), 1);
  OURO_TRY(barrier(outer_.world(), kAuto));
  const Status s = f();
  OURO_TRY(barrier(outer_.world(), kAuto));
  if (sets) ::unsetenv(name);
  OURO_TRY(barrier(outer_.world(), kAuto));
  return s;
}

Result<Context> TuneBench::join(const std::string& stream_bytes) {
  UniqueId mine;
  if (outer_.rank() == 0) {
    auto id = UniqueId::create();
    if (!id) return id.status();
    mine = *id;
  }
  const auto all = collect(outer_.world(), &mine);
  if (!all) return all.status();
  InitOptions init;
  init.rank = init.local_rank = outer_.rank();
  init.world_size = init.local_size = size();
  init.id = all->front();
  if (options_.timeout_s > 0) init.deadline = std::chrono::seconds(options_.timeout_s);
  std::optional<Context> made;
  const auto create = [&]() -> Status {
    auto c = Context::create(init);
    if (!c) return c.status();
    made.emplace(std::move(*c));
    return {};
  };
  OURO_TRY(stream_bytes.empty() ? create() : with_variable("OURO_STREAM_BYTES", stream_bytes, create));
  return std::move(*made);
}

Status TuneBench::enter(std::size_t stream_bytes) {
  auto made = join(stream_bytes > 0 ? std::to_string(stream_bytes) : "");
  if (!made) return made.status();
  context_.emplace(std::move(*made));
  std::vector<int> all(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) all[static_cast<std::size_t>(r)] = r;
  for (int i = 0; i < flow::kAlgorithms; ++i) {
    const std::string algorithm(flow::name(static_cast<flow::Algorithm>(i)));
    OURO_TRY(with_variable("OURO_ALGO", algorithm, [&]() -> Status {
      auto group = context_->group(all, "tune " + algorithm);
      if (!group) return group.status();
      groups_.emplace(i, std::move(*group));
      return {};
    }));
  }
  for (const bool registered : {false, true}) {
    auto pair = Pair::make(*context_, options_.max_bytes, registered);
    if (!pair) return pair.status();
    (registered ? registered_ : private_) = std::move(*pair);
  }
  // A group with a forced algorithm reads by reference or fails, and rows with `pull` require the same.
  bool able = context_->impl()->host_memory().reaches(all);
  for (const Buffer* b : {&private_->send, &private_->recv})
    able = able && context_->impl()->host_memory().on_huge_pages(b->at(0), options_.max_bytes);
  const std::uint8_t mine = able;
  const auto may = collect(outer_.world(), &mine);
  if (!may) return may.status();
  pulls_ = std::find(may->begin(), may->end(), 0) == may->end();
  built_in_.emplace(rt::built_in_rules(), size(), 1, enough_cores(),
                    rt::StreamLimits::uniform(~std::size_t{0}), rt::PostRules{}, "");
  return {};
}

Status TuneBench::verify(const Call& call, const Pair& p, Group& group, std::string_view who) {
  std::size_t mine = 0;
  for (int i = 0; i < options_.check; ++i) {
    const auto wrong = check_call(group, call, OpKind::sum, false, p.recv.at(0), ++seed_);
    if (!wrong) return wrong.status();
    mine += *wrong;
  }
  if (options_.check == 0) return {};
  const auto all = collect(outer_.world(), &mine);
  if (!all) return all.status();
  std::size_t sum = 0;
  for (const std::size_t w : *all) sum += w;
  if (sum > 0)
    print("# WRONG: {} of {} bytes by {}: {} elements\n", info(call.kind).name, call.shape.bytes, who, sum);
  wrong_ += sum;
  return {};
}

Result<TuneBench::Raced> TuneBench::quiet_race(std::span<const Runner> runners, std::size_t keep) {
  struct Usage {
    double host, own, wall, since_begin;
  };
  Raced quietest;
  double least = 2;
  ++races_;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double host = host_cpu_seconds(), own = process_cpu_seconds(), begin = seconds();
    auto trials = race(outer_.world(), runners, keep);
    if (!trials) return trials.status();
    const Usage mine{host_cpu_seconds() - host, process_cpu_seconds() - own, seconds() - begin, begin};
    const auto all = collect(outer_.world(), &mine);
    if (!all) return all.status();
    const Usage& first = all->front();  // so that all ranks make the same decision
    double ours = 0;
    for (const Usage& u : *all) ours = options_.threads > 1 ? first.own : ours + u.own;
    const double others = (first.host - ours) / std::max(first.wall, 1e-3) / host_cpus();
    if (others < least) least = others, quietest.trials = std::move(*trials);
    if (least <= kDisturbed || first.since_begin > kRepeatSeconds) break;
  }
  quietest.quiet = least <= kDisturbed;
  disturbed_ += quietest.quiet ? 0 : 1;
  return quietest;
}

// ---- non-temporal stores --------------------------------------------------------------------------

Result<std::size_t> TuneBench::calibrate(std::size_t old) {
  auto never = join(kNeverStream), always = join(kAlwaysStream);
  for (const auto* c : {&never, &always})
    if (!*c) return c->status();
  const auto n = static_cast<std::size_t>(size());
  print("#\n# Non-temporal stores in all_reduce: us without, us with, times faster\n");
  print("# {:>10}  {:>13}  {:>28}  {:>28}\n", "size", "bytes touched", "private", "registered");
  std::vector<StreamPoint> points;
  for (std::size_t bytes = options_.max_bytes; 2 * n * bytes >= kLeastStream; bytes /= 2)
    points.insert(points.begin(), {2 * n * bytes, 0});
  for (StreamPoint& point : points) {
    const std::size_t bytes = point.bytes / 2 / n;
    std::string line = fmt::format("  {:>10}  {:>13}", bytes, point.bytes);
    double least = 0, product = 1;
    for (const bool registered : {false, true}) {
      std::vector<Pair> pairs;  // registered buffers belong to their context; private ones are used with both
      std::vector<Runner> runners;
      for (Context* c : {&*never, &*always}) {
        if (registered || pairs.empty()) {
          auto pair = Pair::make(*c, bytes, registered);
          if (!pair) return pair.status();
          pairs.push_back(std::move(*pair));
        }
        const char* stores = c == &*never ? "ordinary stores" : "non-temporal stores";
        const Call call = call_of(Kind::all_reduce, bytes, pairs.back(), size());
        OURO_TRY(verify(call, pairs.back(), c->world(), stores));
        runners.push_back(runner(stores, c->world(), call, pairs.back()));
      }
      const auto raced = quiet_race(runners, 0);
      if (!raced) return raced.status();
      const Trial &without = raced->trials[0], &with = raced->trials[1];
      const double gain = with.us.empty() ? without.median() / with.first_us : ratio(without, with);
      line += fmt::format("  {:>10.1f} {:>10.1f} {:>6.2f}", shown(without), shown(with), gain);
      const double counted = raced->quiet ? gain : std::min(gain, 1.0);
      least = registered ? std::min(least, counted) : counted;
      product *= counted;
    }
    // One threshold is used for both kinds of buffers: it must pay off on average and harm neither kind.
    point.gain = least < 1 - kMargin ? least : std::sqrt(product);
    print("{}\n", line);
  }
  const std::size_t bytes = stream_threshold(points, kMargin, rt::machine().l3_bytes, old);
  const bool found =
      std::any_of(points.begin(), points.end(), [&](const StreamPoint& p) { return p.bytes == bytes; });
  print("# -> stream_bytes {}: {}\n", bytes,
        found                       ? "from there on they were ahead"
        : bytes > 0 && bytes == old ? "not ahead up to the largest size; as the file had it"
        : bytes == 0 ? "not ahead up to the largest size; 0 stands for the library's own limits"
                     : "not ahead up to the largest size; twice what was measured");
  for (Context* c : {&*never, &*always}) OURO_TRY(c->close());
  return bytes;
}

// ---- algorithms -----------------------------------------------------------------------------------

/// The algorithms that can serve this operation.
std::vector<flow::Algorithm> TuneBench::able(const rt::Operation& o, bool registered) const {
  std::vector<flow::Algorithm> list;
  for (int i = 0; i < flow::kAlgorithms; ++i) {
    const auto a = static_cast<flow::Algorithm>(i);
    if (a == flow::Algorithm::zerocopy && !registered) continue;
    if (a == flow::Algorithm::pull && (registered || !pulls_)) continue;
    rt::Operation forced = o;
    forced.algorithm = flow::name(a);
    rt::Choice choice;
    if (built_in_->select(forced, outer_.rank(), false, &choice).ok()) list.push_back(a);
  }
  return list;
}

std::vector<std::size_t> TuneBench::size_steps(Kind kind) const {
  std::vector<std::size_t> list;
  std::size_t bytes = std::max(options_.min_bytes, size_of(kType));
  for (; bytes < options_.max_bytes; bytes *= kSizeFactor) list.push_back(bytes);
  list.push_back(options_.max_bytes);
  std::erase_if(list, [&](std::size_t s) { return layout(kind, s, size_of(kType), size()).count == 0; });
  return list;
}

/// The index, in `candidates`, of the algorithm to use.
Result<std::size_t> TuneBench::best(const Call& call, const Pair& p,
                                    std::span<const flow::Algorithm> candidates, std::size_t usual) {
  std::vector<Runner> runners;
  for (const flow::Algorithm a : candidates) {
    OURO_TRY(verify(call, p, group_for(a), flow::name(a)));
    runners.push_back(runner(flow::name(a), group_for(a), call, p));
  }
  const auto raced = quiet_race(runners, usual);
  if (!raced) return raced.status();
  const std::vector<Trial>& trials = raced->trials;
  const std::size_t best = raced->quiet ? winner(trials, usual, kMargin) : usual;
  const std::string why =
      !raced->quiet ? "built in (disturbed)"
      : best == usual
          ? "built in"
          : fmt::format("{:.2f} x as fast as {}", ratio(trials[usual], trials[best]), trials[usual].name);
  print("  {:>10}  {:>10}  {:<13}  {:<26}{}\n", call.shape.bytes, unit_bytes(call), runners[best].name, why,
        ranking(trials));
  return best;
}

/// Registered buffers change only whether a call uses zero copy; otherwise the algorithm is chosen as for
/// private buffers. So for them the race is between the winner for private buffers and zerocopy.
Result<Winner> TuneBench::winner_at(Kind kind, std::size_t bytes, bool registered,
                                    std::span<const Winner> staged) {
  const Pair& pair = registered ? *registered_ : *private_;
  const Call call = call_of(kind, bytes, pair, size());
  const std::size_t unit = unit_bytes(call);
  const rt::Operation o = operation_of(call);
  rt::Choice usual;
  OURO_TRY(built_in_->select(o, outer_.rank(), false, &usual));
  std::vector<flow::Algorithm> candidates = able(o, registered);
  flow::Algorithm first = usual.algorithm;
  if (registered) {
    const auto at =
        std::find_if(staged.begin(), staged.end(), [&](const Winner& w) { return w.bytes >= unit; });
    candidates = {at == staged.end() ? usual.algorithm : at->algorithm, flow::Algorithm::zerocopy};
    first = usual.try_zero_copy ? flow::Algorithm::zerocopy : candidates[0];
  }
  const auto at = std::find(candidates.begin(), candidates.end(), first);
  const auto found = best(call, pair, candidates, static_cast<std::size_t>(at - candidates.begin()));
  if (!found) return found.status();
  return Winner{unit, candidates[*found]};
}

/// The winners in ascending order of size.
Result<std::vector<Winner>> TuneBench::winners(Kind kind, bool registered, std::span<const Winner> staged) {
  print("#\n# {}, {} buffers\n# {:>10}  {:>10}  {:<13}  {:<26}  {}\n", info(kind).name,
        registered ? "registered" : "private", "size", "of a rule", "to be written", "because",
        "all candidates, us");
  std::map<std::size_t, Winner> by_size;
  const auto measure = [&](std::size_t bytes) -> Status {
    const auto w = winner_at(kind, bytes, registered, staged);
    if (w) by_size[bytes] = *w;
    return w.status();
  };
  for (const std::size_t bytes : size_steps(kind)) OURO_TRY(measure(bytes));
  std::vector<std::size_t> between;
  for (auto it = by_size.begin(), next = it; it != by_size.end(); it = next)
    if (++next != by_size.end() && next->second.algorithm != it->second.algorithm &&
        next->first >= kSizeFactor * it->first)
      between.push_back(it->first * 2);
  for (const std::size_t bytes : between) OURO_TRY(measure(bytes));
  std::vector<Winner> list;
  for (const auto& [bytes, w] : by_size)
    if (list.empty() || list.back().bytes < w.bytes) list.push_back(w);
  return list;
}

Result<std::vector<rt::Rule>> TuneBench::tune(Kind kind) {
  const Collective c = info(kind).collective;
  const auto staged = winners(kind, false, {});
  if (!staged) return staged.status();
  const auto in_place = winners(kind, true, *staged);
  if (!in_place) return in_place.status();
  auto rows = rows_of({c, rt::Buffers::private_, cores(), size()}, *staged);
  for (rt::Rule& row : rows_of({c, rt::Buffers::registered, cores(), size()}, *in_place))
    rows.push_back(std::move(row));
  return rows;
}

Result<std::vector<rt::Rule>> TuneBench::tune_barrier() {
  rt::Operation o;
  o.collective = Collective::barrier;
  rt::Choice usual;
  OURO_TRY(built_in_->select(o, outer_.rank(), false, &usual));
  const auto candidates = able(o, false);
  std::vector<Runner> runners;
  for (const flow::Algorithm a : candidates)
    runners.push_back(
        {.name = std::string(flow::name(a)), .call = [&group = group_for(a)] { return barrier(group); }});
  const auto keep = static_cast<std::size_t>(
      std::find(candidates.begin(), candidates.end(), usual.algorithm) - candidates.begin());
  const auto raced = quiet_race(runners, keep);
  if (!raced) return raced.status();
  const Winner w{0, candidates[raced->quiet ? winner(raced->trials, keep, kMargin) : keep]};
  print("#\n# barrier: {}; all candidates, us:{}\n", flow::name(w.algorithm), ranking(raced->trials));
  return rows_of({Collective::barrier, rt::Buffers::any, cores(), size()}, {&w, 1});
}

}  // namespace ouro::perf

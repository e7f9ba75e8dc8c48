// The rules of hypercuboid and base-k: exact averages with at most `peers` messages per rank and round.
// See topology_state.h.
//
// base-k follows "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized Learning via
// Finite-time Convergence" (Takezawa et al., NeurIPS 2023).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

/// One rank connected to several others: each partner takes share / whole of the centre and the centre takes
/// share / whole of each partner; the remaining weight is each rank's own.
struct Star {
  int centre;
  std::vector<int> partners;
  int share, whole;
};
/// The actions of some ranks in one round; all others are idle.
struct Actions {
  std::vector<std::vector<int>> means;
  std::vector<Star> stars;
};
using Schedule = std::vector<Actions>;

std::vector<int> prime_factors(int n) {  // descending
  std::vector<int> factors;
  for (int p = 2; std::int64_t{p} * p <= n; ++p)
    for (; n % p == 0; n /= p) factors.push_back(p);
  if (n > 1) factors.push_back(n);
  std::reverse(factors.begin(), factors.end());
  return factors;
}

/// The factors of n, merged while the product stays <= most, descending; empty: a prime factor
/// exceeds `most`.
std::vector<int> radices(int n, int most) {
  std::vector<int> merged;
  for (const int p : prime_factors(n)) {
    if (p > most) return {};
    const auto fits =
        std::find_if(merged.begin(), merged.end(), [&](int m) { return std::int64_t{m} * p <= most; });
    if (fits == merged.end())
      merged.push_back(p);
    else
      *fits *= p;
  }
  std::sort(merged.rbegin(), merged.rend());
  return merged;
}

Actions& round_at(Schedule& s, int round) {
  if (static_cast<int>(s.size()) <= round) s.resize(static_cast<std::size_t>(round) + 1);
  return s[static_cast<std::size_t>(round)];
}

/// From round `first` on, ranks[0], ranks[1], ... average along one digit per round; `digits` has the radices
/// from the lowest digit up.
void add_hypercuboid(Schedule& s, int first, const std::vector<int>& ranks, const std::vector<int>& digits) {
  const int n = static_cast<int>(ranks.size());
  int stride = 1;
  for (const int radix : digits) {
    Actions& round = round_at(s, first++);
    for (int i = 0; i < n; ++i) {
      if (i / stride % radix != 0) continue;
      std::vector<int> set;
      for (int d = 0; d < radix; ++d) set.push_back(ranks[static_cast<std::size_t>(i + d * stride)]);
      round.means.push_back(std::move(set));
    }
    stride *= radix;
  }
}

std::vector<int> ranks_between(int begin, int end, int step = 1) {
  std::vector<int> ranks;
  for (int r = begin; r < end; r += step) ranks.push_back(r);
  return ranks;
}

/// One set V_l of base-k: `blocks` blocks of base^power consecutive ranks.
struct Set {
  int first, block, blocks, power;
  int size() const { return block * blocks; }
};
std::vector<Set> split(int n, int base) {
  std::vector<Set> sets;
  int block = 1, power = 0;
  while (block <= n / base) block *= base, ++power;
  for (int first = 0; first < n; block /= base, --power) {
    const int blocks = (n - first) / block;
    if (blocks > 0) sets.push_back({first, block, blocks, power});
    first += blocks * block;
  }
  return sets;
}

Schedule base_k(int n, int k);

/// For n with a prime factor above k + 1.
Schedule base_k_by_sets(int n, int k) {
  const std::vector<Set> sets = split(n, k + 1);
  Schedule s;
  int averaged = 0;  // number of rounds after which each set holds its own mean
  for (const Set& v : sets) {
    std::vector<int> digits(static_cast<std::size_t>(v.power), k + 1);
    if (v.blocks > 1) digits.push_back(v.blocks);
    add_hypercuboid(s, 0, ranks_between(v.first, v.first + v.size()), digits);
    averaged = std::max(averaged, static_cast<int>(digits.size()));
  }
  for (std::size_t l = 0; l + 1 < sets.size(); ++l) {
    const Set& v = sets[l];
    const int round = averaged + static_cast<int>(l), end = v.first + v.size(), left = n - v.first;
    // After this round, the mean of the remaining ranks is that of all, and so is the mean of each block
    // of this set.
    for (int q = 0; end + q < n; ++q) {
      Star star{end + q, {}, v.size(), v.blocks * left};
      for (int b = 0; b < v.blocks; ++b) star.partners.push_back(v.first + b * v.block + q);
      round_at(s, round).stars.push_back(std::move(star));
    }
    for (int b = 0; b < v.blocks; ++b) {
      const int first = v.first + b * v.block;
      add_hypercuboid(s, round + 1, ranks_between(first, first + v.block),
                      std::vector<int>(static_cast<std::size_t>(v.power), k + 1));
    }
  }
  return s;
}

Schedule base_k(int n, int k) {
  Schedule s;
  if (const std::vector<int> digits = radices(n, k + 1); n == 1 || !digits.empty()) {
    add_hypercuboid(s, 0, ranks_between(0, n), digits);
    return s;
  }
  Schedule by_sets = base_k_by_sets(n, k);
  int smooth = 1;
  for (const int p : prime_factors(n))
    if (p <= k + 1) smooth *= p;
  const int rest = n / smooth;
  if (smooth == 1 || rest == 1) return by_sets;
  // First the means of consecutive sets, then base-k among the ranks of equal position in these sets.
  for (int set = 0; set < rest; ++set)
    add_hypercuboid(s, 0, ranks_between(set * smooth, (set + 1) * smooth), radices(smooth, k + 1));
  const int first = static_cast<int>(s.size());
  const Schedule inner = base_k(rest, k);
  for (int i = 0; i < static_cast<int>(inner.size()); ++i) {
    Actions& round = round_at(s, first + i);
    for (int position = 0; position < smooth; ++position) {
      const auto place = [&](int r) { return r * smooth + position; };
      for (std::vector<int> set : inner[static_cast<std::size_t>(i)].means) {
        std::transform(set.begin(), set.end(), set.begin(), place);
        round.means.push_back(std::move(set));
      }
      for (Star star : inner[static_cast<std::size_t>(i)].stars) {
        star.centre = place(star.centre);
        std::transform(star.partners.begin(), star.partners.end(), star.partners.begin(), place);
        round.stars.push_back(std::move(star));
      }
    }
  }
  return s.size() < by_sets.size() ? s : by_sets;
}

/// Uses edges for a round unless a rank is connected to several others with different weights.
Plan plan_of(int n, Schedule schedule) {
  Plan plan;
  if (schedule.empty()) schedule.emplace_back();
  for (Actions& round : schedule) {
    if (std::all_of(round.stars.begin(), round.stars.end(),
                    [](const Star& s) { return s.partners.size() == 1; })) {
      Round edges;
      std::vector<bool> named(static_cast<std::size_t>(n));
      for (std::vector<int>& set : round.means) {
        for (const int r : set) named[static_cast<std::size_t>(r)] = true;
        const double weight = 1 / static_cast<double>(set.size());
        edges.push_back({std::move(set), weight});
      }
      for (const Star& s : round.stars) {
        edges.push_back({{s.centre, s.partners[0]}, static_cast<double>(s.whole - s.share) / s.whole});
        for (const int r : edges.back().ranks) named[static_cast<std::size_t>(r)] = true;
      }
      for (int r = 0; r < n; ++r)
        if (!named[static_cast<std::size_t>(r)]) edges.push_back({{r}, 1});
      plan.add(std::move(edges));
      continue;
    }
    std::vector<Row> rows(static_cast<std::size_t>(n));
    for (const std::vector<int>& set : round.means) {
      const double weight = 1 / static_cast<double>(set.size());
      for (const int i : set) {
        Row& row = rows[static_cast<std::size_t>(i)];
        row.self = weight;
        for (const int j : set)
          if (j != i) row.in.emplace_back(j, weight);
      }
    }
    for (const Star& s : round.stars) {
      const auto part = [&](int of) { return static_cast<double>(of) / s.whole; };
      Row& centre = rows[static_cast<std::size_t>(s.centre)];
      centre.self = part(s.whole - s.share * static_cast<int>(s.partners.size()));
      for (const int p : s.partners) {
        centre.in.emplace_back(p, part(s.share));
        rows[static_cast<std::size_t>(p)] = {part(s.whole - s.share), {{s.centre, part(s.share)}}, {}};
      }
    }
    plan.add(std::move(rows));
  }
  return plan;
}

}  // namespace

Result<Plan> make_hypercuboid(int n, const TopologyOptions& o) {
  const int most = std::min(o.peers, n) + 1;
  const std::vector<int> digits = radices(n, most);
  if (n > 1 && digits.empty())
    return invalid(
        fmt::format("hypercuboid: {} ranks have the prime factor {}; expected at most peers + 1 = {}; base-k "
                    "serves any number",
                    n, prime_factors(n)[0], most));
  Schedule s;
  add_hypercuboid(s, 0, ranks_between(0, n), digits);
  return plan_of(n, std::move(s));
}

Result<Plan> make_base_k(int n, const TopologyOptions& o) {
  return plan_of(n, base_k(n, std::min(o.peers, n)));
}

}  // namespace ouro::train

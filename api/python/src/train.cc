// Topologies of decentralised training, and mixing with neighbours.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "api/python/src/submit.h"
#include "ouro/train/topology.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::Row;
using train::Topology;

Topology make_topology(const std::string& name, int n, int local_world_size, int peers, int rows) {
  return value_of(
      Topology::make(name, n, {.local_world_size = local_world_size, .peers = peers, .rows = rows}));
}

using Matrix = std::vector<std::vector<double>>;
constexpr auto kMatrices =
    "Makes a topology from a mixing matrix for each round, as an array or nested lists indexed by\n"
    "round, row and column: row i holds the weights that rank i applies to each rank. Entries are\n"
    "not negative; each row and each column sums to 1. InvalidError names the round and the row\n"
    "or column that is wrong, or says that the rounds do not connect all ranks. ValueError:\n"
    "matrices that are not square or differ in size.";

Topology from_matrices(const std::vector<Matrix>& rounds) {
  const std::size_t n = rounds.empty() ? 0 : rounds.front().size();
  std::vector<double> flat;
  for (const Matrix& w : rounds) {
    if (w.size() != n) throw nb::value_error("matrices: rounds differ in their number of rows");
    for (const auto& row : w) {
      if (row.size() != n) throw nb::value_error("matrices: as many columns as rows are expected");
      flat.insert(flat.end(), row.begin(), row.end());
    }
  }
  return value_of(Topology::from_matrices(static_cast<int>(n), flat));
}

using Rounds = std::vector<std::vector<std::pair<std::vector<int>, std::optional<double>>>>;
Topology from_rounds(int n, Rounds given) {
  std::vector<train::Round> rounds;
  for (auto& round : given) {
    rounds.emplace_back();
    for (auto& [ranks, weight] : round) {
      std::sort(ranks.begin(), ranks.end());
      const double alike = 1 / static_cast<double>(std::max<std::size_t>(ranks.size(), 1));
      rounds.back().push_back({std::move(ranks), weight.value_or(alike)});
    }
  }
  return value_of(Topology::from_rounds(n, std::move(rounds)));
}

nb::object mix_of(Group& g, const Row& row, nb::handle x, nb::handle out, OptionalStream stream) {
  const bool in_place = out.is_none() || out.is(x);
  Arrays arrays;
  arrays.emplace_back(x, "x", in_place);
  if (!in_place) arrays.emplace_back(out, "out", true);
  const CView a = arrays.front().cview();
  const View b = arrays.back().view();
  return submit(std::move(arrays), nb::borrow(out.is_none() ? x : out), stream,
                [&](auto&&... s) { return train::mix(g, row, a, b, s...); });
}

double push_sum_of(Group& g, const Row& row, nb::handle x, double weight) {
  const Array array(x, "x", true);
  Status s;
  {
    Waiting waiting;
    s = train::push_sum(g, row, array.cview(), array.view(), weight);
  }
  check_interrupted(s);
  return weight;
}

}  // namespace

void bind_training(nb::module_& m, nb::class_<Group>& group) {
  nb::class_<Row>(m, "Row", "One row of a mixing matrix, and the ranks that need this rank's value.")
      .def(
          "__init__",
          [](Row* self, double own, std::vector<std::pair<int, double>> in, std::vector<int> out) {
            new (self) Row{own, std::move(in), std::move(out)};
          },
          "own"_a, "sources"_a, "targets"_a)
      .def_ro("own", &Row::self, "Weight of this rank's own value.")
      .def_ro("sources", &Row::in,
              "List of (rank, weight) for the ranks whose values are added, sorted by rank.")
      .def_ro("targets", &Row::out, "Ranks that add this rank's value, sorted.");
  nb::class_<Topology>(
      m, "Topology",
      "Which ranks average with each other in each round.\n\n"
      "name: one of topologies().\n"
      "n: number of ranks.\n"
      "local_world_size: ranks of a node, a divisor of n (alternating-exp-ring).\n"
      "peers: maximum number of messages that a rank sends per round (hypercuboid, base-k).\n"
      "rows: rows of the grid or torus, a divisor of n; 0: the largest divisor not above sqrt(n).\n\n"
      "InvalidError: an unknown name, or options that do not fit n.")
      .def(
          "__init__",
          [](Topology* self, const std::string& name, int n, int local_world_size, int peers, int rows) {
            new (self) Topology(make_topology(name, n, local_world_size, peers, rows));
          },
          "name"_a, "n"_a, nb::kw_only(), "local_world_size"_a = 1, "peers"_a = 1, "rows"_a = 0)
      .def_static("from_matrices", &from_matrices, "matrices"_a, kMatrices)
      .def_static(
          "from_matrices", [](const Matrix& w) { return from_matrices({w}); }, "matrix"_a,
          "Makes a topology of one round from its mixing matrix.")
      .def_static(
          "from_rounds", &from_rounds, "n"_a, "rounds"_a,
          "Makes a topology for n ranks from a list of rounds, each a list of (ranks, weight): these\n"
          "ranks average among themselves, and each keeps the share `weight` of its own value, 0 to 1;\n"
          "None: all members count equally. In each round, each rank is in exactly one entry.\n"
          "InvalidError names the round and the rank that is wrong.")
      .def_prop_ro("size", &Topology::size, "Number of ranks.")
      .def_prop_ro("period", &Topology::period,
                   "Number of rounds. The round of step s is s modulo the period.")
      .def_prop_ro("vectors", &Topology::vectors, "Number of vectors that a rank keeps, 1 or 2.")
      .def("row", &Topology::row, "step"_a, "rank"_a, "Returns the Row of `rank` in a step, for Group.mix.")
      .def(
          "matrix",
          [](const Topology& t, std::int64_t step) {
            const std::vector<double> flat = t.matrix(step);
            const auto n = static_cast<std::size_t>(t.size());
            std::vector<std::vector<double>> out;
            for (std::size_t r = 0; r < n; ++r)
              out.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(r * n),
                               flat.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
            return out;
          },
          "step"_a,
          "Returns the mixing matrix of a step as nested lists: row i holds the weights that rank i\n"
          "applies to each rank.")
      .def(
          "edge",
          [](const Topology& t, std::int64_t step, int rank) {
            train::Edge e = value_of(t.edge(step, rank));
            return std::pair(std::move(e.ranks), e.weight);
          },
          "step"_a, "rank"_a,
          "Returns (ranks, weight): the ranks among which `rank` averages in a step, itself included,\n"
          "and the share that each keeps, as in from_rounds. UnsupportedError: the round does not\n"
          "consist of such sets.")
      .def("contraction", &Topology::contraction,
           "Returns the factor by which one period reduces the differences between ranks: 0 if they are\n"
           "equal afterwards, below 1 if ranks converge. The cost is proportional to n^3.");
  m.def(
      "topologies",
      [] {
        nb::dict out;
        for (const train::TopologyInfo& t : train::topologies()) out[nb::str(t.name.c_str())] = t.about;
        return out;
      },
      "Returns a dict of the names that Topology accepts, with a one-line description of each.");
  group
      .def("mix", &mix_of, "row"_a, "x"_a, "out"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
           "Collective: out = row.own * x + the sum of weight * x of each source; without `out`, in\n"
           "place, in x. The rows of the ranks must be consistent, as the rows of a Topology are. x,\n"
           "out: float16, bfloat16, float32 or float64 on the host, with the same number of elements\n"
           "on all ranks. Returns out (or x); with a stream, a Work at once. UnsupportedError: arrays\n"
           "on a GPU.")
      .def("push_sum", &push_sum_of, "row"_a, "x"_a, "weight"_a,
           "Collective: mixes x, in place, and this rank's weight (1 at first) with the same row; for\n"
           "rows of which only the columns sum to 1. Returns the new weight: x / weight is this rank's\n"
           "estimate of the mean. Blocks, without the GIL. Arrays and errors are as in mix.");
}

}  // namespace ouro::python

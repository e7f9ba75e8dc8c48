/// One-sided access to other ranks' arrays, for averaging without waiting. For users.
/// @file
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Each rank of a group exposes one array; all have equal count and type. Other ranks read, write and add to
/// it while its owner does other work: only `create` and `fence` need the other side. The exposed array is
/// the window's own copy, so training continues in private memory and no rank sees half-updated parameters.
/// Each array has a lock: a call sees, and leaves, whole arrays (or the range that it names). Windows are
/// only for ranks of one host and host memory. Calls are thread-safe. A call waits for the lock until the
/// group's deadline (`deadline`) or until the group has failed (returns its error: a dead rank may have held
/// the lock). Additional errors of get, put and accumulate: invalid (rank, type, a range outside the array,
/// null), unsupported (GPU memory).
class OURO_API Window {
 public:
  /// Collective. Exposes a copy of `initial`. Errors, on every rank: invalid (counts or types that differ,
  /// null), unsupported (GPU memory), resource.
  static Result<Window> create(Group&, CView initial);

  int rank() const;           ///< the caller's rank in the group
  int size() const;           ///< number of ranks in the group
  std::size_t count() const;  ///< number of elements of each array
  DType dtype() const;        ///< type of each element

  /// Reads elements offset .. offset + out.count of that rank's array.
  Status get(int rank, View out, std::size_t offset = 0) const;
  /// Replaces elements offset .. offset + in.count of that rank's array.
  Status put(int rank, CView in, std::size_t offset = 0) const;
  /// array = array (op) in, from `offset`. Any reduction but avg; premulsum adds in * its factor.
  Status accumulate(int rank, CView in, ReduceOp = ReduceOp::sum, std::size_t offset = 0) const;
  /// put() to this rank's own array.
  Status publish(CView in) const { return put(rank(), in); }
  /// The number of times that rank's array has been written.
  Result<std::uint64_t> version(int rank) const;
  /// Collective: every call made before it on any rank is visible to all calls after it.
  Status fence() const;

  struct OURO_HIDDEN State;
  explicit Window(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library
  const State& state() const { return *state_; }                       ///< for the library

 private:
  std::shared_ptr<State> state_;
};

/// x <- keep x + (1 - keep) sum of w_d x_d, with normalised weights, in one pass: computed in double for
/// double, else in float, rounded once. Donors' arrays are read as of one moment and not changed. An array
/// with weight 0 is left out, whatever it holds; with keep = 0, so is x. Errors: invalid (no donors, one
/// twice or outside the group; weights that are not one per donor, negative, not finite or all 0; keep
/// outside [0, 1]; params of another count or type than the window), and those of Window.
OURO_API Status average_donors(Window&, std::span<const int> donors, std::span<const double> weights,
                               View params, double keep = 0);

}  // namespace ouro::train

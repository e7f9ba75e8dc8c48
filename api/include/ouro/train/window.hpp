/// One-sided access to other ranks' arrays, for averaging that waits for nobody. For users.
/// @file
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Each rank of a group shows one array, alike in count and type. Others read, write and add to it while its
/// owner does something else: no call but `create` and `fence` needs the other side. What is shown is the
/// window's own copy, so that training goes on in private memory and nobody sees parameters that are half
/// updated. Each array has a lock: a call sees, and leaves, whole arrays (or the part that it names). Ranks
/// of one host, memory of the host. Calls are thread-safe. A call waits for the lock until the group's
/// deadline (`deadline`), or until the group has failed (its error: who died may have held it). Errors of
/// get, put and accumulate also: invalid (rank, type, a range that leaves the array, null), unsupported
/// (memory of a GPU).
class OURO_API Window {
 public:
  /// Collective. Shows `initial`. Errors, on every rank: invalid (counts or types that differ, null),
  /// unsupported (memory of a GPU), resource.
  static Result<Window> create(Group&, CView initial);

  int rank() const;           ///< of the caller in the group
  int size() const;           ///< ranks of the group
  std::size_t count() const;  ///< elements of each array
  DType dtype() const;        ///< of each element

  /// Elements offset .. offset + out.count of that rank's array.
  Status get(int rank, View out, std::size_t offset = 0) const;
  /// Replaces elements offset .. offset + in.count of that rank's array.
  Status put(int rank, CView in, std::size_t offset = 0) const;
  /// there = there (op) in. Any reduction but avg; premulsum adds in * its factor.
  Status accumulate(int rank, CView in, ReduceOp = ReduceOp::sum, std::size_t offset = 0) const;
  /// put to this rank's own array.
  Status publish(CView in) const { return put(rank(), in); }
  /// How often that rank's array was written.
  Result<std::uint64_t> version(int rank) const;
  /// Collective: all calls that any rank made before it are seen by all calls after it.
  Status fence() const;

  struct OURO_HIDDEN State;
  explicit Window(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library
  const State& state() const { return *state_; }                       ///< for the library

 private:
  std::shared_ptr<State> state_;
};

/// x <- keep x + (1 - keep) sum of w_d x_d, weights normalised, in one pass: double for double, else float,
/// rounded once. Donors' arrays are as one moment has them, and are not changed. A weight of 0 leaves its
/// array out, whatever it holds; so does keep = 0. Errors: invalid (no donors, one twice or outside the
/// group; weights that are not one a donor, negative, not finite or all 0; keep outside [0, 1]; params unlike
/// the window), and those of Window.
OURO_API Status average_donors(Window&, std::span<const int> donors, std::span<const double> weights,
                               View params, double keep = 0);

}  // namespace ouro::train

// Memory of all ranks as the verifier models it: inputs and outputs as cells, with the ranks that access them
// and when. Used by verifier.cc.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/flow/expressions.h"
#include "tests/kernels/flow/state.h"

namespace ouro::flow {

class Memory {
 protected:
  Memory(const Program& p, Setting s)
      : p_(p),
        s_(s),
        n_(p.size),
        rounds_(p.pipelined ? 1 : p.rounds),
        keys_(rounds_ * p.chunks),
        cut_(p.cut()),
        expr_(n_, keys_),
        ranks_(index(n_)),
        cells_(index(2 * n_ * keys_)) {
    for (int r = 0; r < n_; ++r) {
      for (int key = 0; key < keys_; ++key) {
        if (has_input(r, key)) input(r, key).value = {expr_.leaf(r, key), Kind::raw};
      }
    }
  }

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  static std::uint64_t bit(int r) { return std::uint64_t{1} << r; }
  std::uint64_t everyone() const { return n_ == 64 ? ~std::uint64_t{0} : bit(n_) - 1; }
  std::string fail(int r, const std::string& what) {
    const Rank& me = ranks_[index(r)];
    if (error_.empty()) {
      error_ = what + " (rank " + std::to_string(r) + ", round " + std::to_string(me.round) + ", step " +
               std::to_string(me.step) + ")";
    }
    return error_;
  }
  bool broken(int r, const std::string& what) {
    fail(r, what);
    return false;
  }

  // By key or chunk: keys continue counting from round to round.
  bool has_input(int r, int key) const { return flow::has_input(p_, r, key % cut_.per_round); }
  bool has_output(int r, int key) const { return flow::has_output(p_, r, key % cut_.per_round); }
  int key_of(int r, int c) const { return ranks_[index(r)].round * p_.chunks + c; }

  // The first half of the cells are inputs, and also the outputs that share memory with them.
  Cell& input(int r, int key) {
    if (s_.aliasing == Aliasing::first_block && p_.collective == Collective::gather && r == p_.root) key -= r;
    return cells_[index(r * keys_ + key)];
  }
  Cell& output(int r, int key) {
    if (s_.aliasing == Aliasing::separate) return cells_[index((n_ + r) * keys_ + key)];
    if (s_.aliasing == Aliasing::first_block && p_.collective == Collective::scatter && r == p_.root)
      key -= r;
    return cells_[index(r * keys_ + key)];
  }
  /// Rank `by` reads or writes a cell: between two barriers, no other rank may then write it.
  bool touch(Cell& cell, int by, bool write) {
    const int epoch = ranks_[index(by)].barriers;
    if (cell.writer != kNobody && cell.write_epoch == epoch && cell.writer != by) return broken(by, "race");
    if (write && cell.reader != kNobody && cell.read_epoch == epoch && cell.reader != by)
      return broken(by, "race");
    if (write) {
      cell.writer = static_cast<std::int16_t>(by);
      cell.write_epoch = epoch;
    } else {
      const bool shared = cell.reader != kNobody && cell.read_epoch == epoch && cell.reader != by;
      cell.reader = static_cast<std::int16_t>(shared ? kEveryone : by);
      cell.read_epoch = epoch;
    }
    return true;
  }
  bool read_input(int by, int owner, int c, Value& v) {
    if (!has_input(owner, c)) return broken(by, "reads an input that is not there");
    const int key = key_of(by, c);
    Cell& cell = input(owner, key);
    if (!touch(cell, by, false)) return false;
    v = cell.value;
    if (v.kind != Kind::raw || v.expr != expr_.leaf(owner, key))
      return broken(by, "reads an overwritten input");
    return true;
  }
  bool store(int by, int owner, int c, Value v) {
    if (!has_output(owner, c)) return broken(by, "stores into an output that is not there");
    Cell& cell = output(owner, key_of(by, c));
    if (cell.stored) return broken(by, "stores an output twice");
    // Otherwise it is a copy onto itself.
    const bool moved = cell.value.kind != v.kind || cell.value.expr != v.expr;
    if (moved && !touch(cell, by, true)) return false;
    cell.value = v;
    cell.stored = true;
    return true;
  }

  /// Remote accesses must precede a barrier that their owner has passed. "" if all do.
  std::string check_lifetimes() const {
    for (int r = 0; r < n_; ++r) {
      for (int half = 0; half < 2; ++half) {
        for (int key = 0; key < keys_; ++key) {
          const Cell& cell = cells_[index((half * n_ + r) * keys_ + key)];
          if ((cell.reader != kNobody && cell.reader != r && cell.read_epoch >= ranks_[index(r)].barriers) ||
              (cell.writer != kNobody && cell.writer != r && cell.write_epoch >= ranks_[index(r)].barriers)) {
            return "memory of rank " + std::to_string(r) + " is used after it may have left";
          }
        }
      }
    }
    return "";
  }

  const Program& p_;
  const Setting s_;
  const int n_, rounds_, keys_;
  const Cut cut_;
  Expressions expr_;
  std::vector<Rank> ranks_;
  std::string error_;  // the first error

 private:
  std::vector<Cell> cells_;
};

}  // namespace ouro::flow

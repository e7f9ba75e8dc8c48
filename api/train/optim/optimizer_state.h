// The state of one parameter of an optimiser, on the host or on a device, and the saved form of all states.
// Used by optimizer.cc.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "api/train/optim/cohort.h"

namespace ouro::train {

/// A block of memory: the rule's arrays and the master copy, each 64-byte aligned.
struct OptimizerState {
  using Map = std::map<std::string, std::shared_ptr<OptimizerState>>;  // by parameter name
  /// Properties that a saved state must share with the optimiser that loads it: family, window,
  /// number of arrays.
  struct Kind {
    std::uint32_t family = 0, accum_iter = 1, arrays = 0;
    friend bool operator==(const Kind&, const Kind&) = default;
  };

  DType dtype = DType::f32;
  std::size_t count = 0;
  int arrays = 0;
  bool master = false;
  Device device;
  std::int64_t host_step = 0;  // steps taken, unless a cohort counts them

  /// Makes a state of zeros on the parameter's device.
  static Result<std::shared_ptr<OptimizerState>> make(const View& parameter, int arrays, bool master);
  /// Initialises the master copy from the parameter, which nothing may be writing.
  Status start_master(const View& parameter);
  Status move_to(Device);
  /// Array k; k = arrays is the master copy.
  std::byte* array(int k) const { return memory_.data() + static_cast<std::size_t>(k) * stride(); }
  std::size_t array_bytes() const { return count * size_of(wide(dtype)); }
  /// Counts the steps on a device, from the first one there. Accessed only by the optimiser's own thread.
  const std::shared_ptr<Cohort>& cohort() const { return cohort_; }
  void join(std::shared_ptr<Cohort>);
  /// Leaves the cohort: the state counts alone again, starting from the cohort's count.
  void leave();
  /// Reads the steps taken, and a copy of the arrays and the master, concatenated without gaps.
  Status read(std::int64_t* step, Bytes* arrays) const;
  Status write(std::int64_t step, CBytes arrays);

 private:
  static constexpr std::size_t kAlign = 64;
  std::size_t stride() const { return (array_bytes() + kAlign - 1) / kAlign * kAlign; }
  int all_arrays() const { return arrays + (master ? 1 : 0); }
  std::size_t bytes() const {
    // Avoids an allocation of zero bytes.
    return std::max(kAlign, static_cast<std::size_t>(all_arrays()) * stride());
  }
  Status allocate(Device);

  ZeroedBytes memory_;
  std::shared_ptr<Cohort> cohort_;
};

/// Precondition: no step is running. An accumulator that counts as zero is written as zeros.
Result<Bytes> write_states(const OptimizerState::Kind&, double lr, const OptimizerState::Map&);
/// The loaded states are on the host until they are moved. `invalid`: damaged, or of another kind.
Status read_states(CBytes, const OptimizerState::Kind&, double* lr, OptimizerState::Map*);

}  // namespace ouro::train

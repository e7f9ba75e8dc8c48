// Selection: which algorithm serves a call, and why. Used by group (on each call) and explain.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/core/link_view.h"
#include "runtime/plan/operation.h"
#include "runtime/plan/rules.h"

namespace ouro::rt {

struct Choice {
  flow::Algorithm algorithm{};
  bool staging = false;  ///< its flow runs over staging buffers
  /// Use the zero-copy flow instead if all buffers turn out to be registered.
  bool try_zero_copy = false;
  /// Use pull instead if all buffers are on huge pages and all ranks may read each other's memory.
  bool try_pull = false;
  bool streams = false;  ///< outputs are written past the caches
  bool forced = false;
  /// The part of the choice that must be equal on all ranks, in the encoding of signatures.
  std::uint8_t code() const {
    return static_cast<std::uint8_t>((static_cast<int>(algorithm) + 1) |
                                     (try_zero_copy ? Signature::kZeroCopy : 0) |
                                     (try_pull ? Signature::kPull : 0));
  }
};

/// Bytes of a call's region or block, of the largest if blocks are uneven: the same on all ranks, whatever
/// their own share is.
std::size_t unit_bytes(const Operation&, int rank, int size);

/// The rules that apply to a group of `size` ranks on one host, or on several.
class Selector {
 public:
  /// `enough_cores`: must be the same on all ranks, on all hosts. `stream_bytes`: see Rules. `job_algorithm`:
  /// OURO_ALGO, for all collectives that have an algorithm of this name; or "".
  Selector(const Rules&, int size, int hosts, bool enough_cores, std::size_t stream_bytes,
           std::string job_algorithm);

  /// Errors: invalid, if the caller names an algorithm, or the job names one that this collective has, that
  /// cannot serve the call; the text gives the reason, and the algorithms that can. The choice is the same on
  /// all ranks that agree on the call, except for `streams`, which each rank chooses for itself. `why`, if
  /// given, is set unless the collective has a single flow.
  Status select(const Operation&, int rank, bool canonical, Choice*, std::string* why = nullptr) const;
  /// Whether the job forces the algorithm of a collective: its calls are then executed one by one.
  bool forces(const Operation&) const;
  /// OURO_ALGO as it was when the group was made, or "".
  std::string job_algorithm() const { return job_algorithm_ ? std::string(flow::name(*job_algorithm_)) : ""; }

 private:
  struct Row {
    std::size_t max_bytes;
    flow::Algorithm algorithm;
    std::string reason;
  };
  struct Rows {
    std::vector<Row> staged, registered,
        others;  // others: for buffers that are not registered, including pull
  };
  const Row* find(const std::vector<Row>&, const Operation&, std::size_t bytes, bool canonical,
                  bool aliased) const;
  /// Why an algorithm cannot serve a call with `bytes` per region or block; nullptr if it can.
  const char* obstacle(const Operation&, std::size_t bytes, bool canonical, flow::Algorithm,
                       bool aliased) const;
  bool serves(const Operation& o, std::size_t bytes, bool canonical, flow::Algorithm a, bool aliased) const {
    return obstacle(o, bytes, canonical, a, aliased) == nullptr;
  }
  Status refuse(const std::string& forced, const char* why, const Operation&, std::size_t bytes,
                bool canonical, bool aliased) const;
  std::array<Rows, kCollectives> rows_;
  int size_, hosts_;
  std::size_t stream_bytes_;
  std::optional<flow::Algorithm> job_algorithm_;
};

}  // namespace ouro::rt

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

/// Bytes that all ranks together read and write in one call, from which outputs are written past the caches.
/// The application reads outputs that were written past the caches from memory. Writing them so pays off only
/// if they would not fit into the caches anyway, and would evict lines of others.
struct StreamLimits {
  std::size_t staged = 0, by_reference = 0;
  std::size_t from_root = 0;  ///< of broadcast and scatter, staged or by reference: a rank reads or writes
  /// The same for all flows: as measured (OURO_TUNE) or set (OURO_STREAM_BYTES).
  static constexpr StreamLimits uniform(std::size_t bytes) { return {bytes, bytes, bytes}; }
  /// For outermost caches of so many bytes in all. The factors were measured where two cores share one cache
  /// and where they do not (bench/results/measured.md).
  static constexpr StreamLimits of_caches(std::size_t bytes) { return {8 * bytes, 2 * bytes, bytes}; }
};

/// Posts in staging buffers.
struct PostRules {
  bool ring = false;      ///< they may use the ring; must be the same on all ranks
  bool built_in = false;  ///< those of large buffers are copied by the built-in kinds, as on the ring
};

struct Choice {
  flow::Algorithm algorithm{};
  bool staging = false;  ///< its flow runs over staging buffers
  /// Use the zero-copy flow instead if all buffers turn out to be registered.
  bool try_zero_copy = false;
  /// Use pull instead if all buffers are on huge pages and all ranks may read each other's memory.
  bool try_pull = false;
  bool pull_any_pages = false;  ///< also if they are on small pages
  /// This rank declines zero copy when the ranks agree on a flow: the row is for calls in place, and this
  /// call is not.
  bool declines_zero_copy = false;
  /// Outputs are written past the caches: by the selected flow, and by the flows by reference that may
  /// replace it.
  bool streams = false, streams_by_reference = false;
  bool ring = false;      ///< posts in staging buffers use the ring
  bool built_in = false;  ///< posts are copied by the built-in kinds, not by those for slots
  bool forced = false;
  /// The part of the choice that must be equal on all ranks, in the encoding of signatures.
  std::uint8_t code() const {
    return static_cast<std::uint8_t>((static_cast<int>(algorithm) + 1) |
                                     (try_zero_copy ? Signature::kZeroCopy : 0) |
                                     (try_pull ? Signature::kPull : 0) | (ring ? Signature::kRing : 0));
  }
};

/// Bytes of a call's region or block, of the largest if blocks are uneven: the same on all ranks, whatever
/// their own share is.
std::size_t unit_bytes(const Operation&, int rank, int size);

/// The rules that apply to a group of `size` ranks on one host, or on several.
class Selector {
 public:
  /// `enough_cores`: must be the same on all ranks, on all hosts. `job_algorithm`: OURO_ALGO, for all
  /// collectives that have an algorithm of this name; or "".
  Selector(const Rules&, int size, int hosts, bool enough_cores, StreamLimits, PostRules,
           std::string job_algorithm);

  /// Errors: invalid, if the caller names an algorithm, or the job names one that this collective has, that
  /// cannot serve the call; the text gives the reason, and the algorithms that can. The choice is the same on
  /// all ranks that agree on the call, except for the two `streams`, which each rank chooses for itself.
  /// `why`, if given, is set unless the collective has a single flow.
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
    bool in_place, any_pages;
  };
  struct Rows {
    std::vector<Row> staged, registered,
        others;  // others: for buffers that are not registered, including pull
  };
  const Row* first_row(const std::vector<Row>&, const Operation&, std::size_t bytes, bool canonical,
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
  StreamLimits stream_limits_;
  PostRules posts_;
  std::optional<flow::Algorithm> job_algorithm_;
};

}  // namespace ouro::rt

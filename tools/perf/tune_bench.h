// The objects that the tuner times with: a context for each setting, a group for each algorithm, buffers of
// both kinds. Used by the tuner's program.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"
#include "runtime/context/context.h"
#include "runtime/plan/select.h"
#include "tools/cli/output.h"
#include "tools/perf/check.h"
#include "tools/perf/options.h"
#include "tools/perf/race.h"
#include "tools/perf/tune_rules.h"

namespace ouro::perf {

/// The buffers of a call from one buffer into the other.
struct Pair {
  Buffer send, recv;
  static Result<Pair> make(Context&, std::size_t bytes, bool registered);
};

/// Every member is collective; all ranks obtain the same figures and the same rows. Rank 0 prints.
class TuneBench {
 public:
  static constexpr double kMargin = 0.03;  ///< a smaller lead counts as noise: the built-in choice is kept

  static constexpr double kDisturbed = 0.06;  ///< tolerated share of the processors taken by other programs

  /// `outer` is the context in which the ranks have met; nothing is timed in it.
  TuneBench(const Options& o, Context& outer) : options_(o), outer_(outer) {}

  /// Finds the threshold of non-temporal stores: times always against never using them, in all-reduces of
  /// growing size. `old`: the value in the existing file; only the value of rank 0, which has read the
  /// file, is used.
  Result<std::size_t> calibrate(std::size_t old);
  /// Makes the context in which algorithms are timed. 0: the library's default threshold.
  Status enter(std::size_t stream_bytes);
  /// The rows of a collective, for private and for registered buffers. Call after enter().
  Result<std::vector<rt::Rule>> tune(Kind);
  Result<std::vector<rt::Rule>> tune_barrier();
  Status close() { return context_ ? context_->close() : Status(); }

  std::size_t wrong() const { return wrong_; }  ///< wrong elements, over all ranks and checks
  int races() const { return races_; }
  int disturbed() const { return disturbed_; }  ///< races during which the machine was never idle enough
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  bool enough_cores() const { return context_->impl()->cores().enough_here(); }
  int size() const { return outer_.world_size(); }
  template <class... A>
  void print(fmt::format_string<A...> text, A&&... a) const {
    if (outer_.rank() != 0) return;
    tools::print(text, std::forward<A>(a)...);
  }

 private:
  /// Makes a context of the same ranks with OURO_STREAM_BYTES as given; empty: not set.
  Result<Context> join(const std::string& stream_bytes);
  /// Sets an environment variable while `f` runs: once if the ranks are threads of one process, and never
  /// while another rank reads it.
  Status with_variable(const char* name, const std::string& value, const std::function<Status()>& f);
  Status verify(const Call&, const Pair&, Group&, std::string_view who);
  /// A race on an otherwise idle machine: repeated, up to a limit, while other programs take much of the
  /// processors; the least disturbed attempt counts. If all were disturbed, its result decides nothing.
  struct Raced {
    std::vector<Trial> trials;
    bool quiet = false;
  };
  Result<Raced> quiet_race(std::span<const Runner>, std::size_t keep);
  std::vector<flow::Algorithm> able(const rt::Operation&, bool registered) const;
  std::vector<std::size_t> size_steps(Kind) const;
  Result<std::size_t> best(const Call&, const Pair&, std::span<const flow::Algorithm>, std::size_t usual);
  Result<Winner> winner_at(Kind, std::size_t bytes, bool registered, std::span<const Winner> staged);
  Result<std::vector<Winner>> winners(Kind, bool registered, std::span<const Winner> staged);
  Group& group_for(flow::Algorithm a) { return groups_.at(static_cast<int>(a)); }
  rt::Cores cores() const { return enough_cores() ? rt::Cores::enough : rt::Cores::fewer; }

  const Options& options_;
  Context& outer_;
  std::optional<Context> context_;
  /// A group for each algorithm, made with OURO_ALGO set to that algorithm's name.
  std::map<int, Group> groups_;
  std::optional<Pair> private_, registered_;
  bool pulls_ = false;  ///< all ranks may read each other's private buffers, and these are on huge pages
  std::optional<rt::Selector> built_in_;
  std::size_t wrong_ = 0;
  int races_ = 0, disturbed_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::uint64_t seed_ = 1;
};

}  // namespace ouro::perf

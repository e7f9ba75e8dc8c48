// Outlet: what goes to one descriptor, written by a thread of its own, so that nobody waits for a slow
// reader. Used by the console of the launcher and by the agent.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::run {

/// A descriptor that other processes share cannot be made non-blocking without changing it for them, and poll
/// promises nothing for a terminal or a file; hence the thread. What is added is written in order, in pieces
/// of at most PIPE_BUF bytes that are never cut inside one add, if that is not longer: lines stay whole among
/// the lines of other processes.
class Outlet {
 public:
  static constexpr std::size_t kFull = std::size_t{1} << 20;  ///< bytes

  /// Writes to a duplicate of `fd`. Errors: resource.
  static Result<std::unique_ptr<Outlet>> open(int fd);
  /// Waits for nobody: what is not written is dropped, and a thread that is stuck in write() stays behind.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Takes it without waiting, even where full.
  void add(std::string_view text);
  /// More than kFull bytes wait: whoever reads from somewhere to write here should stop, until less than half
  /// of it waits.
  bool full() const;
  std::size_t waiting() const;  ///< bytes that are still to be written
  int broken() const;           ///< errno of the write that failed; nothing is written after it. 0: none

  /// Readable when something above has changed; `hear` makes it unreadable.
  const Fd& news() const;
  void hear();

 private:
  class State;
  explicit Outlet(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace ouro::run

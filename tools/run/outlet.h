// Outlet: output to one descriptor, written by a thread of its own, so that no caller waits for a slow
// reader. Used by the console of the launcher and by the agent.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace ouro::run {

/// A descriptor that other processes share cannot be made non-blocking without changing it for them, and poll
/// guarantees nothing for a terminal or a file; hence the thread. Text is written in the order in which it
/// was added, in pieces of at most PIPE_BUF bytes. The text of one add() that fits into PIPE_BUF is never
/// split, so lines are not broken up by the lines of other processes.
class Outlet {
 public:
  static constexpr std::size_t kFull = std::size_t{1} << 20;  ///< bytes

  /// Writes to a duplicate of `fd`. Errors: resource.
  static Result<std::unique_ptr<Outlet>> open(int fd);
  /// Never blocks: unwritten text is dropped, and a thread that is stuck in write() is left behind.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Queues the text without blocking, even if full().
  void add(std::string_view text);
  /// More than kFull bytes are pending. The caller should stop reading its source until less than half of
  /// kFull is pending.
  bool full() const;
  std::size_t waiting() const;  ///< bytes that are not yet written
  int broken() const;  ///< errno of the write that failed, after which nothing more is written; 0: none

  /// Becomes readable when any of the above changes; reset_news() resets it.
  const Fd& news() const;
  void reset_news();

 private:
  class State;
  explicit Outlet(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace ouro::run

// One agent as the launcher sees it: its process, the pipes to it, and what it has sent so far. Used
// by remote.cc.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "tools/run/child.h"
#include "tools/run/hosts.h"
#include "tools/run/lines.h"
#include "tools/run/messages.h"

namespace ouro::run {

class AgentLink {
 public:
  enum class State { called, connected, ready, running, over };

  /// Receives what an agent sends. `on_message` may close the link.
  class Audience {
   public:
    virtual ~Audience() = default;
    virtual void on_message(AgentLink& agent, const Message& message) = 0;
    /// A line of the agent's standard error, or a line that a remote shell prints before the
    /// agent's greeting.
    virtual void error_line(AgentLink& agent, std::string_view text) = 0;
    /// The agent sent something that is not a message; its output has been closed.
    virtual void garbled(AgentLink& agent, const std::string& text) = 0;
  };

  AgentLink(Host where, std::size_t node, int first_rank, Audience& audience);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Starts `command`. Holds an errno if the command cannot be executed.
  Result<std::optional<int>> call(const std::vector<std::string>& command, Patience patience);

  void send(const Message& message);
  void flush();         ///< writes pending bytes that the pipe did not take before
  void drain();         ///< reads a bounded number of messages, so that all hosts get their turn
  void drain_errors();  ///< reads lines of its standard error
  /// Call when its process has ended: reads the remaining output and reaps the process. Returns the ranks
  /// that had not ended.
  std::vector<int> bury();

  bool present() const { return child.pid != 0 && !child.ending; }
  bool unsent() const { return !outgoing_.empty() && in; }
  void append_alive(std::vector<int>& ranks) const;

  const Host host;
  const std::size_t node;  ///< index of the host in the job: 0 is the host of rank 0
  const int first_rank;
  State state = State::called;
  Child child;
  Fd in;                          ///< closed: no more orders can be sent, and the agent ends its ranks
  std::vector<char> alive;        ///< one entry for each of its ranks: 1 or 0
  bool held[2] = {false, false};  ///< whether the agent has the order to stop reading [0] output, [1] errors
  std::string last_error_line;

 private:
  Audience& audience_;
  std::string outgoing_;
  MessageReader reader_;
  LineSplitter errors_;
};

/// The path of ouro-run, the same here and on all hosts. Errors: invalid (a remote shell might misread the
/// path), resource.
Result<std::string> agent_program();

}  // namespace ouro::run

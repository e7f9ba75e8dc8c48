// One agent as the launcher sees it: its process, the pipes to it, what it has said so far. Used by
// remote.cc.
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

  /// Who hears what comes from an agent. `heard` may close the link.
  class Audience {
   public:
    virtual ~Audience() = default;
    virtual void heard(AgentLink& agent, const Message& message) = 0;
    /// A line of its standard error, or what a remote shell says before the agent greets.
    virtual void error_line(AgentLink& agent, std::string_view text) = 0;
    /// What came is no message; its output is closed.
    virtual void garbled(AgentLink& agent, const std::string& text) = 0;
  };

  AgentLink(Host where, std::size_t node, int first_rank, Audience& audience);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Starts `command`. An errno if it cannot be executed.
  Result<std::optional<int>> call(const std::vector<std::string>& command, Patience patience);

  void send(const Message& message);
  void flush();         ///< what the pipe has not taken yet
  void drain();         ///< messages; some at a time, so that all hosts have their turn
  void drain_errors();  ///< lines of its standard error
  /// Its process has ended: reads what is left and reaps it. The ranks that were still alive.
  std::vector<int> bury();

  bool present() const { return child.pid != 0 && !child.ending; }
  bool unsent() const { return !outgoing_.empty() && in; }
  void append_alive(std::vector<int>& ranks) const;

  const Host host;
  const std::size_t node;  ///< of the job: 0 is the host of rank 0
  const int first_rank;
  State state = State::called;
  Child child;
  Fd in;                          ///< closed: no more orders, and the agent ends its ranks
  std::vector<char> alive;        ///< of its ranks: 1 or 0
  bool held[2] = {false, false};  ///< told not to read more of output, of errors
  std::string last_error_line;

 private:
  Audience& audience_;
  std::string outgoing_;
  MessageReader reader_;
  LineSplitter errors_;
};

/// The path of ouro-run, here and on all hosts. Errors: invalid (a remote shell might misread it), resource.
Result<std::string> agent_program();

}  // namespace ouro::run

// HostInquiry: finds out whether a host whose line to rank 0 broke still lives. Used by the
// rendezvous server.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/network/net_line.h"

namespace ouro::rt {

/// Dials the leader of the host repeatedly until there is a verdict, or this object is destroyed. A line that
/// opens is a sign of life and is closed again: the host itself makes a new one to rank 0, which may take
/// seconds on a path that loses packets. Everything runs on the thread that runs the io_context.
class HostInquiry : public std::enable_shared_from_this<HostInquiry> {
 public:
  enum class Verdict : std::uint8_t {
    dead,        ///< nothing listens at its endpoint any more, or another program does
    silent,      ///< two attempts of 2.5 s and some round trips got no answer
    stays_away,  ///< it answers, or closes the connection, but makes no new line for about 20 s
  };
  /// `broken`: the line that broke. `done` is called once, never from inside start().
  HostInquiry(asio::io_context& io, std::string endpoint, Identity self, const Line& broken,
              std::function<void(Verdict)> done);
  void start() { ask(); }

 private:
  void ask();
  void on_answer(const Result<Line>&);

  asio::io_context& io_;
  const std::string endpoint_;
  const Identity self_;
  const int leader_;
  const Clock::duration patience_;
  std::function<void(Verdict)> done_;
  asio::steady_timer timer_;
  int attempts_ = 0, unanswered_ = 0;
};

}  // namespace ouro::rt

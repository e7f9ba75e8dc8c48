// The rendezvous of hosts: rank 0 gathers the member records of all ranks, each host's leader brings those of
// its own, and the table of all spreads along a tree of hosts. Used by bootstrap. Everything runs on the
// thread that runs the io_context; callbacks come from there, never from inside a call.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/network/net_line.h"
#include "transport/wire/net_frames.h"

namespace ouro::rt {

using wire::MemberRecord;
using TableCallback = std::function<void(Result<std::vector<MemberRecord>>)>;

struct RendezvousOptions {
  Identity identity;
  std::string place;  ///< server: "ip:port" to bind; client: where to dial; both: or "file:PATH"
  MemberRecord self;  ///< server: rank 0's own member record, whose settings count
  std::chrono::milliseconds deadline{300'000};
  std::chrono::milliseconds late_after{10'000};  ///< and as often again: a warning says who is missing
  int arity = 8;                                 ///< of the tree; how many copies of the table a host sends
};

/// After a failure those who come a moment later hear the reason, too, not a hang-up.
inline constexpr std::chrono::milliseconds kTellLatecomers{200};

/// On rank 0, which is also the leader of its host.
class RendezvousServer {
 public:
  /// With "file:PATH" it listens on `options.self.endpoint`'s address, port 0, and writes where atomically
  /// (mode 0600). Errors: those of LineListener; invalid (the member record, the place); resource (the file).
  static Result<std::unique_ptr<RendezvousServer>> open(asio::io_context&, RendezvousOptions);
  ~RendezvousServer();

  const std::string& endpoint() const;
  /// Another rank of this host, and how many there are as it says (default: as this rank says). `refused`
  /// hears why it was not taken; without it that ends the job.
  void bring(MemberRecord, std::function<void(Status)> refused = {}, std::uint32_t world = 0);
  /// A rank of this host has ended before the job was complete.
  void lost(int rank);
  /// A rank of any host has ended, as the launcher says: if it has not joined it will not.
  void absent(int rank, int code);
  /// Called once: with the table by rank (settings left out), or with what the other hosts hear too. Errors:
  /// mismatch (worlds or settings differ), never-joined, peer-dead.
  void async_table(TableCallback);
  /// All hosts have the table, or have gone. Until then the server must go on running; afterwards it tells
  /// latecomers that the job is closed for as long as it lives.
  bool served() const;

 private:
  class State;
  explicit RendezvousServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// On the leader of every other host. It dials, again and again with jitter, until somebody answers or the
/// deadline is over; a line that breaks is made anew. A file may be one of an earlier job: where it leads to
/// somebody else, it is read again.
class RendezvousClient {
 public:
  RendezvousClient(asio::io_context&, RendezvousOptions);
  ~RendezvousClient();

  /// As of the server; a rank that is refused ends this client unless `refused` is there to hear it.
  void bring(MemberRecord, std::function<void(Status)> refused = {}, std::uint32_t world = 0);
  void lost(int rank);
  /// Rank 0 has ended, as the launcher says.
  void root_absent(int code);
  /// As of the server. Errors also: refused (closed, wrong job, wrong secret, duplicate rank; both named),
  /// and never-joined where nobody answered: the text says what the last attempt saw.
  void async_table(TableCallback);
  /// A line of Purpose::table that came to this rank's own listener: another host fetches the table here.
  void serve(Line);
  /// All who are to fetch it here have the table, or have gone. Until then this object must go on running.
  bool served() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace ouro::rt

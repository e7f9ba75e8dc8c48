// The rendezvous of hosts: rank 0 gathers the member records of all ranks, the leader of each host brings
// those of its host, and the complete table spreads along a tree of hosts. Used by bootstrap. Everything runs
// on the thread that runs the io_context; callbacks run on that thread, never inside a call.
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
  MemberRecord self;  ///< server: rank 0's own member record, whose settings are the reference
  std::chrono::milliseconds deadline{300'000};
  std::chrono::milliseconds late_after{10'000};  ///< period of warnings that name missing ranks
  int arity = 8;                                 ///< of the tree: copies of the table that a host sends
};

/// How long after a failure ranks that arrive late receive the reason instead of a closed connection.
inline constexpr std::chrono::milliseconds kTellLatecomers{200};

/// The rendezvous on rank 0, which is also the leader of its host.
class RendezvousServer {
 public:
  /// With "file:PATH" it listens on `options.self.endpoint`'s address, port 0, and writes its endpoint to the
  /// file atomically (mode 0600). Errors: those of LineListener; invalid (the member record, the place);
  /// resource (the file).
  static Result<std::unique_ptr<RendezvousServer>> open(asio::io_context&, RendezvousOptions);
  ~RendezvousServer();

  const std::string& endpoint() const;
  /// Brings another rank of this host. `world`: the number of ranks that it claims (0: as many as this rank).
  /// `refused` is called with the reason if the rank is turned away; without it that ends the job.
  void bring(MemberRecord, std::function<void(Status)> refused = {}, std::uint32_t world = 0);
  /// A rank of this host has ended before the job was complete.
  void lost(int rank);
  /// The leader of a host reports that the job cannot form; ignored once it has formed.
  void give_up(const Status& why);
  /// The launcher says that a rank of any host has ended: if it has not joined, it will not.
  void absent(int rank, int code);
  /// The callback is called once: with the table, by rank (without settings), or with the failure that the
  /// other hosts receive, too. Errors: mismatch (worlds or settings differ), never-joined, peer-dead.
  void async_table(TableCallback);
  /// Whether every host has the table, or has ended. Until then the server must keep running; afterwards, for
  /// as long as it lives, it refuses ranks that arrive late because the job is closed.
  bool served() const;

 private:
  class State;
  explicit RendezvousServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// The rendezvous on the leader of every other host. Dials repeatedly, with jitter, until rank 0 answers or
/// the deadline is over, and replaces a line that breaks. A rendezvous file may be one of an earlier job: if
/// it leads to another program, it is read again.
class RendezvousClient {
 public:
  RendezvousClient(asio::io_context&, RendezvousOptions);
  ~RendezvousClient();

  /// As in the server; the refusal of a rank ends this client unless there is a `refused`.
  void bring(MemberRecord, std::function<void(Status)> refused = {}, std::uint32_t world = 0);
  void lost(int rank);
  /// As in the server, which is notified; `by` names the rank that has found it out (its rank, pid and host).
  void give_up(const MemberRecord& by, const Status& why);
  /// The launcher says that rank 0 has ended.
  void root_absent(int code);
  /// As in the server. Further errors: refused (closed, wrong job, wrong secret, duplicate rank, with both
  /// named), and never-joined if rank 0 does not answer: the text says how the last attempt ended.
  void async_table(TableCallback);
  /// Takes a line of Purpose::table from this rank's own listener: another host fetches the table here.
  void serve(Line);
  /// Whether every host that is to fetch the table here has it, or has ended. Until then this object must
  /// keep running.
  bool served() const;

 private:
  class State;
  std::shared_ptr<State> state_;
};

}  // namespace ouro::rt

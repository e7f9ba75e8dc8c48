// The network of a rank: its lines to ranks of other hosts. One control line to each (signs of life, replicas
// of control pages), and the fabric that carries the data. Made before the rank joins; used by bootstrap,
// context and groups.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/thread.h"
#include "runtime/health/replica.h"
#include "runtime/network/net_line.h"
#include "transport/net/fabric.h"

namespace ouro::transport {
class TcpFabric;
class UcxFabric;
}  // namespace ouro::transport

namespace ouro::rt {

class FrameStream;

struct NetworkOptions {
  wire::Nonce job{};
  int rank = 0, world = 1;
  std::uint32_t generation = 0;
  std::string rendezvous;      ///< "host:port", "ip:port" or "file:PATH"
  std::string host_id;         ///< ranks with the same share memory
  std::string fabric = "tcp";  ///< or ucx
  bool tls = false;
  int connections = 1;  ///< of the tcp fabric, to each peer
  bool checksums = true;
  std::chrono::milliseconds silent_warn{1000}, silent_fail{5000};
  std::chrono::milliseconds join{0};  ///< within which all ranks start
};

/// What happened to a rank of another host.
struct Loss {
  int rank = -1;
  Reason reason = Reason::peer_dead;
  std::string text, detector;
};

class Network {
 public:
  /// Errors: invalid (no secret, no usable interface, an address that makes no sense), peer-unresponsive (a
  /// name that nobody knows, for a minute), unsupported (a fabric that this build lacks or that does not
  /// encrypt), resource.
  static Result<std::unique_ptr<Network>> create(NetworkOptions);
  ~Network();

  const NetworkOptions& options() const { return options_; }
  asio::io_context& io() { return io_; }
  const Identity& identity() const { return identity_; }
  /// Where other hosts reach this rank, and what its fabric's address is.
  const std::string& endpoint() const { return listener_->endpoint(); }
  const wire::Bytes& address() const { return address_; }
  /// Puts what else others should know of this rank before the fabric's address.
  void prepend(std::span<const std::uint8_t> bytes) {
    address_.insert(address_.begin(), bytes.begin(), bytes.end());
  }
  /// The rendezvous with names resolved: "ip:port" or "file:PATH".
  const std::string& rendezvous_place() const { return place_; }
  /// What goes on running after the job has formed, to hand the table to others and to turn latecomers away:
  /// whether all have it, and who takes lines that ask for it.
  void keep(std::function<bool()> served, std::function<void(Line)> table_line);

  struct Remote {
    int rank = 0;
    std::string endpoint;
    wire::Bytes address;
    ControlPage* copy = nullptr;
  };
  struct Events {
    std::function<void(std::vector<Loss>)> lost;  ///< on the network's thread
    std::function<void()> news;                   ///< a copy has changed
    std::function<void(int)> fenced;              ///< this rank has gone on without us
  };
  /// The job has formed: from here on a thread runs the lines.
  void start(const ControlPage& mine, std::vector<Remote>, Events);
  /// Something on the page of this rank should be known to others soon.
  void kick();
  /// The others have agreed to go on without `rank`: it is told so if it comes back.
  void fence(int rank);
  /// Tells the last news and hangs up.
  void close();
  transport::Fabric& fabric() { return *fabric_; }

 private:
  struct RemotePeer;
  explicit Network(NetworkOptions);
  void taken(Line);
  Status make_fabric();
  Clock::time_point attempt(const RemotePeer&) const;
  static void note_attempt(RemotePeer&, const Status&);
  void dial_control(int rank);
  void dial_data(int rank);
  void adopt(RemotePeer&, Line, bool dialled);
  void adopt_data(RemotePeer&, Line, bool dialled);
  void hung_up(RemotePeer&, const std::shared_ptr<FrameStream>&, const Status& how);
  void heard(RemotePeer&, const wire::NetFrame&);
  void tick();
  void tell();
  void on_fabric_failure(int peer, const Status& why);
  void lose(int rank, Reason, std::string text, std::string detector);

  NetworkOptions options_;
  Identity identity_;
  std::string place_;
  wire::Bytes address_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer tick_, gather_;
  std::unique_ptr<LineListener> listener_;
  std::string interface_;
  std::vector<Line> early_;  // control and data lines that came before start()
  bool started_ = false;
  std::function<bool()> served_;
  std::function<void(Line)> table_line_;
  std::unique_ptr<ReplicaPublisher> publisher_;
  std::map<int, std::unique_ptr<RemotePeer>> remotes_;
  Events events_;
  std::vector<Loss> losses_;
  Clock::time_point last_tick_{};
  std::atomic<bool> kicked_{false};
  std::shared_ptr<transport::Fabric> fabric_;
  transport::TcpFabric* tcp_ = nullptr;  // one of the two
  transport::UcxFabric* ucx_ = nullptr;
  Thread thread_;
};

}  // namespace ouro::rt

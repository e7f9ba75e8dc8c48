// Network: the connections of a rank to other hosts, made before the rank joins. Used by bootstrap, context
// and groups.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/thread.h"
#include "runtime/network/control_lines.h"
#include "runtime/network/data_lines.h"
#include "runtime/network/network_options.h"
#include "runtime/network/remote_peers.h"
#include "transport/net/fabric.h"

namespace ouro::rt {

/// Checks that this build and this machine have a fabric, with the required security. Errors: unsupported.
Status fabric_usable(const std::string& fabric, bool tls);

/// The connections of one rank to the ranks of other hosts: a listener, control lines, a fabric that carries
/// the data, and the thread that serves them.
class Network {
 public:
  /// Errors: invalid (no secret, no usable interface, a malformed address), peer-unresponsive (a name that
  /// does not resolve for a minute), unsupported (a fabric that this build lacks or that does not
  /// encrypt), resource.
  static Result<std::unique_ptr<Network>> create(NetworkOptions);
  ~Network();

  const NetworkOptions& options() const { return options_; }
  asio::io_context& io() { return io_; }
  const Identity& identity() const { return identity_; }
  /// The address at which other hosts reach this rank, and that of its fabric.
  const std::string& endpoint() const { return listener_->endpoint(); }
  const wire::Bytes& address() const { return address_; }
  /// Prepends to the fabric's address bytes that others should know of this rank.
  void prepend(std::span<const std::uint8_t> bytes) {
    address_.insert(address_.begin(), bytes.begin(), bytes.end());
  }
  /// The rendezvous with names resolved: "ip:port" or "file:PATH".
  const std::string& rendezvous_place() const { return place_; }
  /// Keeps the rendezvous running after the job has formed, to hand the table to others and to turn
  /// latecomers away. `served`: whether all have the table; `table_line`: takes lines that ask for it.
  void keep(std::function<bool()> served, std::function<void(Line)> table_line);

  struct Events {
    std::function<void(std::vector<LostRank>)> lost;  ///< called on the network's thread, like the others
    std::function<void()> news;                       ///< a replica has changed
    std::function<void(int)> fenced;                  ///< the given rank continues without this one
  };
  /// Called when the job has formed: starts the thread that runs the lines.
  void start(const ControlPage& mine, std::vector<RemoteRank>, Events);
  /// Requests that the changes of this rank's page be sent soon.
  void kick() {
    if (control_) control_->kick();
  }
  /// The hosts to which data moves slowly, as of the last heartbeat. Thread-safe.
  std::vector<SlowHost> slow_hosts() const {
    return control_ ? control_->hosts().slow() : std::vector<SlowHost>();
  }
  /// Called when the others have agreed to continue without `rank`, which is notified, also if it
  /// connects again.
  void fence(int rank);
  /// From now on nothing is sent or received on any line, and none ends (OURO_FAULT).
  void cut();
  /// Sends the last changes of the page and hangs up.
  void close();
  transport::Fabric& fabric() { return *fabric_; }

 private:
  explicit Network(NetworkOptions);
  Status make_fabric();
  /// Hands an accepted line to the part that it is for.
  void take(Line);

  NetworkOptions options_;
  Identity identity_;
  std::string place_;
  wire::Bytes address_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<LineListener> listener_;
  std::string interface_;
  std::vector<Line> early_;  // control and data lines that arrived before start()
  bool started_ = false;
  std::function<bool()> served_;
  std::function<void(Line)> table_line_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<RemotePeers> peers_;
  std::unique_ptr<ControlLines> control_;  // from start() on
  std::unique_ptr<DataLines> data_;        // of the tcp fabric; others connect by themselves
  Thread thread_;
};

}  // namespace ouro::rt

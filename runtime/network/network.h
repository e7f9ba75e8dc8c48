// The network of a rank: made before the rank joins; used by bootstrap, context and groups.
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

/// Whether this build and this machine have a fabric, and it can be as secure as is asked. Errors:
/// unsupported.
Status fabric_usable(const std::string& fabric, bool tls);

/// The connections of one rank to the ranks of other hosts: a listener, control lines, a fabric that carries
/// the data, and the thread that serves them.
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

  struct Events {
    std::function<void(std::vector<Loss>)> lost;  ///< on the network's thread, as all of these
    std::function<void()> news;                   ///< a copy has changed
    std::function<void(int)> fenced;              ///< this rank has gone on without us
  };
  /// The job has formed: from here on a thread runs the lines.
  void start(const ControlPage& mine, std::vector<RemoteRank>, Events);
  /// Something on the page of this rank should be known to others soon.
  void kick() {
    if (control_) control_->kick();
  }
  /// The others have agreed to go on without `rank`: it is told so if it comes back.
  void fence(int rank);
  /// From now on nothing is said and nothing is heard on any line, and none ends (OURO_FAULT).
  void cut();
  /// Tells the last news and hangs up.
  void close();
  transport::Fabric& fabric() { return *fabric_; }

 private:
  explicit Network(NetworkOptions);
  Status make_fabric();
  /// A line that the listener has taken.
  void take(Line);

  NetworkOptions options_;
  Identity identity_;
  std::string place_;
  wire::Bytes address_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unique_ptr<LineListener> listener_;
  std::string interface_;
  std::vector<Line> early_;  // control and data lines that came before start()
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

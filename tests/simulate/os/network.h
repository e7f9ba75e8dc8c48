// The network between simulated hosts: paths that delay, lose or are cut, and TCP as its users see
// it: streams that are late or end, but are never out of order. Used by the calls of the system and
// by the faults.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulate/os/files.h"

namespace simulate {

/// The conditions for packets from one host to another.
struct Path {
  bool cut = false;
  Nanos delay = 50 * kMicro, jitter = 0;
  double loss = 0;  ///< probability that a segment arrives only after a retransmission
};

struct Address {
  int host = -1, port = 0;
  auto operator<=>(const Address&) const = default;
};

class TcpSocket;

/// One direction of a connection, seen from the sending end.
struct Flow {
  std::string queued;  ///< taken from the program, not yet sent
  std::size_t under_way = 0, unacked = 0;
  bool fin_asked = false, fin_sent = false;
  Nanos since = 0;   ///< since when the other end has not acknowledged what it should
  Nanos resend = 0;  ///< delay of the next attempt; 0: none is scheduled
  std::uint64_t timer = 0;
  Nanos last_arrival = 0;
};

struct End {
  Address at;
  TcpSocket* socket = nullptr;  ///< nullptr: closed
  Flow out;
  std::string in;
  std::size_t read = 0;  ///< bytes of `in` that were read
  bool fin_in = false;
  int error = 0;  ///< not yet reported to the program
  bool broken = false;
  Nanos user_timeout = 0, keep_idle = 0, keep_for = 0;
  Nanos heard = 0;
  std::size_t unread() const { return in.size() - read; }
};

struct Connection : std::enable_shared_from_this<Connection> {
  End ends[2];
  std::uint64_t number = 0;
};

class TcpSocket final : public File {
 public:
  ~TcpSocket() override = default;
  short ready() const override;
  void closed() override;

  Address own;
  enum class State : std::uint8_t { fresh, listening, connecting, connected } state = State::fresh;
  int connect_error = 0;
  std::uint64_t attempt = 0;
  std::size_t backlog = 0;
  std::deque<std::shared_ptr<TcpSocket>> accepted;  ///< not yet accepted by the program
  std::shared_ptr<Connection> connection;
  int side = 0;
  bool blocking = false;
  End& end() const { return connection->ends[side]; }

  int connect(Address to);
  long send(const void* data, std::size_t bytes);
  long receive(void* data, std::size_t bytes);
  int finish();  ///< shutdown(SHUT_WR)
};

class Network {
 public:
  explicit Network(int hosts);
  int hosts() const { return hosts_; }
  Path& path(int from, int to) { return paths_[static_cast<std::size_t>(from * hosts_ + to)]; }
  void cut(int from, int to, bool on);
  /// A reset forged by a machine between the two reaches one end, and a little later the other.
  void forge_reset(Random&, int a, int b);
  std::size_t connections() const { return all_.size(); }
  /// The maximum of the bytes in buffers of all connections at one time.
  std::size_t most_buffered = 0;

  std::size_t send_room = 256 << 10, receive_room = 256 << 10;
  std::map<Address, TcpSocket*> listeners;
  int next_port = 32768;

  std::shared_ptr<Connection> make(Address from, Address to);
  void reset(Connection&, int side, int error);  ///< that end is notified now
  void send_reset(Connection&, int to_side);     ///< the other host says that there is no such connection
  void transmit(Connection&, int side);
  void opened(Connection&, int side);  ///< that end has read, so it has room again
  void count();

 private:
  bool passes(int from, int to);
  void arrive(Connection&, int from_side, std::string data, bool fin);
  void acknowledge(Connection&, int side, std::size_t bytes);
  static constexpr Nanos kResend = 200 * kMilli;
  void wait_to_resend(Connection&, int side, Nanos pause = kResend);
  void resend(Connection&, int side);
  void look_at_idle(Connection&, int side);
  void probe(Connection&, int side, Nanos wait, Nanos left);
  void ask_other_end(Connection&, int side);

  int hosts_;
  std::vector<Path> paths_;
  std::vector<std::weak_ptr<Connection>> all_;
  std::uint64_t numbers_ = 0, arrivals_ = 0;
};
inline Network* network = nullptr;

}  // namespace simulate

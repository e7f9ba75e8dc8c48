// The network of a rank: its thread, and the assignment of lines to parts. See network.h;
// network_create.cc makes it.
#include "runtime/network/network.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <utility>

#include "runtime/core/log.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr std::chrono::milliseconds kFirstLines = 1500ms, kLastWords = 500ms, kServe = 2s;

/// Calls `idle` on the thread of `io` until it returns true, for at most `at_most`. An exception
/// counts as false.
template <class F>
void wait_for(asio::io_context& io, std::chrono::milliseconds at_most, F&& idle) {
  const auto end = Clock::now() + at_most;
  for (bool done = false; !done && Clock::now() < end;) {
    std::promise<bool> answer;
    auto said = answer.get_future();
    asio::post(io, [&] {
      bool is_idle = false;
      try {
        is_idle = idle();
      } catch (const std::exception&) {
        is_idle = false;  // there is no memory, perhaps: it is called again
      }
      answer.set_value(is_idle);
    });
    done = said.get();
    if (!done) std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

Network::Network(NetworkOptions options) : options_(std::move(options)), work_(io_.get_executor()) {}

Network::~Network() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
  fabric_.reset();  // link sets that linger in it notify the control lines at their end
}

void Network::keep(std::function<bool()> served, std::function<void(Line)> table_line) {
  served_ = std::move(served);
  table_line_ = std::move(table_line);
}

void Network::start(const ControlPage& mine, std::vector<RemoteRank> remotes, Events events) {
  peers_->when_lost(std::move(events.lost));
  for (RemoteRank& r : remotes) {
    fabric_->connect(r.rank, r.address);
    peers_->add(std::move(r));
  }
  control_ = std::make_unique<ControlLines>(
      io_, options_, identity_, interface_, *peers_, fabric_->exchange(), mine,
      ControlLines::Events{.news = std::move(events.news), .fenced = std::move(events.fenced)});
  asio::post(io_, [this] {
    started_ = true;
    for (Line& line : std::exchange(early_, {})) take(std::move(line));
    control_->start();
  });
  thread_ = Thread("ouro-net", [this] {
    OURO_INFO(PROXY, "thread ouro-net begins: connections to {} ranks", peers_->all().size());
    bool again = false;
    persist("the lines between hosts", [&] {
      if (std::exchange(again, true) && started_) control_->beat();  // an exception may have cut it short
      io_.run();
    });
  });
}

void Network::take(Line line) {
  if (line.purpose == Purpose::table) {
    if (table_line_) table_line_(std::move(line));
    return;
  }
  if (line.purpose == Purpose::join)
    return;  // rank 0 asks whether this rank lives: the handshake is the answer
  if (!started_) {
    if (early_.size() < 4 * static_cast<std::size_t>(options_.world)) early_.push_back(std::move(line));
    return;
  }
  RemotePeer* const peer = peers_->peer_of(line.peer_rank);
  if (!peer) return;
  if (line.purpose == Purpose::control) return control_->take(*peer, std::move(line));
  if (line.purpose == Purpose::data && data_ && !peer->lost) data_->take(*peer, std::move(line));
}

void Network::fence(int rank) {
  asio::post(io_, [this, rank] {
    if (RemotePeer* const peer = peers_->peer_of(rank)) control_->fence(*peer);
  });
}

void Network::cut() {
  fabric_->cut();
  asio::post(io_, [this] {
    listener_->ignore();
    control_->cut();
    if (data_) data_->cut();
  });
}

void Network::close() {
  if (!thread_.joinable()) return;
  wait_for(io_, kServe, [this] { return !served_ || served_(); });
  wait_for(io_, kFirstLines, [this] { return control_->met_all(); });
  wait_for(io_, kLastWords, [this] { return control_->say_goodbye(); });
  io_.stop();
  thread_.join();
}

}  // namespace ouro::rt

// A TCP relay that damages one byte in each of its first connections, like a network error that the checksum
// misses. Used by the rendezvous tests.
#pragma once
#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/network/net_address.h"

namespace ouro::rt {

class Relay {
 public:
  struct Flip {
    bool down;       ///< damages the server's data; else the client's
    std::size_t at;  ///< offset of the byte
  };
  /// The n-th connection gets the n-th flip; later connections are not damaged.
  Relay(const std::string& to, std::vector<Flip> flips) : to_(*parse_address(to)), flips_(std::move(flips)) {
    NetAddress at = *parse_address("127.0.0.1:0");
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)bind(listener_.get(), reinterpret_cast<sockaddr*>(&at.at), at.length);
    (void)listen(listener_.get(), 64);
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at.at), &at.length);
    endpoint_ = to_string(at);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stop_ = true;
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  int connections() const { return count_; }

 private:
  struct Pair {
    Fd client, server;
    std::size_t up = 0, down = 0;  // bytes relayed
    Flip flip{false, ~std::size_t{0}};
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
      for (const auto& p : pairs_)
        fds.push_back({p->client.get(), POLLIN, 0}), fds.push_back({p->server.get(), POLLIN, 0});
      if (poll(fds.data(), fds.size(), 10) <= 0) continue;
      std::vector<std::unique_ptr<Pair>> live;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        Pair& p = *pairs_[i];
        bool good = true;
        if (fds[1 + 2 * i].revents != 0) good = carry(p.client, p.server, &p.up, p.flip, false);
        if (good && fds[2 + 2 * i].revents != 0) good = carry(p.server, p.client, &p.down, p.flip, true);
        if (good) live.push_back(std::move(pairs_[i]));
      }
      pairs_ = std::move(live);
      if (fds[0].revents != 0) welcome();
    }
  }
  void welcome() {
    auto p = std::make_unique<Pair>();
    p->client = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    p->server = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!p->client || connect(p->server.get(), reinterpret_cast<const sockaddr*>(&to_.at), to_.length) != 0)
      return;
    if (const auto n = static_cast<std::size_t>(count_++); n < flips_.size()) p->flip = flips_[n];
    pairs_.push_back(std::move(p));
  }
  static bool carry(const Fd& from, const Fd& to, std::size_t* carried, const Flip& flip, bool down) {
    std::uint8_t bytes[4096];
    const ssize_t n = ::recv(from.get(), bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    const auto size = static_cast<std::size_t>(n);
    if (flip.down == down && flip.at >= *carried && flip.at < *carried + size)
      bytes[flip.at - *carried] ^= 0x10;
    *carried += size;
    return ::send(to.get(), bytes, size, MSG_NOSIGNAL) == n;
  }

  NetAddress to_;
  std::vector<Flip> flips_;
  Fd listener_;
  std::string endpoint_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::atomic<int> count_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ouro::rt

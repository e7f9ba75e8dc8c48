// Parts shared by the two sides of the rendezvous: work that ends with its owner, and the outcome that is
// delivered once. Used by rendezvous_server.cc and rendezvous_client.cc only.
#pragma once
#include <boost/asio/post.hpp>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/deadline.h"
#include "runtime/join/rendezvous.h"

namespace ouro::rt {

inline constexpr std::string_view kFilePlace = "file:";

class RendezvousSide : public std::enable_shared_from_this<RendezvousSide> {
 public:
  void async_table(TableCallback callback) {
    callback_ = std::move(callback);
    post([this] { deliver(); });
  }

 protected:
  explicit RendezvousSide(asio::io_context& io) : io_(io) {}
  ~RendezvousSide() = default;

  bool over() const { return complete_ || !outcome_.ok(); }
  /// Functions that are posted or timed keep this object alive until they run; those wrapped by while_open()
  /// do not. None of them does anything once this object is closed.
  template <class F>
  void post(F f) {
    asio::post(io_, [self = shared_from_this(), f = std::move(f)]() mutable {
      if (!self->closed_) f();
    });
  }
  template <class Rep, class Period, class F>
  void at(asio::steady_timer& timer, std::chrono::duration<Rep, Period> wait, F f) {
    timer.expires_at(deadline_after(wait));
    timer.async_wait([self = shared_from_this(), f = std::move(f)](error_code e) {
      if (!e && !self->closed_) f();
    });
  }
  template <class F>
  auto while_open(F f) {
    return [weak = weak_from_this(), f = std::move(f)](auto&& said) {
      if (const auto self = weak.lock(); self && !self->closed_) f(std::forward<decltype(said)>(said));
    };
  }
  /// Delivers the outcome, once there is one and a callback to take it.
  void deliver() {
    if (!over() || !callback_) return;
    post([this] {
      auto callback = std::exchange(callback_, nullptr);
      if (callback) outcome_.ok() ? callback(table_) : callback(outcome_);
    });
  }

  asio::io_context& io_;
  std::vector<MemberRecord> table_;  // by rank
  TableCallback callback_;
  Status outcome_;
  bool complete_ = false, closed_ = false;
};

}  // namespace ouro::rt

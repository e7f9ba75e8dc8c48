// Helpers that the tests of the ucx fabric share: a rank with a fabric and link sets, chunks whose content
// identifies them, waiting with a limit.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <thread>

#include "tests/timing.h"
#include "transport/net/ucx/ucx.h"

namespace ouro::transport {

using namespace std::chrono_literals;

/// Waits until `done`, for at most `limit`; returns whether it was done.
template <class Done>
bool eventually(Done&& done, std::chrono::milliseconds limit = test::kHang) {
  const auto end = Clock::now() + limit;
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

inline std::byte content(std::uint64_t link_set, std::uint64_t index, std::size_t at) {
  return static_cast<std::byte>(link_set * 31 + index * 7 + at + (at >> 8));
}

class Rank {
 public:
  explicit Rank(int rank, int world = 2, bool checks = false) : rank_(rank) {
    auto made = UcxFabric::create({.rank = rank,
                                   .world = world,
                                   .checks = checks,
                                   .devices = "lo",
                                   .patience = 300ms,
                                   .failed = [this](int peer, Status s) {
                                     std::lock_guard lock(mutex_);
                                     EXPECT_FALSE(failures_.contains(peer)) << "told twice";
                                     failures_[peer] = std::move(s);
                                   }});
    status_ = made.status();
    if (made.ok()) fabric_ = std::move(*made);
  }
  ~Rank() {
    for (const auto& [key, link_set] : link_sets_) fabric_->exchange().remove(key, false);
  }
  const Status& status() const { return status_; }
  UcxFabric& fabric() { return *fabric_; }
  void knows(const Rank& other) { fabric_->connect(other.rank_, other.fabric_->address()); }

  NetLink& open(std::uint64_t key, int peer, std::uint32_t slot_bytes, std::uint32_t slots = 8) {
    auto link_set = std::make_shared<LinkSet>();
    link_set->key = key;
    link_set->doorbell = &doorbell_;
    NetLink& link = *(link_set->links[peer] = std::make_unique<NetLink>(slot_bytes, slots));
    fabric_->exchange().add(link_set);
    link_sets_[key] = std::move(link_set);
    fabric_->kick(peer);
    return link;
  }
  std::weak_ptr<LinkSet> close(std::uint64_t key) {
    fabric_->exchange().remove(key, false);
    const std::weak_ptr<LinkSet> link_set = link_sets_.at(key);
    link_sets_.erase(key);
    return link_set;
  }

  /// Waits until c >= at_least, driving the fabric as a waiting rank does.
  bool await(const Counter& c, std::uint64_t at_least, std::chrono::milliseconds limit = test::kHang) {
    const auto end = Clock::now() + limit;
    fabric_->enter();
    for (int i = 0; load(c) < at_least && Clock::now() < end; ++i) {
      fabric_->progress();
      if (i > 100) fabric_->rest(1ms);
    }
    fabric_->leave();
    return load(c) >= at_least;
  }
  bool send(NetLink& link, std::uint64_t key, std::uint64_t index, std::size_t bytes, int peer) {
    const LinkView out = link.out();
    if (index >= out.slot_count && !await(*out.freed, index + 1 - out.slot_count)) return false;
    for (std::size_t i = 0; i < bytes; ++i) out.payload(index)[i] = content(key, index, i);
    out.header(index) = {index, key, bytes, static_cast<std::uint32_t>(bytes),
                         static_cast<std::int32_t>(index)};
    publish(*out.full, index + 1);
    fabric_->kick(peer);
    return true;
  }
  /// "" if the chunk arrived unchanged.
  std::string receive(NetLink& link, std::uint64_t key, std::uint64_t index, std::size_t bytes) {
    const LinkView in = link.in();
    if (!await(*in.full, index + 1)) return "chunk " + std::to_string(index) + " did not come";
    const SlotHeader h = in.header(index);
    std::string wrong;
    if (h.seq != index || h.signature != key || h.bytes != bytes || h.total != bytes) wrong = "wrong header";
    for (std::size_t i = 0; i < bytes && wrong.empty(); ++i)
      if (in.payload(index)[i] != content(key, index, i)) wrong = "wrong byte " + std::to_string(i);
    publish(*in.freed, index + 1);
    return wrong.empty() ? "" : wrong + " in chunk " + std::to_string(index) + " of " + std::to_string(bytes);
  }
  Status failure(int peer) {
    std::lock_guard lock(mutex_);
    const auto it = failures_.find(peer);
    return it == failures_.end() ? Status{} : it->second;
  }

 private:
  const int rank_;
  Status status_;
  Counter doorbell_{};
  std::map<std::uint64_t, std::shared_ptr<LinkSet>> link_sets_;
  std::mutex mutex_;
  std::map<int, Status> failures_;
  std::unique_ptr<UcxFabric> fabric_;  // destroyed first, because it makes callbacks
};

}  // namespace ouro::transport

// The state of the ucx fabric. Used by ucx.cc (data transfer) and ucx_peers.cc (connections and their end).
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/thread.h"
#include "transport/net/ucx/ucx.h"
#include "transport/net/ucx/ucx_worker.h"

namespace ouro::transport {

/// One endpoint per peer, and one worker.
class Ucx final : public UcxFabric {
 public:
  explicit Ucx(Options);
  ~Ucx() override;
  Status open();

  /// A byte that states which memory of devices this rank takes (Takes), and UCX's address.
  std::span<const std::uint8_t> address() const override { return address_; }
  void connect(int peer, std::span<const std::uint8_t> address) override;
  Exchange& exchange() override { return exchange_; }
  void progress() override;
  void rest(std::chrono::microseconds at_most) override;
  void kick(int peer) override;
  void moved(int peer, const NetLink::Move&) override;
  void drop(int peer) override;
  void cut() override;
  bool takes_device(int peer) override;
  const Status& device_ability() const override { return ability_; }
  std::uint64_t device_bytes_sent() const override { return device_sent_; }
  std::uint64_t device_bytes_received() const override { return device_received_; }

 private:
  struct Peer {
    Ucx* fabric = nullptr;
    int rank = -1;
    std::vector<std::uint8_t> address;
    bool takes_device = false;  // both ends do, and the same kind
    bool answered = false;      // a frame has arrived from it, so it is not connecting for the first time
    ucp_ep_h endpoint = nullptr;
    bool dropped = false, reported = false;
    Status broken;  // the reason why no data moves any more
    // A connection that ends is made anew, until the peer is dropped or no connection was possible
    // for too long.
    bool ended = false;           // the endpoint has to be closed
    bool resumed = false;         // chunks may be sent that have arrived already
    bool anew = false;            // a second endpoint was made
    std::string why;              // the reason why it ended
    Clock::duration pause{};      // before the next attempt; zero while the connection works
    Clock::time_point failing{};  // no attempt has succeeded since then
    Clock::time_point again{};    // time of the next attempt
  };
  /// An outgoing frame. UCX reads the header and the payload until it reports completion.
  struct Send {
    Ucx* fabric = nullptr;
    int peer = -1;
    bool under_way = false;
    Exchange::Outgoing out;
    std::vector<std::byte> copy;  // of a payload that its owner may free meanwhile
  };
  /// A payload that is being received by rendezvous: the peer writes it to its place, and may do so even
  /// after UCX has given up the transfer on this side. So the memory of a failed one is kept until the worker
  /// is destroyed.
  struct Receive {
    Ucx* fabric = nullptr;
    int peer = -1;
    NetHeader header;
    Exchange::Destination destination;
    std::list<Receive>::iterator self;
  };

  /// The memory of devices that a rank takes, sent before its address.
  enum class Takes : std::uint8_t { none, emulated, cuda };
  /// While one lives, the device is current in the calling thread, for calls in which UCX may use it.
  class OnDevice;

  Status ask_for_device();
  // Callers of the following hold the exchange's lock.
  bool advance();
  void push(Peer&);
  void push_all();
  bool connected(Peer&);
  Send* idle();
  void send(Peer&, Send*);
  void sent(Send*);
  ucs_status_t take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                    bool rendezvous);
  bool receive(int peer, const NetHeader&, Exchange::Destination, void* descriptor);
  void break_with(Peer&, Status);
  void ended(Peer&, std::string why);
  void resume(Peer&);
  void bury();
  void close(Peer&, unsigned flags = UCP_EP_CLOSE_FLAG_FORCE);
  void watch();

  const Options options_;
  Exchange exchange_;
  std::vector<std::uint8_t> address_;
  Takes takes_ = Takes::none;
  Status ability_;
  std::atomic<std::uint64_t> device_sent_{0}, device_received_{0};

  // The exchange's lock protects the following.
  std::vector<Peer> peers_;                   // by rank
  std::vector<std::unique_ptr<Send>> sends_;  // all that exist
  std::vector<Send*> idle_;                   // those that are not in flight
  std::list<Receive> receives_;
  std::vector<void*> closing_;
  int on_device_ = 0;  // transfers from or to memory of a device that have not ended
  bool any_broken_ = false;
  std::atomic<bool> cut_{false};  // written under the lock
  UcxWorker ucx_;                 // declared after what its callbacks use, so that it is destroyed first

  std::atomic<std::uint64_t> drives_{0};  // calls of progress by other threads
  Fd stop_;
  Thread thread_;
};

}  // namespace ouro::transport

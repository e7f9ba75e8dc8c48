// The ucx fabric: one context, one worker, an endpoint a peer. See ucx.h.
//
// Chunks go as eager active messages in one segment each: over TCP the rendezvous that UCX chooses by itself
// costs a round trip a chunk and was slower at every size, in spite of the copy that eager receipt adds.
#include "transport/ucx.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <thread>

#include "runtime/core/fd.h"
#include "runtime/core/log.h"
#include "transport/ucx_worker.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto kAside = 1ms;       // how often the own thread asks whether somebody drives
constexpr auto kNap = 100ms;       // the longest that it sleeps: bounds what a missed event costs, and an attempt to connect
constexpr int kBurst = 64;         // calls of progress in a row by the own thread
constexpr auto kFarewell = 200ms;  // for endpoints to go, at the end
constexpr auto kRecall = 500ms;    // for a send to leave memory that its owner wants back
constexpr auto kFirstAgain = 10ms, kLastAgain = 500ms;  // between attempts to connect anew

class Ucx final : public UcxFabric {
 public:
  explicit Ucx(Options);
  ~Ucx() override;
  Status open();

  std::span<const std::uint8_t> address() const override { return address_; }
  void connect(int peer, std::span<const std::uint8_t> address) override;
  Exchange& exchange() override { return exchange_; }
  void progress() override;
  void rest(std::chrono::microseconds at_most) override;
  void nudge(int peer) override;
  void moved(int peer, const Exchange::Move&) override;
  void drop(int peer) override;

 private:
  struct Peer {
    Ucx* fabric = nullptr;
    int rank = -1;
    std::vector<std::uint8_t> address;
    ucp_ep_h endpoint = nullptr;
    bool dropped = false, reported = false;
    Status broken;  // why nothing moves any more
    // A connection that ends is made anew, until the peer is given up or nothing has come of it for too long.
    bool ended = false;            // to be buried
    bool resumed = false;          // chunks may go that have arrived
    bool anew = false;             // a second endpoint was made
    std::string why;               // it ended
    Clock::duration pause{};       // before the next attempt; zero while all is well
    Clock::time_point failing{};   // since when there has been none
    Clock::time_point again{};     // of the next attempt
  };
  /// A frame on its way out. UCX reads the header and the payload until it says that it is done.
  struct Send {
    Ucx* fabric = nullptr;
    int peer = -1;
    bool under_way = false;
    Exchange::Outgoing out;
    std::vector<std::byte> copy;  // of what its owner may free meanwhile
  };
  /// A payload on its way in, by rendezvous: the peer writes it to its place, and may do so after UCX has
  /// given it up on this side. So the room of one that failed stays until the worker has gone.
  struct Receive {
    Ucx* fabric = nullptr;
    int peer = -1;
    NetHeader header;
    Exchange::Place place;
    std::list<Receive>::iterator self;
  };

  // All of these under the exchange's lock.
  void push(Peer&);
  void push_all();
  bool connected(Peer&);
  Send* idle();
  void send(Peer&, Send*);
  void sent(Send*);
  ucs_status_t take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                    bool rendezvous);
  void receive(int peer, const NetHeader&, Exchange::Place, void* descriptor);
  void break_with(Peer&, Status);
  void ended(Peer&, std::string why);
  void resume(Peer&);
  void bury();
  void close(Peer&, unsigned flags = UCP_EP_CLOSE_FLAG_FORCE);
  void watch();

  const Options options_;
  Exchange exchange_;
  std::vector<std::uint8_t> address_;

  // Under the exchange's lock.
  std::vector<Peer> peers_;                   // by rank
  std::vector<std::unique_ptr<Send>> sends_;  // all there are
  std::vector<Send*> idle_;                   // those not on their way
  std::list<Receive> receives_;
  std::vector<void*> closing_;
  bool any_broken_ = false;
  UcxWorker ucx_;  // below what its callbacks use, so that it goes first

  std::atomic<std::uint64_t> drives_{0};  // calls of progress by others than the own thread
  Fd stop_;
  std::thread thread_;
};

Ucx::Ucx(Options options)
    : options_(std::move(options)),
      exchange_(options_.world, options_.checks,
                [this](int peer, std::string text) {
                  break_with(peers_[static_cast<std::size_t>(peer)],
                             Status(Failure{.reason = Reason::data_corrupt,
                                            .text = std::move(text),
                                            .rank = peer,
                                            .detector = "checksum"}));
                }),
      peers_(static_cast<std::size_t>(options_.world)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    peers_[r].fabric = this;
    peers_[r].rank = static_cast<int>(r);
  }
}

Status Ucx::open() {
  if (!stop_) return {Reason::resource, fmt::format("eventfd: {}", std::strerror(errno))};
  const auto taken = [](void* self, const void* header, std::size_t header_bytes, void* data,
                        std::size_t bytes, const ucp_am_recv_param_t* p) {
    return static_cast<Ucx*>(self)->take(header, header_bytes, data, bytes,
                                         (p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  };
  OURO_TRY(ucx_.open(options_.world, options_.devices, taken, this));
  address_ = ucx_.address();
  if (address_.empty()) return {Reason::resource, "UCX gives this worker no address"};
  thread_ = std::thread([this] { watch(); });
  return {};
}

Ucx::~Ucx() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  if (!address_.empty()) {
    std::lock_guard lock(exchange_.lock());
    for (Peer& p : peers_) {
      // A good connection that is still being made is waited for: UCX 1.13 does not survive its sudden end.
      const bool good = p.broken.ok() && !std::exchange(p.dropped, true);
      close(p, good ? 0 : UCP_EP_CLOSE_FLAG_FORCE);
    }
    const auto end = Clock::now() + kFarewell;
    do {
      while (ucx_.progress() && Clock::now() < end) continue;
      bury();
    } while (!closing_.empty() && Clock::now() < end);
    // A worker must not go while somebody holds requests of it, done or not.
    for (void* request : closing_) ucx_->ucp_request_free(request);
    if (std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.anew; })) ucx_.abandon();
  }
}

void Ucx::connect(int peer, std::span<const std::uint8_t> address) {
  {
    std::lock_guard lock(exchange_.lock());
    peers_[static_cast<std::size_t>(peer)].address.assign(address.begin(), address.end());
  }
  nudge(peer);
}

void Ucx::drop(int peer) {
  std::lock_guard lock(exchange_.lock());
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.dropped = true;
  close(p);
}

/// What UCX reads it cannot be told to read elsewhere: it is awaited, and if that takes long the peer takes
/// nothing. What comes never lies where it has to be moved from (take).
void Ucx::moved(int peer, const Exchange::Move& m) {
  const auto reads = [&](const auto& s) { return s->under_way && s->out.payload == m.from; };
  const auto pending = [&] { return std::any_of(sends_.begin(), sends_.end(), reads); };
  const auto patience = Clock::now() + kRecall;
  while (pending() && Clock::now() < patience) ucx_.progress();
  if (!pending()) return;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  break_with(p, Status(Failure{.reason = Reason::peer_unresponsive,
                               .text = "it did not take a message that was given up here",
                               .rank = peer,
                               .detector = "ucx"}));
  bury();
  const auto end = Clock::now() + kFarewell;
  while (pending() && Clock::now() < end) ucx_.progress();
}

void Ucx::progress() {
  std::unique_lock lock(exchange_.lock(), std::try_to_lock);
  if (!lock) return;
  drives_.fetch_add(1, std::memory_order_relaxed);
  ucx_.progress();
  push_all();
  bury();
}

void Ucx::nudge(int peer) {
  std::lock_guard lock(exchange_.lock());
  if (peer == kEveryone)
    push_all();
  else
    push(peers_[static_cast<std::size_t>(peer)]);
  bury();
}

void Ucx::rest(std::chrono::microseconds at_most) {
  {
    std::lock_guard lock(exchange_.lock());
    if (!ucx_.arm()) return;
  }
  pollfd events{ucx_.events(), POLLIN, 0};
  const timespec slice{at_most.count() / 1'000'000, at_most.count() % 1'000'000 * 1000};
  ppoll(&events, 1, &slice, nullptr);
}

// ---- sending ---------------------------------------------------------------------------------------

void Ucx::push_all() {
  for (Peer& p : peers_)
    if (exchange_.talks_to(p.rank)) push(p);
}

void Ucx::push(Peer& p) {
  if (!connected(p)) return;
  for (;;) {
    Send* const s = idle();
    if (!exchange_.next(p.rank, &s->out)) return idle_.push_back(s);
    send(p, s);
    if (!p.endpoint || p.ended || !p.broken.ok()) return;
  }
}

Ucx::Send* Ucx::idle() {
  if (idle_.empty()) {
    sends_.push_back(std::make_unique<Send>());
    sends_.back()->fabric = this;
    return sends_.back().get();
  }
  Send* const s = idle_.back();
  idle_.pop_back();
  return s;
}

bool Ucx::connected(Peer& p) {
  if (p.dropped || p.address.empty() || !exchange_.talks_to(p.rank)) return false;
  if (!p.broken.ok()) {
    any_broken_ |= !p.reported;  // there were no links to it when it broke
    return false;
  }
  if (p.endpoint) return !p.ended;
  if (p.ended || (p.resumed && exchange_.gone(p.rank))) return false;
  if (p.pause > Clock::duration{} && Clock::now() < p.again) return false;
  p.anew |= p.resumed;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(p.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &p;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t why) {
    Peer& peer = *static_cast<Peer*>(arg);
    peer.fabric->ended(peer, peer.fabric->ucx_.what(why));
  };
  if (const ucs_status_t e = ucx_->ucp_ep_create(ucx_, &params, &p.endpoint); e != UCS_OK) {
    p.endpoint = nullptr;
    ended(p, ucx_.what(e));
    return false;
  }
  return true;
}

void Ucx::send(Peer& p, Send* s) {
  NetHeader& h = s->out.header;
  h.from = static_cast<std::uint32_t>(options_.rank);  // an active message does not say whose it is
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = h.bytes <= UcxWorker::kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  param.user_data = s;
  param.cb.send = [](void* request, ucs_status_t, void* user) {  // of an error the endpoint tells
    Send* const done = static_cast<Send*>(user);
    done->fabric->ucx_->ucp_request_free(request);
    done->fabric->sent(done);
  };
  s->peer = p.rank;
  s->under_way = true;
  const std::byte* payload = s->out.payload;
  if (p.resumed && h.bytes > 0) {  // it may be given back, and freed, before it has gone this time
    s->copy.assign(payload, payload + h.bytes);
    payload = s->copy.data();
  }
  void* const request =
      ucx_->ucp_am_send_nbx(p.endpoint, UcxWorker::kFrame, &h, sizeof h, payload, h.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) ended(p, ucx_.what(UCS_PTR_STATUS(request)));
  sent(s);
}

void Ucx::sent(Send* s) {
  s->under_way = false;
  s->out.keep.reset();
  idle_.push_back(s);
}

// ---- receiving -------------------------------------------------------------------------------------

/// UCS_OK: UCX may forget the message, whether it was taken or not.
ucs_status_t Ucx::take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                       bool rendezvous) {
  NetHeader h;
  if (header_bytes != sizeof h) return UCS_OK;  // no rank of this job sends such
  std::memcpy(&h, header, sizeof h);
  const std::uint32_t from = std::exchange(h.from, 0);
  if (from >= peers_.size()) return UCS_OK;
  Peer& p = peers_[from];
  if (p.dropped || !p.broken.ok()) return UCS_OK;
  if (!p.ended) p.pause = {};
  auto place = h.bytes == bytes
                   ? exchange_.place(p.rank, h, !rendezvous)
                   : Status(Failure{.reason = Reason::ring_corrupt,
                                    .text = fmt::format("a frame of {} bytes that says {}", bytes, h.bytes),
                                    .rank = p.rank,
                                    .detector = "frame header"});
  if (!place.ok()) {
    break_with(p, place.status());
    return UCS_OK;
  }
  if (rendezvous && place->to) {
    receive(p.rank, h, std::move(*place), data);
    return UCS_INPROGRESS;
  }
  if (place->to) std::memcpy(place->to, data, bytes);
  exchange_.landed(p.rank, h, *place);
  return UCS_OK;
}

void Ucx::receive(int peer, const NetHeader& h, Exchange::Place place, void* descriptor) {
  receives_.push_front({this, peer, h, std::move(place), {}});
  Receive& r = receives_.front();
  r.self = receives_.begin();
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.user_data = &r;
  param.cb.recv_am = [](void* request, ucs_status_t how, std::size_t, void* user) {
    Receive& done = *static_cast<Receive*>(user);
    Ucx& fabric = *done.fabric;
    fabric.ucx_->ucp_request_free(request);
    if (how != UCS_OK) return fabric.exchange_.abandon(done.peer, done.header);
    fabric.exchange_.landed(done.peer, done.header, done.place);
    fabric.receives_.erase(done.self);
  };
  void* const request = ucx_->ucp_am_recv_data_nbx(ucx_, descriptor, r.place.to, h.bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) exchange_.abandon(peer, h);
}

// ---- the end of a peer -----------------------------------------------------------------------------

/// Called from within UCX, too: what follows is left to bury().
void Ucx::break_with(Peer& p, Status why) {
  if (p.broken.ok()) p.broken = std::move(why);
  any_broken_ = true;
}

/// Called from within UCX, too. Whether the peer lives is for others to say.
void Ucx::ended(Peer& p, std::string why) {
  if (!std::exchange(p.ended, true)) p.why = std::move(why);
  any_broken_ = true;
}

/// What was under way, and may not have arrived, goes again on the next connection.
void Ucx::resume(Peer& p) {
  OURO_INFO(NET, "the UCX connection of rank {} to rank {} has ended: {}", options_.rank, p.rank, p.why);
  close(p);
  std::vector<Exchange::Outgoing> out;
  for (const auto& s : sends_)
    if (s->under_way && s->peer == p.rank) out.push_back(s->out);
  exchange_.resume(p.rank, out);
  p.ended = false;
  p.resumed = true;
  const auto now = Clock::now();
  if (p.pause == Clock::duration{}) p.failing = now;
  p.pause = std::clamp<Clock::duration>(2 * p.pause, kFirstAgain, kLastAgain);
  p.again = now + p.pause;
  if (now - p.failing > options_.patience && exchange_.talks_to(p.rank))
    break_with(p, Status(Failure{.reason = Reason::link_lost,
                                 .text = fmt::format("no connection could be made for {:.1f} s: {}",
                                                     std::chrono::duration<double>(now - p.failing).count(), p.why),
                                 .rank = p.rank,
                                 .detector = "ucx"}));
}

void Ucx::bury() {
  std::erase_if(closing_, [&](void* request) {
    const bool done = ucx_->ucp_request_check_status(request) != UCS_INPROGRESS;
    if (done) ucx_->ucp_request_free(request);
    return done;
  });
  if (!std::exchange(any_broken_, false)) return;
  for (Peer& p : peers_) {
    if (p.ended) resume(p);
    if (p.broken.ok()) continue;
    close(p);
    if (p.dropped || p.reported || !exchange_.talks_to(p.rank)) continue;
    p.reported = true;
    options_.failed(p.rank, p.broken);
  }
}

void Ucx::close(Peer& p, unsigned flags) {
  if (!p.endpoint) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  void* const request = ucx_->ucp_ep_close_nbx(std::exchange(p.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

// ---- the own thread --------------------------------------------------------------------------------

/// Moves what comes while nobody drives, and keeps out of the way of whoever does.
void Ucx::watch() {
  pthread_setname_np(pthread_self(), "ouro-progress");
  std::uint64_t seen = 0;
  for (;;) {
    const std::uint64_t drives = drives_.load(std::memory_order_relaxed);
    const bool aside = driven() || std::exchange(seen, drives) != drives;
    bool armed = false;
    if (!aside) {
      std::lock_guard lock(exchange_.lock());
      for (int i = 0; i < kBurst && ucx_.progress(); ++i) continue;
      push_all();
      bury();
      armed = ucx_.arm();
    }
    std::array<pollfd, 2> fds{pollfd{stop_.get(), POLLIN, 0}, pollfd{ucx_.events(), POLLIN, 0}};
    const auto at_most = aside ? kAside : armed ? kNap : 0ms;
    poll(fds.data(), armed ? 2 : 1, static_cast<int>(at_most.count()));
    if (fds[0].revents & POLLIN) return;
  }
}

}  // namespace

Result<std::unique_ptr<UcxFabric>> UcxFabric::create(Options options) {
  auto fabric = std::make_unique<Ucx>(std::move(options));
  OURO_TRY(fabric->open());
  return std::unique_ptr<UcxFabric>(std::move(fabric));
}

}  // namespace ouro::transport

// The ucx fabric: one context, one worker, one endpoint per peer. See ucx.h.
//
// Chunks are sent as eager active messages in one segment each: over TCP, the rendezvous that UCX would
// choose costs a round trip per chunk and was slower at every size, in spite of the copy that eager
// receipt adds. Chunks in memory of a device are sent by rendezvous: only UCX can read and write that memory.
#include "transport/net/ucx/ucx.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <thread>

#include "kernels/device/gpu.h"
#include "runtime/core/log.h"
#include "transport/net/ucx/ucx_fabric.h"

namespace ouro::transport {
namespace {

using namespace std::chrono_literals;

constexpr auto kAside = 1ms;       // how often the own thread checks whether somebody drives
constexpr auto kNap = 100ms;       // the longest time that it sleeps: limits the cost of a missed event
constexpr int kBurst = 64;         // successive calls of progress by the own thread
constexpr auto kFarewell = 200ms;  // time for endpoints to close, at the end
constexpr auto kRecall = 500ms;    // time for a send to finish with memory that its owner wants back

bool emulated() { return std::string_view(gpu::gpu().name()) == "fake"; }

}  // namespace

Status hands_over(const DeviceQuery& q) {
  if (q.wanted == HandsOver::never) return unsupported("OURO_GPU_DIRECT=off");
  if (!q.device) return unsupported("this rank has no GPU");
  if (q.emulated) return {};
  if (!q.cuda) return unsupported("UCX says that it takes no memory of CUDA");
  if (!q.flush.ok()) return unsupported(q.flush.failure()->text);
  if (!q.rdma && q.wanted != HandsOver::always)
    return unsupported("UCX has no RDMA here, and would copy memory of the GPU through the host");
  return {};
}

class Ucx::OnDevice {
 public:
  /// Changes nothing if `needed` is false, or the device is emulated.
  OnDevice(const Ucx& u, bool needed) {
    if (!needed || u.takes_ != Takes::cuda) return;
    if (auto scope = gpu::gpu().scope(u.options_.device); scope.ok()) scope_ = std::move(*scope);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  std::shared_ptr<void> scope_;
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
  auto cuda = UcxWorker::Cuda::never;
  if (options_.device >= 0 && !emulated() && options_.hands_over != HandsOver::never)
    cuda = options_.hands_over == HandsOver::always ? UcxWorker::Cuda::always : UcxWorker::Cuda::beside_rdma;
  OURO_TRY(ucx_.open(options_.world, options_.devices, cuda, taken, this));
  OURO_TRY(ask_for_device());
  address_ = ucx_.address();
  if (address_.empty()) return {Reason::resource, "UCX gives this worker no address"};
  address_.insert(address_.begin(), static_cast<std::uint8_t>(takes_));
  thread_ = Thread("ouro-progress", [this] { persist("the ucx fabric", [this] { watch(); }); });
  return {};
}

/// Asked once. Peers learn the answer with the address.
Status Ucx::ask_for_device() {
  DeviceQuery q{.wanted = options_.hands_over, .device = options_.device >= 0};
  if (q.device && q.wanted != HandsOver::never) {
    q.emulated = emulated() && (!options_.takes || options_.takes());
    q.rdma = ucx_.rdma();
    q.cuda = options_.takes ? options_.takes() : ucx_.takes_cuda();
    if (!q.emulated && q.cuda) q.flush = gpu::gpu().flush_arrivals(options_.device);
  }
  ability_ = hands_over(q);
  if (ability_.ok()) {
    takes_ = q.emulated ? Takes::emulated : Takes::cuda;
    OURO_INFO(NET, "memory of GPU {} is handed to UCX{}", options_.device,
              q.emulated ? " (an emulated device: memory of the host)"
              : q.rdma   ? ", by RDMA"
                         : "");
    return {};
  }
  if (q.wanted == HandsOver::always)
    return unsupported(fmt::format("OURO_GPU_DIRECT=on: {}; expected auto or off", ability_.failure()->text));
  if (q.device)
    OURO_INFO(NET, "memory of GPU {} goes through the host: {}", options_.device, ability_.failure()->text);
  return {};
}

bool Ucx::takes_device(int peer) {
  std::lock_guard lock(exchange_.lock());
  return peers_[static_cast<std::size_t>(peer)].takes_device;
}

/// Drives UCX, which may use the device for transfers under way.
bool Ucx::advance() {
  const OnDevice scope(*this, on_device_ > 0);
  return ucx_.progress();
}

Ucx::~Ucx() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  if (!address_.empty()) {
    std::lock_guard lock(exchange_.lock());
    for (Peer& p : peers_) {
      // A healthy connection that is still being established is closed gracefully: UCX 1.13 crashes if it is
      // closed by force.
      const bool good = !std::exchange(p.dropped, true) && p.broken.ok() && !p.ended;
      close(p, good ? 0 : UCP_EP_CLOSE_FLAG_FORCE);
    }
    const auto end = Clock::now() + kFarewell;
    do {
      while (advance() && Clock::now() < end) continue;
      bury();
    } while (!closing_.empty() && Clock::now() < end);
    // The worker must not be destroyed while requests of it are held, finished or not.
    for (void* request : closing_) ucx_->ucp_request_free(request);
    const bool asserts = ucx_->asserts_on_late_connections();
    if (std::any_of(peers_.begin(), peers_.end(), [asserts](const Peer& p) {
          return p.anew || (asserts && !p.answered && !p.address.empty());
        })) {
      ucx_.abandon();
      // Peers may still write to, or read, the memory of devices that transfers of this worker have.
      if (!receives_.empty()) (void)new std::list<Receive>(std::move(receives_));
      for (std::unique_ptr<Send>& s : sends_)
        if (s->under_way) (void)s.release();
    }
  }
}

/// UCX cannot redirect a send, so this waits for the send to finish, and fails the peer if that takes too
/// long. Incoming data is never in a place from which it would have to be moved (see take).
void Ucx::moved(int peer, const NetLink::Move& m) {
  const auto reads = [&](const auto& s) { return s->under_way && s->out.payload == m.from; };
  const auto pending = [&] { return std::any_of(sends_.begin(), sends_.end(), reads); };
  const auto patience = Clock::now() + kRecall;
  while (pending() && Clock::now() < patience) advance();
  if (!pending()) return;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  break_with(p, Status(Failure{.reason = Reason::peer_unresponsive,
                               .text = "it did not take a message that was given up here",
                               .rank = peer,
                               .detector = "ucx"}));
  bury();
  const auto end = Clock::now() + kFarewell;
  while (pending() && Clock::now() < end) advance();
}

void Ucx::cut() {
  std::lock_guard lock(exchange_.lock());
  cut_ = true;
}

void Ucx::progress() {
  std::unique_lock lock(exchange_.lock(), std::try_to_lock);
  if (!lock || cut_) return;
  drives_.fetch_add(1, std::memory_order_relaxed);
  advance();
  push_all();
  bury();
}

void Ucx::kick(int peer) {
  std::lock_guard lock(exchange_.lock());
  if (cut_) return;
  if (peer == kEveryone)
    push_all();
  else
    push(peers_[static_cast<std::size_t>(peer)]);
  bury();
}

void Ucx::rest(std::chrono::microseconds at_most) {
  if (cut_) return std::this_thread::sleep_for(at_most);
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

void Ucx::send(Peer& p, Send* s) {
  NetHeader& h = s->out.header;
  h.from = static_cast<std::uint32_t>(options_.rank);  // an active message does not identify its sender
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  const bool device = s->out.device != nullptr;
  param.flags = h.bytes <= UcxWorker::kEager && !device ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  // The type is stated for memory of the host, too: otherwise UCX would query CUDA about each address.
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = device && takes_ == Takes::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  if (device) {
    ++on_device_;
    device_sent_ += h.bytes;
  }
  param.user_data = s;
  param.cb.send = [](void* request, ucs_status_t, void* user) {  // the endpoint reports errors
    Send* const done = static_cast<Send*>(user);
    done->fabric->ucx_->ucp_request_free(request);
    done->fabric->sent(done);
  };
  s->peer = p.rank;
  s->under_way = true;
  const std::byte* payload = s->out.payload;
  if (p.resumed && h.bytes > 0 &&
      !device) {  // its owner may get it back, and free it, before this send has finished
    s->copy.assign(payload, payload + h.bytes);
    payload = s->copy.data();
  }
  const OnDevice scope(*this, device);
  void* const request =
      ucx_->ucp_am_send_nbx(p.endpoint, UcxWorker::kFrame, &h, sizeof h, payload, h.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) ended(p, ucx_.what(UCS_PTR_STATUS(request)));
  sent(s);
}

void Ucx::sent(Send* s) {
  s->under_way = false;
  s->out.keep.reset();
  if (s->out.device) --on_device_;
  s->out.device.reset();
  idle_.push_back(s);
}

// ---- receiving -------------------------------------------------------------------------------------

/// Handles a message. UCS_OK: UCX may release the message, whether it was used or not.
ucs_status_t Ucx::take(const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                       bool rendezvous) {
  NetHeader h;
  if (header_bytes != sizeof h) return UCS_OK;  // no rank of this job sends this
  std::memcpy(&h, header, sizeof h);
  const std::uint32_t from = std::exchange(h.from, 0);
  if (from >= peers_.size()) return UCS_OK;
  Peer& p = peers_[from];
  p.answered = true;
  if (p.dropped || !p.broken.ok()) return UCS_OK;
  if (!p.ended) p.pause = {};
  auto destination =
      h.bytes == bytes
          ? exchange_.begin_receive(p.rank, h, !rendezvous)
          : Status(Failure{.reason = Reason::ring_corrupt,
                           .text = fmt::format("a frame of {} bytes that says {}", bytes, h.bytes),
                           .rank = p.rank,
                           .detector = "frame header"});
  if (!destination.ok()) {
    break_with(p, destination.status());
    return UCS_OK;
  }
  if (rendezvous && destination->to)
    return receive(p.rank, h, std::move(*destination), data) ? UCS_INPROGRESS : UCS_OK;
  if (destination->to) std::memcpy(destination->to, data, bytes);
  exchange_.received(p.rank, h, *destination);
  return UCS_OK;
}

/// Begins to receive a payload by rendezvous. Returns false if it did not begin; the chunk is then
/// requested again.
bool Ucx::receive(int peer, const NetHeader& h, Exchange::Destination destination, void* descriptor) {
  try {
    receives_.push_front({this, peer, h, std::move(destination), {}});
  } catch (const std::bad_alloc&) {  // the caller is UCX, through which no exception may pass
    exchange_.abandon(peer, h);
    return false;
  }
  Receive& r = receives_.front();
  r.self = receives_.begin();
  ucp_request_param_t param{};
  const bool device = r.destination.device != nullptr;
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.user_data = &r;
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = device && takes_ == Takes::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  if (device) ++on_device_;
  param.cb.recv_am = [](void* request, ucs_status_t how, std::size_t, void* user) {
    Receive& done = *static_cast<Receive*>(user);
    Ucx& fabric = *done.fabric;
    fabric.ucx_->ucp_request_free(request);
    if (done.destination.device) --fabric.on_device_;
    if (how != UCS_OK) return fabric.exchange_.abandon(done.peer, done.header);
    if (done.destination.device) fabric.device_received_ += done.header.bytes;
    fabric.exchange_.received(done.peer, done.header, done.destination);
    fabric.receives_.erase(done.self);
  };
  const OnDevice scope(*this, device);
  void* const request = ucx_->ucp_am_recv_data_nbx(ucx_, descriptor, r.destination.to, h.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return true;
  if (device) --on_device_;
  exchange_.abandon(peer, h);
  receives_.erase(r.self);  // nothing can arrive for it
  return false;
}

// ---- the own thread --------------------------------------------------------------------------------

/// Moves data while nobody drives, and stays out of the way of threads that do.
void Ucx::watch() {
  std::uint64_t seen = 0;
  for (;;) {
    const std::uint64_t drives = drives_.load(std::memory_order_relaxed);
    const bool aside = cut_ || driven() || std::exchange(seen, drives) != drives;
    bool armed = false;
    if (!aside) {
      std::lock_guard lock(exchange_.lock());
      for (int i = 0; i < kBurst && advance(); ++i) continue;
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

Result<std::unique_ptr<UcxFabric>> UcxFabric::create(Options options) {
  auto fabric = std::make_unique<Ucx>(std::move(options));
  OURO_TRY(fabric->open());
  return std::unique_ptr<UcxFabric>(std::move(fabric));
}

}  // namespace ouro::transport

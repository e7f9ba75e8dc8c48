// Two processes on one device: how long one takes to map memory of the other, by size, and how fast words and
// kernels alternate between them. A part of bench_gpu_floor, which starts itself as the second process.
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "bench/gpu_floor/peer.h"
#include "bench/gpu_floor/session.h"

extern char** environ;

namespace ouro::bench {
namespace {

constexpr int kPairs = 50;  // of hops, in one round: fewer operations than a stream takes at a time

/// The second process, and the socket to it.
class Second {
 public:
  static Result<Second> start(int device) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return Status(Reason::resource, fmt::format("socketpair: {}", std::strerror(errno)));
    Fd ours(ends[0]), theirs(ends[1]);
    constexpr int kSocket = 3;
    std::string number = std::to_string(device), socket = std::to_string(kSocket);
    char program[] = "bench_gpu_floor", serve[] = "--serve";
    char* const argv[] = {program, serve, socket.data(), number.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kSocket);
    Second s;
    const int error = ::posix_spawn(&s.pid_, "/proc/self/exe", &actions, nullptr, argv, environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      s.pid_ = -1;
      return Status(Reason::resource, fmt::format("cannot start a process: {}", std::strerror(error)));
    }
    s.socket_ = std::move(ours);
    return s;
  }
  Second() = default;
  Second(Second&& o) noexcept : pid_(std::exchange(o.pid_, -1)), socket_(std::move(o.socket_)) {}
  Second& operator=(Second&& o) noexcept {
    std::swap(pid_, o.pid_), std::swap(socket_, o.socket_);
    return *this;
  }
  /// The process ends when the socket is closed, or after two seconds.
  ~Second() {
    if (pid_ < 0) return;
    socket_.reset();
    for (int i = 0; i < 200; ++i) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) return;
      ::usleep(10'000);
    }
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  Status ask(const Request& r, int fd = -1) { return send_message(socket_.get(), &r, sizeof r, fd); }
  Result<Reply> reply() {
    Reply r;
    OURO_TRY(receive_message(socket_.get(), &r, sizeof r));
    if (!r.good) return Status(Reason::device, fmt::format("in the second process: {}", r.why));
    return r;
  }

 private:
  pid_t pid_ = -1;
  Fd socket_;
};

class Processes {
 public:
  explicit Processes(Session& s) : session_(s), g_(s.gpu) {}

  Status run() {
    OURO_ASSIGN(second_, Second::start(session_.device));
    struct Size {
      const char* name;
      std::size_t bytes;
    };
    for (const Size& size :
         {Size{"2M", std::size_t{2} << 20}, {"64M", std::size_t{64} << 20}, {"1G", std::size_t{1} << 30}}) {
      if (session_.quick && size.bytes > std::size_t{64} << 20) break;
      if (size.bytes > session_.properties.memory_bytes / 8) break;
      if (session_.properties.ipc) OURO_TRY(mappings("ipc_open", "ipc_close", size.name, size.bytes, true));
      if (session_.properties.shareable_memory)
        OURO_TRY(mappings("import_fd", "unmap_fd", size.name, size.bytes, false));
    }
    if (session_.properties.device_words && session_.properties.shareable_memory) OURO_TRY(hand_offs());
    return {};
  }

 private:
  /// The first round is left out: it contains what a process does once.
  Status mappings(const char* map, const char* unmap, const char* size, std::size_t bytes, bool legacy) {
    const std::string name = fmt::format("{}_{}", map, size);
    if (!session_.begins(name)) return {};
    std::vector<double> map_us, unmap_us;
    for (int i = 0; i <= (session_.quick ? 2 : 7); ++i) {
      Request r{legacy ? Request::Kind::open_ipc : Request::Kind::import_fd, bytes};
      OURO_ASSIGN(const Reply reply, legacy ? by_handle(r) : by_descriptor(r));
      if (i > 0) map_us.push_back(reply.map_us), unmap_us.push_back(reply.unmap_us);
    }
    Session::line(name, measure::median(std::move(map_us)), "us");
    Session::line(fmt::format("{}_{}", unmap, size), measure::median(std::move(unmap_us)), "us");
    return {};
  }
  Result<Reply> by_handle(Request& r) {
    OURO_ASSIGN(void* const memory, g_.alloc(session_.device, r.bytes));
    OURO_ASSIGN(r.handle, g_.ipc_export(memory));
    OURO_TRY(second_.ask(r));
    OURO_ASSIGN(const Reply reply, second_.reply());
    OURO_TRY(g_.free(memory));
    return reply;
  }
  Result<Reply> by_descriptor(Request& r) {
    OURO_ASSIGN(const gpu::Region region, g_.alloc_shareable(session_.device, r.bytes));
    r.bytes = region.bytes;
    OURO_ASSIGN(const Fd fd, g_.export_fd(region));
    OURO_TRY(second_.ask(r, fd.get()));
    OURO_ASSIGN(const Reply reply, second_.reply());
    OURO_TRY(g_.free_region(region));
    return reply;
  }

  /// Half a round trip between streams of two processes by words in memory of the device that both have
  /// mapped; with launches each hop has a kernel, too, so that the device changes the process each time.
  Status hand_offs() {
    OURO_ASSIGN(region_, g_.alloc_shareable(session_.device, kPeerBytes));
    OURO_ASSIGN(const Fd fd, g_.export_fd(region_));
    OURO_ASSIGN(stream_, g_.create_stream(session_.device, session_.properties.low_priority));
    OURO_ASSIGN(from_, g_.create_event(session_.device, true));
    OURO_ASSIGN(to_, g_.create_event(session_.device, true));
    OURO_TRY(g_.set(region_.data, 0, kPeerBytes, stream_));
    OURO_TRY(launch_small(g_, stream_));  // loads it, before a stream waits
    OURO_TRY(session_.finish(stream_));
    Request keep{Request::Kind::keep, region_.bytes};
    OURO_TRY(second_.ask(keep, fd.get()));
    OURO_TRY(second_.reply().status());
    OURO_ASSIGN(Gate gate, Gate::make(session_));
    for (const bool launches : {false, true}) {
      const char* const name = launches ? "process_kernels_in_turn" : "process_words";
      if (!session_.begins(name)) continue;
      std::vector<double> us;
      for (int i = 0; i <= session_.rounds() / 3; ++i) {
        OURO_ASSIGN(const double one, round(gate, launches));
        if (i > 0) us.push_back(one);
      }
      Session::line(name, measure::median(std::move(us)), "us");
    }
    second_ = {};  // it has the memory open
    OURO_TRY(g_.destroy_event(from_));
    OURO_TRY(g_.destroy_event(to_));
    OURO_TRY(g_.destroy_stream(stream_));
    return g_.free_region(region_);
  }
  Result<double> round(Gate& gate, bool launches) {
    Request r{Request::Kind::hops, region_.bytes};
    r.turn = turn_, r.count = kPairs, r.launches = launches;
    OURO_TRY(second_.ask(r));
    OURO_TRY(second_.reply().status());  // its part is enqueued
    auto* const words = static_cast<std::byte*>(region_.data);
    OURO_TRY(gate.close(stream_));
    OURO_TRY(g_.record(from_, stream_));
    for (int i = 0; i < kPairs; ++i) {
      ++turn_;
      const gpu::MemOp write{gpu::MemOp::Kind::write, turn_, words + kPing};
      const gpu::MemOp wait{gpu::MemOp::Kind::wait_at_least, turn_, words + kPong};
      if (launches) OURO_TRY(launch_small(g_, stream_));
      OURO_TRY(g_.enqueue({&write, 1}, stream_));
      OURO_TRY(g_.enqueue({&wait, 1}, stream_));
    }
    OURO_TRY(g_.record(to_, stream_));
    gate.open();
    OURO_TRY(session_.finish(stream_));
    OURO_TRY(second_.reply().status());
    OURO_ASSIGN(const float ms, g_.elapsed_ms(from_, to_));
    return 1e3 * static_cast<double>(ms) / (2 * kPairs);
  }

  Session& session_;
  gpu::Gpu& g_;
  Second second_;
  gpu::Region region_;
  gpu::Stream stream_;
  gpu::Event from_, to_;
  std::uint32_t turn_ = 0;
};

}  // namespace

Status process_rows(Session& s) { return Processes(s).run(); }

}  // namespace ouro::bench

// Rank 0's side of the rendezvous: admission, the table, the tree along which it spreads. See rendezvous.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>

#include "runtime/core/file_size.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/join/admission.h"
#include "runtime/join/host_inquiry.h"
#include "runtime/join/rendezvous_parts.h"
#include "runtime/network/frame_stream.h"
#include "transport/wire/codec.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
// How long a host may take to reconnect if its line broke before it sent its endpoint: it dials (three round
// trips) and asks again, and a packet may be retransmitted.
Clock::duration come_back(const Line& line) { return 400ms + 8 * line.round_trip; }

std::string listed(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 32;
  const std::size_t n = std::min(ranks.size(), kMost);
  const std::string some =
      fmt::format("{}", fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(n), ","));
  return ranks.size() > n ? fmt::format("{},... {} in all", some, ranks.size()) : some;
}

/// Writes a file atomically: readers see the old one or the new one, never a part.
Status publish_file(const std::string& path, const std::string& text) {
  const std::string part = fmt::format("{}.{:x}", path, process_number());
  ::unlink(part.c_str());
  const Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  int error = fd ? write_whole(fd.get(), text) : errno;
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(part.c_str());
  return {Reason::resource,
          fmt::format("cannot write the rendezvous file '{}': {}", path, file_error(error))};
}

}  // namespace

class RendezvousServer::State : public RendezvousSide {
 public:
  State(asio::io_context& io, RendezvousOptions options)
      : RendezvousSide(io),
        options_(std::move(options)),
        world_(options_.identity.world),
        deadline_(io),
        late_(io),
        admission_(options_.identity.job, world_, options_.self.settings, options_.self.host,
                   options_.self.pid) {
    table_.resize(static_cast<std::size_t>(world_));
    table_[0] = options_.self;
  }

  Status start() {
    LineListener::Options listen;
    listen.bind = options_.place;
    if (options_.place.starts_with(kFilePlace)) {
      auto own = parse_address(options_.self.endpoint);
      if (!own.ok()) return own.status();
      listen.bind = to_string(*own, false);
    }
    auto listener = LineListener::open(io_, options_.identity, std::move(listen),
                                       while_open([this](Line line) { greet(std::move(line)); }));
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    if (options_.place.starts_with(kFilePlace)) {
      file_ = options_.place.substr(kFilePlace.size());
      OURO_TRY(publish_file(file_, listener_->endpoint() + "\n"));
    }
    at(deadline_, options_.deadline, [this] {
      if (!over()) fail(admission_.expired(std::chrono::duration<double>(options_.deadline).count()));
    });
    at(late_, options_.late_after, [this] { tell_waiting(); });
    after_admission();
    return {};
  }

  void close() {
    closed_ = true;
    limbo_.clear();
    deadline_.cancel(), late_.cancel();
    listener_.reset();
    for (auto& h : hosts_) h->stream->close();
    hosts_.clear();
    callback_ = nullptr;
    if (!file_.empty()) {
      std::string line;
      std::ifstream in(file_);
      if (std::getline(in, line) && line == endpoint_)
        ::unlink(file_.c_str());  // otherwise it is another job's by now
    }
  }

  const std::string& endpoint() {
    if (listener_) endpoint_ = listener_->endpoint();
    return endpoint_;
  }

  void bring(MemberRecord member, std::function<void(Status)> refused, std::uint32_t world) {
    if (world == 0) world = static_cast<std::uint32_t>(world_);
    auto judge = [this, world, member = std::move(member), refused = std::move(refused)]() mutable {
      if (over()) return;
      Status why = check(member, wire::kMaxWorld);
      if (why.ok()) {
        const auto decision = consider(member, world);
        why = decision.why;
        if (decision.verdict == Admission::Verdict::give_up) return fail(why);
      }
      if (why.ok()) return take(std::move(member), nullptr);
      refused ? refused(why) : fail(why);
    };
    post(std::move(judge));
  }
  void lost(int rank) {
    post([this, rank] {
      if (!over() && rank >= 0 && rank < world_) fail(admission_.lost(rank));
    });
  }
  void give_up(const Status& why) {
    post([this, why] {
      if (!over()) fail(why);
    });
  }
  void absent(int rank, int code) {
    post([this, rank, code] {
      const auto missing = admission_.missing();
      if (!over() && std::find(missing.begin(), missing.end(), rank) != missing.end())
        fail(admission_.absent(rank, code));
    });
  }
  bool served() const {
    if (!over()) return false;
    if (!outcome_.ok()) return Clock::now() >= tell_until_;
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const auto& h) { return h->got || h->ranks.empty() || !h->stream->open(); });
  }

 private:
  struct Host {
    std::shared_ptr<FrameStream> stream;
    std::vector<int> ranks;
    bool got = false, direct = false;
    std::shared_ptr<HostInquiry> inquiry;  // once its line broke
  };
  using HostPtr = std::shared_ptr<Host>;

  Admission::Decision consider(const MemberRecord& member, std::uint32_t world) {
    return admission_.consider({options_.identity.job,
                                static_cast<std::uint32_t>(member.rank),
                                world,
                                member.pid,
                                member.host,
                                {},
                                member.settings});
  }

  void greet(Line line) {
    if (line.purpose != Purpose::join) return;  // nothing else is served here, so the connection is closed
    if (Status s = watch_link(line.socket.get()); !s.ok()) OURO_INFO(BOOTSTRAP, "{}", s.failure()->text);
    auto host = std::make_shared<Host>();
    host->stream = std::make_shared<FrameStream>(io_, std::move(line), wire::kMaxControl);
    hosts_.push_back(host);
    host->stream->start(while_open([this, host](Result<wire::NetFrame> frame) {
      frame.ok() ? receive(host, std::move(*frame)) : broken(host, frame.status());
    }));
  }

  void receive(const HostPtr& host, wire::NetFrame frame) {
    if (auto* f = std::get_if<wire::MemberOffer>(&frame)) return join(host, std::move(*f));
    if (auto* f = std::get_if<wire::NetRefuse>(&frame)) {  // a rank of that host has ended, or objects
      if (!over() && std::find(host->ranks.begin(), host->ranks.end(), f->rank) != host->ranks.end())
        fail(f->reason == Reason::peer_dead
                 ? admission_.lost(f->rank)
                 : Status(f->reason, wire::printable(wire::view(f->text), wire::kMaxText)));
      return;
    }
    if (std::holds_alternative<wire::Got>(frame)) {
      host->got = true;
      return all_served();
    }
    if (std::holds_alternative<wire::Want>(frame) && complete_ && !host->direct) return hand_table(*host, 0);
    OURO_INFO(BOOTSTRAP, "{} said something out of place", host->stream->line().peer_address);
    host->stream->close();
    broken(host, {});
  }

  void join(const HostPtr& host, wire::MemberOffer request) {
    MemberRecord& member = request.member;
    const auto rank = static_cast<std::size_t>(member.rank);
    const auto refuse = [&](const Status& why, bool member_only) {
      OURO_INFO(BOOTSTRAP, "refused rank {} (pid {}): {}", member.rank, member.pid, why.failure()->text);
      host->stream->send(
          wire::NetRefuse{why.reason(), member.rank, member.pid, member_only, {}, why.failure()->text});
    };
    if (!outcome_.ok()) return refuse(outcome_, false);
    const auto before = taken_.find(member.rank);
    const bool again = before != taken_.end() && before->second == host->stream->line().peer_process &&
                       table_[rank].pid == member.pid && table_[rank].host == member.host &&
                       table_[rank].host_id == member.host_id;
    if (again) {  // the host's line broke, and it has reconnected
      for (auto* list : {&hosts_, &limbo_})
        for (auto& other : *list) std::erase(other->ranks, member.rank);
      std::erase_if(limbo_, [](const auto& other) { return other->ranks.empty(); });
      host->ranks.push_back(member.rank);
      if (complete_ && !host->direct) hand_table(*host, 0);
      after_admission();
      return;
    }
    if (complete_)
      return refuse({Reason::refused,
                     fmt::format("closed: the job is complete; rank {} arrived too late", member.rank)},
                    false);
    const auto decision = consider(member, request.world);
    if (decision.verdict == Admission::Verdict::admitted) return take(std::move(member), host);
    if (decision.verdict == Admission::Verdict::turn_away) return refuse(decision.why, true);
    fail(decision.why);
  }

  void take(MemberRecord member, const HostPtr& host) {
    const int rank = member.rank;
    if (host) {
      host->ranks.push_back(rank);
      taken_[rank] = host->stream->line().peer_process;
    }
    table_[static_cast<std::size_t>(rank)] = std::move(member);
    after_admission();
  }

  void after_admission() {
    if (admission_.complete() && limbo_.empty() && !over()) spread();
  }

  /// Spreads the table along a tree of hosts. The children of host i are those from arity * i + 1 on; the
  /// root, host 0, is this one.
  void spread() {
    complete_ = true;
    deadline_.cancel(), late_.cancel();
    for (MemberRecord& s : table_) s.settings.clear();
    for (auto& bytes : wire::encode_table(table_))
      pieces_.push_back(std::make_shared<const wire::Bytes>(std::move(bytes)));
    std::vector<HostPtr> order;
    for (const auto& h : hosts_)
      if (!h->ranks.empty()) order.push_back(h);
    const auto can_serve = [this](const HostPtr& h) { return !endpoint_of_leader(*h).empty(); };
    const auto servers = static_cast<std::size_t>(
        std::stable_partition(order.begin(), order.end(), can_serve) - order.begin());
    const auto arity = static_cast<std::size_t>(std::max(options_.arity, 1));
    const auto children = [&](std::size_t i) {
      const std::size_t first = arity * i + 1, end = std::min(first + arity, order.size() + 1);
      return static_cast<std::uint32_t>(first < end && i <= servers ? end - first : 0);
    };
    for (std::size_t i = 1; i <= order.size(); ++i) {
      const std::size_t parent = (i - 1) / arity;
      if (parent == 0 || parent > servers) {
        hand_table(*order[i - 1], children(i));
        continue;
      }
      const Host& server = *order[parent - 1];
      order[i - 1]->stream->send(wire::Source{static_cast<std::uint32_t>(server.stream->line().peer_rank),
                                              children(i), endpoint_of_leader(server)});
    }
    deliver();
  }

  /// The endpoint of a host's leader; empty unless it has brought its own record. The rank that it claimed in
  /// the handshake may be another's, or none of this job.
  std::string endpoint_of_leader(const Host& host) const {
    const int leader = host.stream->line().peer_rank;
    const bool brought = std::find(host.ranks.begin(), host.ranks.end(), leader) != host.ranks.end();
    return brought ? table_[static_cast<std::size_t>(leader)].endpoint : std::string();
  }

  void hand_table(Host& host, std::uint32_t children) {
    host.direct = true;
    host.stream->send(wire::Source{0, children, {}});
    for (const auto& piece : pieces_) host.stream->send(piece);
  }

  /// Notifies all hosts once each of them has the table: none will fetch it from another any more.
  void all_served() {
    if (!complete_ || said_bye_ || !served()) return;
    said_bye_ = true;
    for (auto& h : hosts_) h->stream->send(wire::Bye{});
  }

  void broken(const HostPtr& host, const Status& why) {
    std::erase(hosts_, host);
    if (why.reason() == Reason::refused || why.reason() == Reason::data_corrupt)
      OURO_WARN("the line of {} is cut: {}", host->stream->line().peer_address, why.failure()->text);
    if (complete_) return all_served();
    if (!outcome_.ok() || host->ranks.empty()) return;
    // A single reset does not prove a death: the host may reconnect under the same names.
    limbo_.push_back(host);
    const Line& line = host->stream->line();
    const std::string endpoint = endpoint_of_leader(*host);
    if (endpoint.empty()) {
      auto timer = std::make_shared<asio::steady_timer>(io_);
      at(*timer, come_back(line), [this, host, timer] { stays_away(host, HostInquiry::Verdict::dead); });
      return;
    }
    host->inquiry = std::make_shared<HostInquiry>(
        io_, endpoint, options_.identity, line,
        while_open([this, weak = std::weak_ptr(host)](HostInquiry::Verdict verdict) {
          if (const auto lost = weak.lock()) stays_away(lost, verdict);
        }));
    host->inquiry->start();
  }

  /// Fails the job unless all ranks of the host have reconnected on another line.
  void stays_away(const HostPtr& host, HostInquiry::Verdict verdict) {
    std::erase(limbo_, host);
    if (over() || host->ranks.empty()) return after_admission();
    Failure f = *admission_.lost(*std::min_element(host->ranks.begin(), host->ranks.end())).failure();
    if (verdict == HostInquiry::Verdict::silent)
      f.reason = Reason::peer_unresponsive, f.detector = "no answer",
      f.text = "its line broke while the job was forming, and it does not answer";
    if (verdict == HostInquiry::Verdict::stays_away)
      f.reason = Reason::link_lost, f.detector = "connection",
      f.text = "its line broke while the job was forming; it lives, and has made no new one";
    fail(Status(std::move(f)));
  }

  void tell_waiting() {
    if (over()) return;
    const auto missing = admission_.missing();
    const wire::Waiting waiting{static_cast<std::uint32_t>(admission_.admitted()),
                                static_cast<std::uint32_t>(world_), listed(missing)};
    OURO_WARN("waiting for ranks {{{}}}; joined {}/{}", waiting.missing, waiting.joined, waiting.world);
    for (auto& h : hosts_) h->stream->send(waiting);
    at(late_, options_.late_after, [this] { tell_waiting(); });
  }

  void fail(Status why) {
    outcome_ = std::move(why);
    deadline_.cancel(), late_.cancel();
    tell_until_ = Clock::now() + (outcome_.reason() == Reason::never_joined ? 50ms : kTellLatecomers);
    const Failure& f = *outcome_.failure();
    for (auto& h : hosts_) h->stream->send(wire::NetRefuse{f.reason, f.rank, f.pid, false, f.host, f.text});
    deliver();
  }

  RendezvousOptions options_;
  int world_;
  asio::steady_timer deadline_, late_;
  Admission admission_;
  std::unique_ptr<LineListener> listener_;
  std::string endpoint_, file_;
  std::map<int, std::uint64_t> taken_;  // of other hosts, by rank: start time of the process that brought it
  std::vector<HostPtr> hosts_;
  std::vector<HostPtr> limbo_;  // hosts whose line has just broken
  std::vector<FrameStream::Payload> pieces_;
  Clock::time_point tell_until_{};
  bool said_bye_ = false;
};

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::open(asio::io_context& io,
                                                                 RendezvousOptions options) {
  if (options.identity.rank != 0 || options.self.rank != 0)
    return invalid("only rank 0 serves the rendezvous");
  if (options.identity.world < 1 || options.identity.world > static_cast<int>(wire::kMaxWorld))
    return invalid(fmt::format("a world of {} ranks; 1 to {}", options.identity.world, wire::kMaxWorld));
  OURO_TRY(check(options.self, static_cast<std::uint32_t>(options.identity.world)));
  auto state = std::make_shared<State>(io, std::move(options));
  if (Status s = state->start(); !s.ok()) {
    state->close();
    return s;
  }
  return std::unique_ptr<RendezvousServer>(new RendezvousServer(std::move(state)));
}
RendezvousServer::~RendezvousServer() {
  state_->endpoint();
  state_->close();
}
const std::string& RendezvousServer::endpoint() const { return state_->endpoint(); }
void RendezvousServer::bring(MemberRecord member, std::function<void(Status)> refused, std::uint32_t world) {
  state_->bring(std::move(member), std::move(refused), world);
}
void RendezvousServer::lost(int rank) { state_->lost(rank); }
void RendezvousServer::give_up(const Status& why) { state_->give_up(why); }
void RendezvousServer::absent(int rank, int code) { state_->absent(rank, code); }
void RendezvousServer::async_table(TableCallback callback) { state_->async_table(std::move(callback)); }
bool RendezvousServer::served() const { return state_->served(); }

}  // namespace ouro::rt

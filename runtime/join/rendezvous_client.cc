// The rendezvous on the leader of every other host: dialling rank 0, bringing ranks, fetching and handing on
// the table. See rendezvous.h.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include "runtime/core/log.h"
#include "runtime/join/rendezvous_parts.h"
#include "runtime/network/frame_stream.h"
#include "transport/wire/codec.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kAttempt = 20s;  // per connection and handshake; a SYN is retransmitted after 1, 3, 7, 15 s
constexpr auto kFetch = 5s;     // for the table from another host, before rank 0 is asked for it
constexpr auto kVerdictPatience = 1s;  // beyond the deadline: rank 0's verdict is more precise
constexpr auto kServe = 10s;           // for hosts that should fetch the table here
constexpr auto kFirstPause = 10ms, kLongestPause = 200ms;

}  // namespace

class RendezvousClient::State : public RendezvousSide {
 public:
  State(asio::io_context& io, RendezvousOptions options)
      : RendezvousSide(io),
        options_(std::move(options)),
        end_(deadline_after(options_.deadline)),
        deadline_(io),
        late_(io),
        again_(io),
        patience_(io),
        serving_(io),
        reader_(world()),
        jitter_(static_cast<unsigned>(getpid()) * 65'537 + static_cast<unsigned>(options_.identity.rank)) {}

  void start() {
    at(deadline_, bounded(options_.deadline) + kVerdictPatience, [this] {
      fail({Reason::never_joined,
            fmt::format("{} within {} s; {}",
                        met_ ? "rank 0 waits for other ranks, and not all joined"
                             : "rank 0 did not answer at " + options_.place,
                        std::chrono::duration<double>(options_.deadline).count(), last_attempt_)});
    });
    at(late_, options_.late_after, [this] { tell_late(); });
    post([this] { connect(); });
  }
  void close() {
    closed_ = true;
    callback_ = nullptr;
    for (auto* timer : {&deadline_, &late_, &again_, &patience_, &serving_}) timer->cancel();
    for (auto* stream : {&root_, &source_})
      if (*stream) (*stream)->close(), stream->reset();
    for (auto& child : std::exchange(children_, {})) child->close();
  }

  void bring(MemberRecord member, std::function<void(Status)> refused, std::uint32_t said) {
    post([this, said = said == 0 ? world() : said, member = std::move(member), refused = std::move(refused)] {
      if (over()) return;
      if (Status s = check(member, wire::kMaxWorld); !s.ok()) return refused ? refused(s) : fail(s);
      const auto [at, fresh] = members_.try_emplace(member.rank, Mine{member, said, refused});
      if (!fresh) {
        const Status twice(Reason::refused,
                           fmt::format("duplicate-rank: rank {} twice on {} (pids {} and {})", member.rank,
                                       member.host, at->second.member.pid, member.pid));
        return refused ? refused(twice) : fail(twice);
      }
      if (root_) root_->send(wire::MemberOffer{said, member});
    });
  }
  void lost(int rank) {
    post([this, rank] {
      if (over() || !members_.count(rank)) return;
      report({Reason::peer_dead, rank, members_.at(rank).member.pid, true, {}, "it ended"});
    });
  }
  void give_up(const MemberRecord& by, const Status& why) {
    post([this, by, why] {
      if (!over()) report({why.reason(), by.rank, by.pid, false, by.host, why.failure()->text});
    });
  }
  void root_absent(int code) {
    post([this, code] {  // once rank 0 has answered, its line shows its end
      if (over() || met_) return;
      fail(Status(Failure{.reason = Reason::never_joined,
                          .text = fmt::format("it ended with exit code {} before all had joined", code),
                          .rank = 0,
                          .detector = "launcher"}));
    });
  }
  void serve(Line line) {
    auto child = std::make_shared<FrameStream>(io_, std::move(line), wire::kMaxControl);
    post([this, child] {
      if (line_is_late(child)) return;
      children_.push_back(child);
      child->start(
          while_open([this, child](const Result<wire::NetFrame>& frame) { child_said(child, frame); }));
      if (complete_) hand_on(*child);
    });
  }
  bool served() const {
    if (!outcome_.ok()) return true;
    return complete_ && (all_have_it_ || children_served_ >= children_expected_);
  }

 private:
  struct Mine {
    MemberRecord member;
    std::uint32_t world;
    std::function<void(Status)> refused;
  };

  /// Sends a report to rank 0, now and on each later line.
  void report(const wire::NetRefuse& word) {
    words_.push_back(word);
    if (root_) root_->send(word);
  }
  std::uint32_t world() const { return static_cast<std::uint32_t>(std::max(options_.identity.world, 1)); }
  bool in_file() const { return options_.place.starts_with(kFilePlace); }

  void connect() {
    if (over()) return;
    std::string place = options_.place;
    if (in_file()) {
      std::ifstream in(place.substr(kFilePlace.size()));
      if (!std::getline(in, place) || place.empty()) {
        last_attempt_ = "the rendezvous file is not there";
        return try_again();
      }
    }
    const auto now = Clock::now();
    const auto until =
        now < end_ ? std::min<Clock::time_point>(end_, now + kAttempt) : end_ + kVerdictPatience;
    dial(io_, place, Purpose::join, options_.identity, 0, until,
         while_open([this](Result<Line> line) { connected(std::move(line)); }));
  }
  void connected(Result<Line> line) {
    if (over()) return;
    if (!line.ok()) {
      const Status why = line.status();
      last_attempt_ = "the last attempt: " + why.failure()->text;
      const bool nobody = why.reason() == Reason::peer_dead;
      if (nobody && met_)
        return fail(Status(Failure{.reason = Reason::peer_dead,
                                   .text = "it ended while the job was forming",
                                   .rank = 0,
                                   .host = root_host_,
                                   .pid = root_pid_,
                                   .detector = "connection refused"}));
      // A file may be an old one, whose port belongs to another program by now.
      const bool stale = in_file() && why.failure()->detector == wire::kForeign;
      const bool no_verdict =
          why.reason() == Reason::peer_unresponsive || why.reason() == Reason::data_corrupt;
      return nobody || stale || no_verdict ? try_again() : fail(why);
    }
    met_ = true, root_host_ = line->peer_host, root_pid_ = line->peer_pid;
    round_trip_ = line->round_trip;
    if (Status s = watch_link(line->socket.get()); !s.ok()) OURO_INFO(BOOTSTRAP, "{}", s.failure()->text);
    root_ = std::make_shared<FrameStream>(io_, std::move(*line), wire::kMaxControl);
    root_->start(while_open([this](Result<wire::NetFrame> frame) {
      frame.ok() ? receive(std::move(*frame)) : broken(frame.status());
    }));
    for (const auto& [rank, mine] : members_) root_->send(wire::MemberOffer{mine.world, mine.member});
    for (const auto& word : words_) root_->send(word);
  }
  void try_again() {
    const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(pause_).count();
    const auto wait =
        std::chrono::microseconds(std::uniform_int_distribution<long>(pause / 2, pause)(jitter_));
    pause_ = std::min<std::chrono::milliseconds>(pause_ * 2, kLongestPause);
    at(again_, wait, [this] { connect(); });
  }
  /// Warns that rank 0 is not reached. While there is a line to it, rank 0 itself names the missing ranks.
  void tell_late() {
    if (!root_)
      OURO_WARN("rank {} waits for rank 0 at {}; {}", options_.identity.rank, options_.place, last_attempt_);
    at(late_, options_.late_after, [this] { tell_late(); });
  }
  void broken(const Status& why) {
    root_.reset();
    if (over()) {
      all_have_it_ = true;  // as far as this host can know
      return;
    }
    last_attempt_ = "the line to rank 0 broke: " + why.failure()->text;
    if (why.reason() == Reason::refused) return fail(why);
    // Rank 0 sends the whole table again, so a part of it is of no use.
    if (asked_root_) start_over(), asked_root_ = false;
    try_again();
  }

  void receive(wire::NetFrame frame) {
    pause_ = kFirstPause;
    if (auto* f = std::get_if<wire::TablePiece>(&frame)) return add(std::move(*f));
    if (auto* f = std::get_if<wire::Source>(&frame)) return fetch(*f);
    if (auto* f = std::get_if<wire::NetRefuse>(&frame)) return refused(*f);
    if (auto* f = std::get_if<wire::Waiting>(&frame))
      return OURO_WARN("waiting for ranks {{{}}}; joined {}/{}",
                       wire::printable(wire::view(f->missing), wire::kMaxText), f->joined, f->world);
    if (std::holds_alternative<wire::Bye>(frame)) {
      all_have_it_ = true;
      return;
    }
    if (!over()) fail({Reason::refused, "rank 0 said something out of place"});
  }
  void refused(const wire::NetRefuse& f) {
    if (over()) return;
    Status why(Failure{.reason = f.reason,
                       .text = wire::printable(wire::view(f.text), wire::kMaxText),
                       .rank = f.rank,
                       .host = wire::printable(wire::view(f.host)),
                       .pid = f.pid});
    const auto mine = f.member_only ? members_.find(f.rank) : members_.end();
    if (mine == members_.end() || !mine->second.refused) return fail(why);
    const auto hear_it = std::move(mine->second.refused);
    members_.erase(mine);
    hear_it(why);
  }

  void fetch(const wire::Source& from) {
    if (over() || asked_root_) return;
    children_expected_ = from.children;
    if (from.rank == 0 || from.endpoint.empty()) return start_over();  // the table follows on rank 0's line
    const auto patience = kFetch + 8 * round_trip_;
    at(patience_, patience, [this] { ask_root("no answer"); });
    dial(io_, from.endpoint, Purpose::table, options_.identity, static_cast<int>(from.rank),
         Clock::now() + patience, while_open([this](Result<Line> line) {
           if (over() || asked_root_) return;
           if (!line.ok()) return ask_root(line.status().failure()->text);
           source_ = std::make_shared<FrameStream>(io_, std::move(*line), wire::kMaxControl);
           source_->start(while_open([this](Result<wire::NetFrame> frame) {
             if (over()) return;
             auto* piece = frame.ok() ? std::get_if<wire::TablePiece>(&*frame) : nullptr;
             piece ? add(std::move(*piece))
                   : ask_root(frame.ok() ? "an odd frame" : frame.status().failure()->text);
           }));
         }));
  }
  void ask_root(const std::string& why) {
    if (over() || asked_root_) return;
    OURO_INFO(BOOTSTRAP, "the table of ranks did not arrive from another host ({}): asking rank 0", why);
    start_over();
    if (root_) root_->send(wire::Want{});
  }

  /// Asks rank 0 itself for the table.
  void start_over() {
    asked_root_ = true;
    patience_.cancel();
    if (source_) source_->close(), source_.reset();
    reader_ = wire::TableReader(world());
    pieces_.clear();
  }

  void add(wire::TablePiece piece) {
    if (over()) return;
    FrameStream::Payload bytes;
    if (children_expected_ > 0) bytes = std::make_shared<const wire::Bytes>(wire::encode_net(piece));
    if (Status s = reader_.add(std::move(piece)); !s.ok())
      return source_ ? ask_root(s.failure()->text) : fail(s);
    if (bytes) pieces_.push_back(std::move(bytes));
    if (!reader_.complete()) return;
    auto members = reader_.take();
    if (!members.ok()) return source_ ? ask_root(members.status().failure()->text) : fail(members.status());
    for (const auto& [rank, mine] : members_) {
      const MemberRecord* s = static_cast<std::size_t>(rank) < members->size()
                                  ? &(*members)[static_cast<std::size_t>(rank)]
                                  : nullptr;
      if (!s || s->pid != mine.member.pid || s->endpoint != mine.member.endpoint)
        return fail(
            {Reason::refused,
             fmt::format("the table of ranks names another process as rank {} than the one that was brought",
                         rank)});
    }
    complete_ = true;
    for (auto* timer : {&deadline_, &late_, &again_, &patience_}) timer->cancel();
    if (source_) source_->send(wire::Got{}), source_->finish(), source_.reset();
    if (root_) root_->send(wire::Got{});
    for (const auto& child : children_) hand_on(*child);
    if (children_expected_ > 0) at(serving_, kServe, [this] { all_have_it_ = true; });
    table_ = std::move(*members);
    deliver();
  }

  bool line_is_late(const std::shared_ptr<FrameStream>& child) {
    if (outcome_.ok() && !(complete_ && pieces_.empty())) return false;
    child->close();  // the other host then asks rank 0
    return true;
  }
  void hand_on(FrameStream& child) {
    for (const auto& piece : pieces_) child.send(piece);
  }
  void child_said(const std::shared_ptr<FrameStream>& child, const Result<wire::NetFrame>& frame) {
    if (frame.ok() && std::holds_alternative<wire::Got>(*frame)) ++children_served_;
    child->close();
    std::erase(children_, child);
    if (complete_ && children_served_ >= children_expected_ && children_.empty()) pieces_.clear();
  }

  void fail(Status why) {
    if (over()) return;
    outcome_ = std::move(why);
    for (auto* timer : {&deadline_, &late_, &again_, &patience_}) timer->cancel();
    for (auto* stream : {&root_, &source_})
      if (*stream) (*stream)->finish(), stream->reset();
    for (auto& child : std::exchange(children_, {})) child->close();
    deliver();
  }

  RendezvousOptions options_;
  Clock::time_point end_;
  asio::steady_timer deadline_, late_, again_, patience_, serving_;
  std::map<int, Mine> members_;         // of this host
  std::vector<wire::NetRefuse> words_;  // why the job cannot form
  std::shared_ptr<FrameStream> root_, source_;
  std::vector<std::shared_ptr<FrameStream>> children_;
  wire::TableReader reader_;
  std::vector<FrameStream::Payload> pieces_;  // kept while others fetch them
  std::string last_attempt_ = "the first attempt has had no answer yet", root_host_;
  int root_pid_ = 0;
  std::minstd_rand jitter_;
  std::chrono::milliseconds pause_ = kFirstPause;
  std::chrono::microseconds round_trip_{0};  // to rank 0
  std::uint32_t children_expected_ = 0, children_served_ = 0;
  bool met_ = false, asked_root_ = false, all_have_it_ = false;
};

RendezvousClient::RendezvousClient(asio::io_context& io, RendezvousOptions options)
    : state_(std::make_shared<State>(io, std::move(options))) {
  state_->start();
}
RendezvousClient::~RendezvousClient() { state_->close(); }
void RendezvousClient::bring(MemberRecord member, std::function<void(Status)> refused, std::uint32_t world) {
  state_->bring(std::move(member), std::move(refused), world);
}
void RendezvousClient::lost(int rank) { state_->lost(rank); }
void RendezvousClient::give_up(const MemberRecord& by, const Status& why) { state_->give_up(by, why); }
void RendezvousClient::root_absent(int code) { state_->root_absent(code); }
void RendezvousClient::async_table(TableCallback callback) { state_->async_table(std::move(callback)); }
void RendezvousClient::serve(Line line) { state_->serve(std::move(line)); }
bool RendezvousClient::served() const { return state_->served(); }

}  // namespace ouro::rt

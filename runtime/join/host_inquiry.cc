// Attempts and their verdicts. See host_inquiry.h.
#include "runtime/join/host_inquiry.h"

#include <algorithm>
#include <utility>

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kAnswerTime = 2500ms;  // a SYN is retransmitted after 1 s
constexpr auto kFirstRest = 50ms, kLongestRest = 1000ms;
// Attempts are counted, not timed, because a process that was stopped does not notice the time in between.
constexpr int kUnanswered = 2, kAttempts = 24;

}  // namespace

HostInquiry::HostInquiry(asio::io_context& io, std::string endpoint, Identity self, const Line& broken,
                         std::function<void(Verdict)> done)
    : io_(io),
      endpoint_(std::move(endpoint)),
      self_(std::move(self)),
      leader_(broken.peer_rank),
      patience_(kAnswerTime + 8 * broken.round_trip),
      done_(std::move(done)),
      timer_(io) {}

void HostInquiry::ask() {
  ++attempts_;
  dial(io_, endpoint_, Purpose::join, self_, leader_, Clock::now() + patience_,
       [weak = weak_from_this()](const Result<Line>& line) {
         if (const auto self = weak.lock()) self->on_answer(line);
       });
}

void HostInquiry::on_answer(const Result<Line>& line) {
  const Reason why = line.status().reason();
  if (why == Reason::peer_dead || why == Reason::refused) return done_(Verdict::dead);
  const bool answered = line.ok() || line.status().failure()->detector == "hang-up";
  unanswered_ = answered ? 0 : unanswered_ + (why == Reason::peer_unresponsive);
  if (unanswered_ >= kUnanswered) return done_(Verdict::silent);
  if (attempts_ >= kAttempts) return done_(Verdict::stays_away);
  timer_.expires_after(
      std::min<Clock::duration>(kFirstRest * (1 << std::min(attempts_ - 1, 8)), kLongestRest));
  timer_.async_wait([weak = weak_from_this()](error_code e) {
    const auto self = weak.lock();
    if (!e && self) self->ask();
  });
}

}  // namespace ouro::rt

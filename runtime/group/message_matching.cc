// Which receive gets which message. See message_matching.h.
#include "runtime/group/message_matching.h"

#include <fmt/format.h>

namespace ouro::rt {
namespace {

bool same_type(const MessageRequest& r, const Envelope& e) {
  return r.dtype == e.dtype || r.dtype == DType::u8 || e.dtype == DType::u8;
}
bool fits(const MessageRequest& r, const Envelope& e) {
  return same_type(r, e) && (r.exact ? e.bytes == r.bytes : e.bytes <= r.bytes);
}

/// The outcome of a receive that a message does not fit.
Status misfit_of(const MessageRequest& r, const Envelope& e) {
  if (!same_type(r, e))
    return Status(Failure{
        .reason = Reason::mismatch,
        .text = fmt::format("the message from rank {} with tag {} has {} elements of {}; "
                            "expected {} (it stays queued)",
                            e.source, e.tag, e.bytes / size_of(e.dtype), name(e.dtype), name(r.dtype)),
        .rank = e.source,
        .detector = "message"});
  if (r.exact)
    return Status(Failure{.reason = Reason::mismatch,
                          .text = fmt::format("the message from rank {} with tag {} has {} bytes; "
                                              "expected {} (it stays queued)",
                                              e.source, e.tag, e.bytes, r.bytes),
                          .rank = e.source,
                          .detector = "message"});
  return invalid(
      fmt::format("the message from rank {} with tag {} has {} bytes; room for {} (it stays queued)",
                  e.source, e.tag, e.bytes, r.bytes));
}

// The kinds of MatchQueue: receives by source and tag, and by source; messages by source and tag, and by tag.
constexpr std::size_t kPair = 0, kSource = 1, kTag = 1;
std::uint64_t pair_of(int source, int tag) {
  return std::uint64_t{static_cast<std::uint32_t>(source)} << 32 | static_cast<std::uint32_t>(tag);
}
std::uint64_t kind_of(int source_or_tag) { return static_cast<std::uint32_t>(source_or_tag); }

}  // namespace

MatchableReceive* MessageMatching::first_receive(int source, int tag) const {
  MatchableReceive* const named = receives_.first(kPair, pair_of(source, tag));
  MatchableReceive* const any = receives_.first(kPair, pair_of(MessageRequest::kAny, tag));
  if (!named || !any) return named ? named : any;
  return named->place.number() < any->place.number() ? named : any;
}

UnexpectedMessage* MessageMatching::first_message(int source, int tag) const {
  return source == MessageRequest::kAny ? messages_.first(kTag, kind_of(tag))
                                        : messages_.first(kPair, pair_of(source, tag));
}

Status MessageMatching::post(MatchableReceive& r, UnexpectedMessage** found) {
  const MessageRequest& request = r.request;
  UnexpectedMessage* m = nullptr;
  if (request.matched != 0) {
    const auto at = set_aside_.find(request.matched);
    if (at == set_aside_.end()) return invalid("recv: the matched message was received before");
    m = at->second;
    if (m->claimed) return invalid("recv: the matched message is being received; another receive has it");
  } else {
    m = first_message(request.peer, request.tag);
  }
  if (!m) {
    receives_.append(r, {pair_of(request.peer, request.tag), kind_of(request.peer)});
  } else {
    if (!fits(request, m->envelope)) return misfit_of(request, m->envelope);
    messages_.take_out(*m);
    claim(*m, r);
  }
  *found = m;
  return {};
}

UnexpectedMessage* MessageMatching::withdraw(MatchableReceive& r) {
  receives_.remove(r);
  UnexpectedMessage* const m = r.claims;
  if (!m) return nullptr;
  r.claims = nullptr;
  m->claimed = nullptr;
  return m->key == 0 ? m : nullptr;
}

MatchableReceive* MessageMatching::expected_from(int source) const {
  MatchableReceive* const first = receives_.first(kSource, kind_of(source));
  if (!first) return nullptr;
  const MatchableReceive* const any =
      receives_.first(kPair, pair_of(MessageRequest::kAny, first->request.tag));
  return any && any->place.number() < first->place.number() ? nullptr : first;
}

MatchableReceive* MessageMatching::take_receive(const Envelope& e, Status* misfit) {
  MatchableReceive* const first = first_receive(e.source, e.tag);
  if (!first) return nullptr;
  receives_.remove(*first);
  if (!fits(first->request, e)) [[unlikely]]
    *misfit = misfit_of(first->request, e);
  return first;
}

bool MessageMatching::may_take(int source, std::size_t bytes, std::optional<int> asked) const {
  return backlog_ + bytes <= most_ || asked == source || asked == MessageRequest::kAny ||
         receives_.first(kSource, kind_of(source)) || receives_.first(kSource, kind_of(MessageRequest::kAny));
}

void MessageMatching::hold(UnexpectedMessage& m, std::size_t held) {
  m.held = held;
  backlog_ += held;
}

void MessageMatching::await_receive(UnexpectedMessage& m) {
  if (m.place.number() != 0)
    messages_.put_back(m);
  else
    messages_.append(m, {pair_of(m.envelope.source, m.envelope.tag), kind_of(m.envelope.tag)});
}

void MessageMatching::claim(UnexpectedMessage& m, MatchableReceive& r) {
  m.claimed = &r;
  r.claims = &m;
}

void MessageMatching::forget(UnexpectedMessage& m) {
  messages_.remove(m);
  if (m.key != 0) set_aside_.erase(m.key);
  backlog_ -= m.held;
  if (m.claimed) m.claimed->claims = nullptr;
}

std::optional<MessageMatching::Match> MessageMatching::set_aside(int source, int tag) {
  UnexpectedMessage* const found = first_message(source, tag);
  if (!found) return std::nullopt;
  set_aside_[last_key_ + 1] = found;
  found->key = ++last_key_;
  messages_.take_out(*found);
  return Match{found->envelope, found->key};
}

UnexpectedMessage* MessageMatching::put_back(std::uint64_t key) {
  const auto at = set_aside_.find(key);
  if (at == set_aside_.end()) return nullptr;
  UnexpectedMessage* const m = at->second;
  set_aside_.erase(at);
  m->key = 0;
  return m->claimed ? nullptr : m;
}

}  // namespace ouro::rt

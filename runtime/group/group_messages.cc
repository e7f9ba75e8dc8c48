// Groups: what is wrong with a message, posting messages and driving them to their end. Part of Group; how
// they move is in messages.cc.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/group/group_waiters.h"

namespace ouro::rt {

Status Group::check(const Message& m) const {
  const char* what = m.sends ? "send" : "recv";
  if (m.tag < 0) return invalid(fmt::format("{}: tag {}; expected 0 to 2^31-1", what, m.tag));
  if ((m.peer < 0 || m.peer >= size()) && (m.sends || m.peer != Message::kAny))
    return invalid(fmt::format("{}: rank {} is not in the group (0..{})", what, m.peer, size() - 1));
  if (m.bytes > 0 && !m.data) return invalid(fmt::format("{}: null buffer with {} bytes", what, m.bytes));
  if (m.bytes > kMaxBytes)
    return invalid(
        fmt::format("{}: a message that overflows an address; expected at most {} bytes", what, kMaxBytes));
  return {};
}

Status Group::post(std::vector<Message*> messages) {
  OURO_TRY(context_->usable());
  if (closed_.load(std::memory_order_acquire))
    return {Reason::revoked, fmt::format("group '{}' is closed", spec_.name)};
  if (std::atomic_ref(abort_word_).load(std::memory_order_acquire) != 0) return status();
  for (const Message* m : messages) OURO_TRY(check(*m));
  auto engine = this->messages();
  if (!engine.ok()) return fail(*engine.status().failure(), nullptr, true);
  // Receives first: what a send of the same batch brings then lands where it belongs.
  for (bool sends : {false, true})
    for (Message* m : messages)
      if (m->sends == sends) (*engine)->post(*m);
  return {};
}

Status Group::complete(const std::vector<Message*>& messages, std::chrono::milliseconds deadline) {
  auto engine = this->messages();
  if (!engine.ok()) return engine.status();
  MessageWaiter waiter(*this, messages, deadline.count() > 0 ? deadline : spec_.deadline);
  if (!one_host()) waiter.drive(&context_->network()->fabric());
  // Where no other member is on this host, the network alone rings the doorbell.
  const bool by_network = !one_host() && members_.here() == 1;
  Status outcome;
  for (;;) {
    const std::uint64_t heard = load((*engine)->doorbell());
    outcome = (*engine)->progress();
    if (!outcome.ok()) break;
    if (std::all_of(messages.begin(), messages.end(), [&](const Message* m) { return (*engine)->done(*m); }))
      break;
    outcome = waiter.until((*engine)->doorbell(), heard + 1, by_network);
    if (!outcome.ok()) break;
  }
  bool torn = false, all_done = true;
  for (Message* m : messages) {
    torn |= !(*engine)->withdraw(*m);
    all_done &= (*engine)->done(*m);
  }
  if (outcome.reason() == Reason::deadline && all_done) outcome = {};
  if (!outcome.ok()) {
    // A receive that nobody answered in time leaves the group as it was; a message cut in its middle does
    // not.
    if (outcome.reason() == Reason::deadline && !torn && deadline.count() > 0) return outcome;
    Status known = status();
    return known.ok() ? fail(*outcome.failure(), nullptr, true) : known;
  }
  for (const Message* m : messages) OURO_TRY(m->outcome);
  return {};
}

Result<std::optional<Envelope>> Group::probe(int source, int tag) {
  Message m{.peer = source, .tag = tag};
  OURO_TRY(check(m));
  OURO_TRY(post({}));
  auto engine = this->messages();
  if (!engine.ok()) return engine.status();
  if (Status s = (*engine)->progress(); !s.ok()) return fail(*s.failure(), nullptr, true);
  return (*engine)->peek(source, tag);
}

Result<std::optional<Messages::Match>> Group::match(int source, int tag) {
  OURO_ASSIGN(const auto here, probe(source, tag));
  if (!here) return std::optional<Messages::Match>();
  OURO_ASSIGN(Messages* const engine, messages());
  return engine->match(source, tag);
}

void Group::put_back(std::uint64_t key) {
  if (const auto engine = messages(); engine.ok()) (*engine)->put_back(key);
}

}  // namespace ouro::rt

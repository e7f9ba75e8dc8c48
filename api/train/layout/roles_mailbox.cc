// Whole messages over a group: a thread claims a message it finds before another thread can see it.
// See ouro/train/roles.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "api/train/common/not_in_batch.h"
#include "api/train/layout/most_bytes.h"
#include "ouro/train/roles.hpp"

namespace ouro::train {

struct Mailbox::State {
  explicit State(Group g) : group(std::move(g)) {}
  /// Does not wait for peers: messages still in flight end, on all ranks.
  ~State() {
    const bool busy =
        std::any_of(outgoing.begin(), outgoing.end(), [](const auto& o) { return !o.second.last.test(); });
    if (busy) group.abort("a mailbox ended with messages under way");
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  Group group;
  struct Outgoing {
    Stream stream;
    Work last;  // most recent send enqueued there
  };
  std::mutex send_mutex;
  std::map<int, Outgoing>
      outgoing;  // by destination; made by the first isend to it; keeps the order of messages

  Result<std::optional<Message>> take(int src, int tag, Milliseconds deadline);
};

Result<Mailbox> Mailbox::create(Group g) {
  if (!g.valid()) return invalid("mailbox: the group is an empty handle");
  OURO_TRY(not_in_batch("mailbox"));
  auto state = std::make_shared<State>(std::move(g));
  // Creates the links of all ranks now, so that a first message need not wait for a rank that is computing.
  OURO_TRY(ouro::probe(state->group, kAnySource).status());
  OURO_TRY(barrier(state->group, kAuto));
  return Mailbox(std::move(state));
}

int Mailbox::rank() const { return state_->group.rank(); }
int Mailbox::size() const { return state_->group.size(); }

Status Mailbox::send(CBytes data, int dst, int tag) {
  OURO_TRY(not_in_batch("mailbox"));
  bool queued = false;
  {
    std::lock_guard lock(state_->send_mutex);
    queued = state_->outgoing.contains(dst);
  }
  if (!queued) return ouro::send(state_->group, CView(data.data(), data.size(), DType::u8), dst, tag);
  const auto work = isend(data, dst, tag);  // queued after the messages in flight to that rank
  OURO_TRY(work.status());
  return work->wait();
}

Result<Work> Mailbox::isend(CBytes data, int dst, int tag) {
  if (dst < 0 || dst >= size() || tag < 0)
    return invalid(fmt::format("isend: rank {} and tag {}; expected a rank of 0..{} and a tag of 0 at least",
                               dst, tag, size() - 1));
  if (data.size() > kMostBytes)
    return invalid(fmt::format("isend: {} bytes overflow an address", data.size()));
  Bytes bytes;
  try {
    bytes.assign(data.begin(), data.end());
  } catch (const std::bad_alloc&) {
    return Status(Reason::resource, fmt::format("isend: no memory for a copy of {} bytes", data.size()));
  }
  std::lock_guard lock(state_->send_mutex);
  auto to = state_->outgoing.find(dst);
  if (to == state_->outgoing.end()) {
    OURO_ASSIGN(auto stream, Stream::create(Priority::normal, fmt::format("mail to {}", dst)));
    to = state_->outgoing.emplace(dst, State::Outgoing{std::move(stream), Work()}).first;
  }
  // Captures the group, not the state: a state destroyed on its own stream's thread would join that thread.
  to->second.last =
      to->second.stream.run([group = state_->group, bytes = std::move(bytes), dst, tag]() mutable {
        return ouro::send(group, CView(bytes.data(), bytes.size(), DType::u8), dst, tag);
      });
  return to->second.last;
}

Result<std::optional<Message>> Mailbox::State::take(int src, int tag, Milliseconds deadline) {
  OURO_ASSIGN(const auto found, ouro::match(group, src, tag));
  if (!found) return std::optional<Message>();
  Message m;
  m.source = found->about().source, m.tag = tag;
  try {
    m.data.resize(found->about().bytes);
  } catch (const std::exception&) {  // the sender chooses the length; the message is left in the queue
    return Status(Reason::resource, fmt::format("recv: no memory for a message of {} bytes from rank {}",
                                                found->about().bytes, m.source));
  }
  OURO_TRY(ouro::recv(group, *found, View(m.data.data(), m.data.size(), DType::u8), deadline).status());
  return std::optional(std::move(m));
}

Result<Message> Mailbox::recv(std::optional<int> src, int tag, Milliseconds deadline) {
  constexpr int kYields = 400;
  constexpr std::chrono::microseconds kLongest{500};
  OURO_TRY(not_in_batch("mailbox"));
  const Milliseconds limit = deadline.count() > 0 ? deadline : state_->group.deadline();
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [start] {
    return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - start);
  };
  std::chrono::microseconds pause{10};
  for (int turn = 0;; ++turn) {
    OURO_ASSIGN(auto taken,
                state_->take(src.value_or(kAnySource), tag, std::max(limit - waited(), Milliseconds(1))));
    if (taken) return std::move(*taken);
    const Milliseconds so_far = waited();
    if (so_far >= limit)
      return Status(Failure{.reason = Reason::deadline,
                            .text = fmt::format("no message with tag {} arrived {}", tag,
                                                src ? fmt::format("from rank {}", *src) : "from any rank"),
                            .rank = src.value_or(-1),
                            .group = state_->group.name(),
                            .op = "recv",
                            .elapsed_s = std::chrono::duration<double>(so_far).count()});
    if (turn < kYields) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

Result<std::optional<Received>> Mailbox::probe(std::optional<int> src, int tag) {
  return ouro::probe(state_->group, src.value_or(kAnySource), tag);
}

Status Mailbox::drain(Milliseconds deadline) {
  std::map<int, State::Outgoing> outgoing;
  {
    std::lock_guard lock(state_->send_mutex);
    outgoing = state_->outgoing;
  }
  Status first;
  for (const auto& [dst, to] : outgoing)
    if (Status s = to.stream.synchronize(deadline); first.ok()) first = s;
  return first;
}

Status Mailbox::close() {
  const Status drained = drain();
  const Status closed = state_->group.close();
  return drained.ok() ? closed : drained;
}

}  // namespace ouro::train

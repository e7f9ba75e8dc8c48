// Frames over one TCP connection. See tcp_connection.h.
#include "transport/net/tcp/tcp_connection.h"

#include <algorithm>
#include <cstring>

namespace ouro::transport {
namespace {
constexpr std::size_t kPerTurn = 4 << 20;  // bytes moved on one connection in one turn
}  // namespace

Status TcpConnection::send(std::size_t burst) {
  if (broken()) return {};
  std::size_t moved = 0;
  OURO_TRY(pipe_.flush());
  // A chunk that is not given back at this point stays so during this call: frames of the peer are only
  // handled in receive().
  if (!out_.empty()) withdraw();
  while (moved < kPerTurn && pipe_.ready() && !pipe_.blocked()) {
    for (Exchange::Outgoing out; out_.size() < burst && exchange_.next(peer_, &out);)
      out_.push_back(std::move(out));
    if (out_.empty()) break;
    std::array<iovec, 2 * kBurst> parts;
    std::size_t used = 0, skip = written_;
    for (Exchange::Outgoing& out : out_) {
      const std::size_t of_head = std::min(skip, sizeof(NetHeader)), of_payload = skip - of_head;
      // iovec requires pointers to non-const; nothing writes through these.
      parts[used++] = {reinterpret_cast<std::byte*>(&out.header) + of_head, sizeof(NetHeader) - of_head};
      if (out.header.bytes > of_payload)
        parts[used++] = {const_cast<std::byte*>(out.payload) + of_payload, out.header.bytes - of_payload};
      skip = 0;
    }
    const auto n = pipe_.write(std::span(parts).first(used));
    if (!n.ok()) return n.status();
    if (*n == 0) break;
    moved += *n;
    written_ += *n;
    const auto whole = [&](const Exchange::Outgoing& out) {
      const std::size_t all = sizeof(NetHeader) + out.header.bytes;
      if (written_ < all) return false;
      written_ -= all;
      return true;
    };
    out_.erase(out_.begin(), std::find_if_not(out_.begin(), out_.end(), whole));
  }
  return {};
}

/// Stops reading payloads that have been given back to their owners: they had arrived by an earlier
/// connection, or the peer gave back what it cannot have.
void TcpConnection::withdraw() {
  for (auto out = out_.begin(); out != out_.end();) {
    if (out->payload == filler_.data() || !exchange_.given_back(peer_, out->header)) {
      ++out;
    } else if (out == out_.begin() &&
               written_ > 0) {  // the other side awaits the rest of this frame, and discards it
      filler_.assign(out->header.bytes, std::byte{});
      out->payload = filler_.data();
    } else {
      out = out_.erase(out);
    }
  }
}

Status TcpConnection::receive(std::span<std::byte> waste, bool* any) {
  std::size_t moved = 0;
  const bool was_ready = pipe_.ready();
  auto from = Pipe::From::wire;
  *any = paused_ = false;
  while (!paused_) {
    bool took = false;
    OURO_TRY(take_staged(&took));
    if (took) {
      *any = true;
      continue;
    }
    // The rest of the current payload is read to its destination; what follows is staged.
    if (begin_ > 0) {
      std::memmove(stage_.data(), stage_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const std::size_t lacks = within_ ? in_.bytes - got_ : 0;
    // If much of the payload is missing, only the next header is staged, so that the payload after it is also
    // read directly to its destination.
    const iovec stage{stage_.data() + end_, lacks > kStage ? sizeof(NetHeader) : stage_.size() - end_};
    std::array<iovec, 2> parts{stage, iovec{}};
    std::size_t direct = 0;
    if (lacks > 0 && destination_.to) {
      direct = lacks;
      parts = {iovec{destination_.to + got_, lacks}, stage};
    } else if (lacks > 0) {
      direct = std::min(lacks, waste.size());
      parts = {iovec{waste.data(), direct}, iovec{}};
    }
    const auto n = pipe_.read(parts, from);
    if (!n.ok()) return n.status();
    if (*n == 0) break;
    moved += *n;
    if (moved >= kPerTurn || (pipe_.in_clear() && *n < parts[0].iov_len + parts[1].iov_len))
      from = Pipe::From::kept;  // an unencrypted socket that returns less than requested is empty
    got_ += std::min(*n, direct);
    end_ += *n - std::min(*n, direct);
    if (within_ && got_ == in_.bytes) finish();
  }
  *any |= moved > 0 || pipe_.ready() != was_ready;
  return {};
}

/// Processes staged data: a header, or the beginning of a payload. If *took stays false, more data has to
/// arrive first.
Status TcpConnection::take_staged(bool* took) {
  const std::size_t staged = end_ - begin_;
  if (!within_) {
    if (staged < sizeof(NetHeader)) return {};
    std::memcpy(&in_, stage_.data() + begin_, sizeof in_);
    begin_ += sizeof in_;
    auto destination = exchange_.begin_receive(peer_, in_);
    if (!destination.ok()) {
      bad_header_ = true;
      return destination.status();
    }
    destination_ = std::move(*destination);
    within_ = true;
    got_ = 0;
    if (in_.bytes == 0) finish();
    *took = true;
    return {};
  }
  if (staged == 0) return {};
  const std::size_t n = std::min(staged, in_.bytes - got_);
  if (destination_.to) std::memcpy(destination_.to + got_, stage_.data() + begin_, n);
  begin_ += n;
  got_ += n;
  if (got_ == in_.bytes) finish();
  *took = true;
  return {};
}

void TcpConnection::finish() {
  exchange_.received(peer_, in_, destination_);
  state_.damaged = 0;
  // This pause lets the owner post the next receive. Otherwise data that follows, and may be here already,
  // would be read into a slot and have to be copied from there.
  paused_ = destination_.ends;
  destination_ = {};
  within_ = false;
}

std::optional<TcpSample> TcpConnection::sample() const {
  return broken_ ? std::nullopt : sample_tcp(socket_.get(), number_, true);
}

void TcpConnection::moved(const NetLink::Move& m) {
  const auto is = [&](const NetHeader& h) { return h.link_set == m.link_set && h.index == m.index; };
  for (Exchange::Outgoing& out : out_)
    if (out.payload == m.from && is(out.header)) out.payload = m.to;
  if (!within_ || destination_.to != m.from || !is(in_)) return;
  std::memcpy(m.to, m.from, got_);
  destination_.to = m.to;
}

void TcpConnection::give_up() {
  if (within_ && destination_.to) exchange_.abandon(peer_, in_);
  close();
  exchange_.resume(peer_);
}

}  // namespace ouro::transport

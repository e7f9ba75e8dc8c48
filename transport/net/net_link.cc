// Both directions between this rank and one of another host. See net_link.h.
#include "transport/net/net_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace ouro::transport {

NetLink::NetLink(std::uint32_t slot_bytes, std::uint32_t slot_count)
    : slot_bytes_(slot_bytes), slot_count_(slot_count) {
  constexpr std::size_t kAlign = 4096;
  const std::size_t ring = std::size_t{slot_count} * (sizeof(SlotHeader) + slot_bytes);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(2 * ring + kAlign);
  auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
  in_slots_ = memory_.get() + (kAlign - at % kAlign) % kAlign;
  out_slots_ = in_slots_ + ring;
  in_elsewhere_ = std::make_unique<const std::byte*[]>(slot_count);
  out_elsewhere_ = std::make_unique<const std::byte*[]>(slot_count);
  in_device_ = std::make_unique<const std::byte*[]>(slot_count);
  out_lent_.resize(slot_count);
  in_borrowed_.resize(slot_count);
}

// ---- outbound -------------------------------------------------------------------------------------

bool NetLink::next(std::uint64_t link_set, NetHeader* out, const std::byte** payload,
                   std::shared_ptr<void>* device) {
  release_device_memory();
  const std::uint64_t freed = load(in_freed_);
  NetHeader& h = *out = {};
  *payload = nullptr;
  device->reset();
  h.link_set = link_set;
  h.freed = freed;
  if (std::exchange(say_open_, false)) return h.kind = NetHeader::kOpen, true;
  if (std::exchange(say_opened_, false)) return h.kind = NetHeader::kOpened, true;
  if (!open_) return false;
  if (ask_again_ != 0) {
    h.kind = NetHeader::kResend;
    h.index = load(in_full_);
    while (!(ask_again_ & bit(h.index))) ++h.index;
    ask_again_ &= ~bit(h.index);
    return true;
  }
  const std::uint64_t full = load(out_full_);
  if (!next_chunk(full, &h.index)) {
    // No chunk carries the count along: it is sent by itself when half of the slots, or the other side,
    // wait for it.
    const bool awaited = reported_ < report_at_ && freed >= report_at_;
    if (!say_credit_ && !say_ask_ && !awaited && freed - reported_ < slot_count_ / 2) return false;
    h.kind = say_ask_ ? NetHeader::kAsk : NetHeader::kCredit;
    if (!say_ask_) h.index = load(in_full_);
    say_ask_ = say_credit_ = false;
    reported_ = freed;
    return true;
  }
  const SlotHeader& s = this->out().header(h.index);
  h.kind = NetHeader::kChunk;
  h.bytes = s.bytes;
  h.seq = s.seq, h.signature = s.signature, h.total = s.total, h.tag = s.tag;
  reported_ = freed;
  say_credit_ = false;
  const Lent& lent = out_lent_[h.index % slot_count_];
  *payload = lent.memory ? lent.at : this->out().found(h.index);
  *device = lent.memory;
  // The owner of a lent message waits for its memory, so it asks for a report when the last chunk has been
  // given back.
  h.report = (lent.memory || out_elsewhere_[h.index % slot_count_]) &&
             (h.index + 1 == full || this->out().header(h.index + 1).seq != s.seq);
  return true;
}

bool NetLink::next_chunk(std::uint64_t full, std::uint64_t* index) {
  if (gone_) return false;  // no chunks are sent there any more; chunks from there are still given back
  if (again_ != 0) {
    *index = load(out_freed_);
    while (!(again_ & bit(*index))) ++*index;
    again_ &= ~bit(*index);
    return true;
  }
  if (sent_ >= full) return false;
  *index = sent_++;
  return true;
}

bool NetLink::give_back(std::uint64_t freed) {
  if (freed <= load(out_freed_) || freed > sent_) return false;
  for (std::uint64_t i = load(out_freed_); i < freed; ++i) {
    again_ &= ~bit(i);
    out_lent_[i % slot_count_] = {};
  }
  publish(out_freed_, freed);
  return true;
}

void NetLink::handle_control(const NetHeader& h) {
  switch (h.kind) {
    case NetHeader::kOpen:
      say_opened_ = true;
      open_ = true;
      break;
    case NetHeader::kOpened:
      open_ = true;
      break;
    case NetHeader::kCredit:
      if (h.index <= sent_) has_arrived_ = std::max(has_arrived_, h.index);
      break;
    case NetHeader::kAsk:
      say_credit_ = asked_ = true;
      break;
    case NetHeader::kResend:
      if (h.index >= load(out_freed_) && h.index < sent_) again_ |= bit(h.index);
      break;
    case NetHeader::kGone:
      gone_ = true;
      break;
    default:
      break;
  }
}

void NetLink::resume() {
  for (std::uint64_t i = load(out_freed_); i < sent_; ++i) again_ |= bit(i);
  say_open_ = say_credit_ = true;
}

void NetLink::recall_outbound(const Moved& moved) {
  for (std::uint64_t i = load(out_freed_); i < load(out_full_); ++i) {
    const std::byte*& at = out_elsewhere_[i % slot_count_];
    if (!at) continue;
    std::memcpy(out().payload(i), at, out().header(i).bytes);
    if (i < sent_) moved({.index = i, .from = at, .to = out().payload(i)});
    at = nullptr;
  }
}

// ---- inbound --------------------------------------------------------------------------------------

void NetLink::release_device_memory() {
  for (const std::uint64_t freed = load(in_freed_); released_ < freed; ++released_) {
    in_device_[released_ % slot_count_] = nullptr;
    in_borrowed_[released_ % slot_count_].reset();
  }
}

bool NetLink::posted(const NetHeader& h, std::uint64_t* at) const {
  if (!posted_.to || h.seq != posted_.first || h.tag != posted_.tag || h.total > posted_.capacity)
    return false;
  if (h.index < h.seq || h.index - h.seq >= h.total / slot_bytes_ + 1) return false;
  *at = (h.index - h.seq) * slot_bytes_;
  return h.bytes != 0 && h.bytes == std::min<std::uint64_t>(slot_bytes_, h.total - *at);
}

NetLink::Destination NetLink::begin_receive(const NetHeader& h, bool anywhere, std::string* wrong) {
  const std::uint64_t full = load(in_full_), end = load(in_freed_) + slot_count_;
  if (h.bytes > slot_bytes_)
    *wrong = fmt::format("a chunk of {} bytes for slots of {}", h.bytes, slot_bytes_);
  else if (h.index >= end)
    *wrong = fmt::format("chunk {} where there is room up to {}", h.index, end);
  if (!wrong->empty()) return {};
  if (h.index < full || ((got_ | coming_) & bit(h.index))) return {};  // it is a duplicate
  release_device_memory();
  coming_ |= bit(h.index);
  const std::size_t slot = h.index % slot_count_;
  in_elsewhere_[slot] = in_device_[slot] = nullptr;
  in_borrowed_[slot].reset();
  std::uint64_t at = 0;
  if (!posted(h, &at)) return {.to = in().payload(h.index)};
  const bool ends = at + h.bytes == h.total;
  if (anywhere) {
    in_elsewhere_[slot] = posted_.to + at;
    return {.to = posted_.to + at, .ends = ends};
  }
  // A payload on a device could not be checked here.
  if (!posted_.device || h.check != 0) return {.to = in().payload(h.index)};
  in_device_[slot] = posted_.device.get() + at;
  in_borrowed_[slot] = posted_.device;
  return {.to = posted_.device.get() + at, .ends = ends, .device = posted_.device};
}

NetLink::Arrived NetLink::arrive(const NetHeader& h) {
  const std::uint64_t full = load(in_full_);
  const std::uint64_t here = bit(h.index);
  if (h.index < full || !(coming_ & here)) return Arrived::kNothing;
  coming_ &= ~here;
  const LinkView view = in();
  if (h.check != 0 && h.check != check_of(h, view.found(h.index))) {
    if (bad_ & here) return Arrived::kDamagedAgain;
    bad_ |= here;
    ask_again_ |= here;
    return Arrived::kNothing;
  }
  view.header(h.index) = {h.seq, h.signature, h.total, h.bytes, h.tag};
  if (h.report != 0) report_at_ = std::max(report_at_, h.index + 1);
  got_ |= here;
  bad_ &= ~here;
  ask_again_ &= ~here;
  std::uint64_t now = full;
  for (; got_ & bit(now); ++now) got_ &= ~bit(now);
  if (now == full) return Arrived::kNothing;
  publish(in_full_, now);
  say_credit_ |= asked_;
  return Arrived::kNews;
}

void NetLink::abandon(std::uint64_t index) {
  if (index < load(in_full_) || !(coming_ & bit(index))) return;
  coming_ &= ~bit(index);
  const std::size_t slot = index % slot_count_;
  if (in_device_[slot]) {
    in_device_[slot] = nullptr;
    in_borrowed_[slot].reset();
    posted_.device.reset();
  }
  ask_again_ |= bit(index);
}

bool NetLink::elsewhere() const {
  const std::uint64_t freed = load(in_freed_), full = load(in_full_);
  for (std::uint64_t i = freed; i < freed + slot_count_; ++i)
    if (in_elsewhere_[i % slot_count_] && (i < full || ((got_ | coming_) & bit(i)))) return true;
  return false;
}

void NetLink::recall_inbound(const Moved& moved) {
  posted_ = {};
  const std::uint64_t freed = load(in_freed_);
  for (std::uint64_t i = freed; i < freed + slot_count_; ++i) {
    const std::byte*& at = in_elsewhere_[i % slot_count_];
    if (!at) continue;
    if (i < load(in_full_) || (got_ & bit(i)))
      std::memcpy(in().payload(i), at, in().header(i).bytes);
    else if (coming_ & bit(i))
      moved({.index = i, .from = at, .to = in().payload(i)});
    at = nullptr;
  }
}

}  // namespace ouro::transport

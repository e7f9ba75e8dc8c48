// Copies down, the host's part and copies up, overlapped. See staged_pieces.h.
#include "runtime/exec/gpu/staged_pieces.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/no_memory.h"
#include "runtime/stream/host_calls.h"

namespace ouro::rt {
namespace {

using gpu::MemOp;
using namespace std::chrono_literals;

constexpr std::size_t kWordsApart = 32;  // words, two lines

}  // namespace

/// One operation on its way, shared by its call and the thread that does the host's part.
class StagedPieces::Passage final : public HostCall {
 public:
  Passage(const Operation& op, const StagedCut& c, std::byte* in, std::byte* out,
          std::shared_ptr<GpuStream> s, RunOnHost run)
      : whole(op),
        cut(c),
        in_(in),
        out_(out),
        stream_(std::move(s)),
        helper_(stream_->helper()),
        on_host_(std::move(run)) {}

  const KeptOperation whole;
  const StagedCut cut;
  std::shared_ptr<void> words;
  std::uint32_t base = 0;  // pieces of all operations before
  std::chrono::milliseconds deadline{};
  gpu::Stream down;
  const std::shared_ptr<WorkState> outcome = std::make_shared<WorkState>();

  std::uint32_t* down_word() const { return static_cast<std::uint32_t*>(words.get()); }
  std::uint32_t* up_word() const { return down_word() + kWordsApart; }
  /// nullptr where this rank reads, or writes, nothing.
  std::byte* in_slot(std::size_t k) const {
    return in_ ? in_ + k % StagedCut::kSlots * cut.in_bytes() : nullptr;
  }
  std::byte* out_slot(std::size_t k) const {
    return out_ ? out_ + k % StagedCut::kSlots * cut.out_bytes() : nullptr;
  }
  std::uint32_t number(std::size_t k) const { return base + static_cast<std::uint32_t>(k) + 1; }
  /// Not all of it could be enqueued: what is missing is not waited for. Of what is wrong with others the
  /// call says more than this rank's thread could.
  void abandon(const Status& why) {
    const bool own = why.reason() == Reason::device || why.reason() == Reason::resource;
    why_ = own ? why : Status(Reason::revoked, "the device did not take all pieces");
    abandoned_.store(true, std::memory_order_release);
  }

  /// Takes no lock that a call may hold.
  void begin() override {
    helper_.enqueue([self = shared_from_this(), this] {
      carry();
      return Status();
    });
  }
  void give_up(const Status& why) override {
    on_host_ = nullptr;
    outcome->complete(why);
  }

 private:
  void carry() {
    Status s;
    try {
      s = on_host_(whole.get(), [this](const Operation** part) { return next(part); });
    } catch (const std::exception&) {
      s = no_memory();
    }
    // Before the stream continues, so that waiters of the stream see the failure.
    stream_->note(s);
    // Pieces that were not exchanged are copied up unchanged, so that the stream continues.
    for (; at_ < cut.pieces; ++at_) {
      (void)await_down(at_).ok();
      release(at_);
    }
    on_host_ = nullptr;
    outcome->complete(s);
  }

  Status next(const Operation** part) {
    if (given_) release(at_++);
    given_ = at_ < cut.pieces;
    *part = nullptr;
    if (!given_) return {};
    if (Status s = await_down(at_); !s.ok()) {
      given_ = false;
      return s;
    }
    part_ = whole.get();
    part_.in.device = part_.out.device = {};
    part_.in.data = in_slot(at_), part_.out.data = out_slot(at_);
    part_.in.count = cut.in_count(at_), part_.out.count = cut.out_count(at_);
    lengths_.clear();
    for (std::size_t b = 0; b < cut.lengths.size(); ++b) lengths_.push_back(cut.count(at_, b));
    if (!part_.in_counts.empty()) part_.in_counts = lengths_;
    if (!part_.out_counts.empty()) part_.out_counts = lengths_;
    *part = &part_;
    return {};
  }

  /// The copy is the device's alone and ends by itself, unless the device does.
  Status await_down(std::size_t k) const {
    const std::atomic_ref word(*down_word());
    const auto end = Clock::now() + deadline;
    constexpr int kYields = 64, kAskEvery = 256;
    for (int i = 0; !reached(word.load(std::memory_order_acquire), number(k)); ++i) {
      if (abandoned_.load(std::memory_order_acquire)) return why_;
      if (i % kAskEvery == kAskEvery - 1) {
        if (auto there = gpu::gpu().query(down); !there.ok()) return there.status();
        if (Clock::now() > end)
          return {Reason::deadline,
                  fmt::format("piece {} of {} did not come from the device", k, cut.pieces)};
      }
      if (i < kYields)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(20us);
    }
    return {};
  }
  /// Pairs with the wait of the stream that copies up.
  void release(std::size_t k) const {
    std::atomic_ref(*up_word()).store(number(k), std::memory_order_release);
  }

  std::byte* const in_;
  std::byte* const out_;
  const std::shared_ptr<GpuStream> stream_;
  HostStream& helper_;
  RunOnHost on_host_;
  Status why_;  // before `abandoned_` is set
  std::atomic<bool> abandoned_{false};
  // Of the host's thread.
  std::size_t at_ = 0;  // the piece that is with the host, or will be next
  bool given_ = false;
  Operation part_;
  std::vector<std::size_t> lengths_;  // of its uneven blocks
};

Status StagedPieces::prepare(std::size_t room) {
  while (!under_way_.empty() && (taken_ + room > kRoom || under_way_.front().work->done())) {
    under_way_.front().work->wait();
    taken_ -= under_way_.front().room;
    under_way_.pop_front();
  }
  if (words_) return {};
  OURO_ASSIGN(down_, GpuStream::create(team_.device, 0));
  OURO_ASSIGN(up_, GpuStream::create(team_.device, 0));
  for (std::shared_ptr<PooledEvent>* e : {&begun_, &ended_, &ready_}) {
    OURO_ASSIGN(*e, PooledEvent::take(team_.device));
  }
  for (std::shared_ptr<PooledEvent>& e : free_) {
    OURO_ASSIGN(e, PooledEvent::take(team_.device));
  }
  auto words = take_pinned(2 * kWordsApart * sizeof(std::uint32_t));
  if (!words.ok()) return words.status();
  auto* const word = static_cast<std::uint32_t*>(words->get());
  word[0] = word[kWordsApart] = pieces_;
  words_ = std::move(*words);
  return {};
}

Status StagedPieces::enqueue(const Operation& op, const StagedCut& cut, PieceMover& mover, std::byte* in,
                             std::byte* out, const std::shared_ptr<GpuStream>& stream, RunOnHost on_host,
                             std::shared_ptr<WorkState>* outcome) {
  const auto passage = std::make_shared<Passage>(op, cut, in, out, stream, std::move(on_host));
  passage->words = words_, passage->base = pieces_, passage->deadline = team_.deadline,
  passage->down = down_->get();
  *outcome = passage->outcome;
  pieces_ += static_cast<std::uint32_t>(cut.pieces);
  OURO_TRY(follows(down_->get(), stream->get(), *begun_));
  OURO_TRY(call_later(stream->get(), passage));
  const Status enqueued = team_.in_part(enqueue_pieces(*passage, mover, *stream));
  if (!enqueued.ok()) passage->abandon(enqueued);
  // What was enqueued before an error has to be waited for as well.
  const Status joined = team_.in_part(follows(stream->get(), up_->get(), *ended_));
  return enqueued.ok() ? joined : enqueued;
}

Status StagedPieces::enqueue_pieces(Passage& p, PieceMover& mover, GpuStream& stream) {
  for (std::size_t k = 0; k < p.cut.pieces + StagedCut::kSlots - 1; ++k) {
    if (k < p.cut.pieces) OURO_TRY(copy_down(p, mover, k, stream));
    if (k + 1 >= StagedCut::kSlots) OURO_TRY(copy_up(p, mover, k + 1 - StagedCut::kSlots, stream));
  }
  return {};
}

Status StagedPieces::copy_down(const Passage& p, PieceMover& mover, std::size_t k, GpuStream& stream) {
  const gpu::Stream& s = down_->get();
  if (mover.in_stream()) {
    OURO_TRY(mover.before(k, stream));
    OURO_TRY(follows(s, stream.get(), *ready_));
  } else if (k >= StagedCut::kSlots) {
    OURO_TRY(gpu::gpu().wait(s, free_[k % StagedCut::kSlots]->get()));
  }
  if (std::byte* const slot = p.in_slot(k)) OURO_TRY(mover.down(k, slot, s));
  const MemOp said{MemOp::Kind::write, p.number(k), p.down_word()};
  return gpu::gpu().enqueue({&said, 1}, s);
}

Status StagedPieces::copy_up(const Passage& p, PieceMover& mover, std::size_t k, GpuStream& stream) {
  const gpu::Stream& s = up_->get();
  const PooledEvent& free = *free_[k % StagedCut::kSlots];
  const MemOp said{MemOp::Kind::wait_at_least, p.number(k), p.up_word()};
  OURO_TRY(gpu::gpu().enqueue({&said, 1}, s));
  if (const std::byte* const slot = p.out_slot(k)) OURO_TRY(mover.up(k, slot, s));
  OURO_TRY(gpu::gpu().record(free.get(), s));
  if (!mover.in_stream()) return {};
  OURO_TRY(gpu::gpu().wait(stream.get(), free.get()));
  return mover.after(k, stream);
}

}  // namespace ouro::rt

// EndWord: how a rank's streams tell the host that an operation has ended, without an event: each writes the
// operation's number into a pinned word. Used by GpuPending and by the paths.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device/gpu.h"
#include "kernels/gpu/launch_end.h"
#include "runtime/core/fork.h"
#include "runtime/exec/gpu/gpu_words.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// A pinned word of a rank and group, whose operations end in the order of their numbers. The word belongs to
/// a pool of the process, and its next owner continues its numbers: a stream that waits for a number of a
/// group that has been destroyed finds it reached.
class EndWord {
 public:
  /// Errors: resource.
  static Result<std::shared_ptr<EndWord>> take(int device);
  ~EndWord();
  EndWord(const EndWord&) = delete;
  EndWord& operator=(const EndWord&) = delete;

  /// The number of the next operation. By one thread at a time.
  std::uint32_t next_number() { return ++line_.number; }
  /// For the piece of work that ends an operation.
  std::uint32_t* address() const { return line_.words; }
  /// What a kernel sets before it ends an operation for which other ranks came too late (MeetArgs::late).
  std::uint32_t* late_word() const { return line_.words + 1; }
  /// Pairs with the stream's write: what the operation wrote is visible to a reader that has seen its number.
  bool reached(std::uint32_t number) const {
    const auto now = std::atomic_ref(*line_.words).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - number) >= 0;
  }
  bool late() const { return std::atomic_ref(*late_word()).load(std::memory_order_acquire) != 0; }
  /// What the device says when it is asked: an error, if it is lost. Asks a stream of the library's own,
  /// since the program may have destroyed that of the operation.
  Status ask_device() const { return gpu::gpu().query(asked_->peek()).status(); }

 private:
  struct Line {
    std::uint32_t* words = nullptr;  // the word, and late_word()
    std::uint32_t number = 0;        // of the last operation
  };
  struct Pool;
  static Pool& pool();
  EndWord() = default;
  Line line_;
  const gpu::Gpu* const gpu_ = &gpu::gpu();
  std::shared_ptr<GpuStream> asked_;
  const unsigned forks_ = forks();
};

/// How the end of one operation is said: by this number in this word. A path lets its last piece of work
/// write it (`written`); if it does not, GpuPending enqueues one.
struct OperationEnd {
  gpu::NumberedWord word = {};    ///< none in a capture, and of a part of an operation
  std::uint32_t* late = nullptr;  ///< EndWord::late_word()
  bool written = false;           ///< by what has been enqueued
  /// If set, one launch for all ranks does it instead: GpuWords::told() reaches the number.
  struct Told {
    std::shared_ptr<GpuWords> words;
    std::uint32_t number = 0;
  } told = {};

  /// For a batch of a stream: appends the write.
  void append_to(std::vector<gpu::MemOp>* ops) const {
    if (word.word) ops->push_back({gpu::MemOp::Kind::write, word.number, word.word});
  }
  /// What writes it has been enqueued.
  void enqueued() { written = true; }
};

}  // namespace ouro::rt

// Replicas: copies of the control page of a rank on other hosts. The owner sends what has changed; the others
// keep a copy that all other code reads as if it were the page. Accesses no state but the pages. Used
// by network.
#pragma once
#include <vector>

#include "runtime/health/control_page.h"
#include "transport/wire/net_frames.h"

namespace ouro::rt {

/// The owner's side: knows what has been sent of a page.
class ReplicaPublisher {
 public:
  explicit ReplicaPublisher(const ControlPage& page);
  ~ReplicaPublisher();
  ReplicaPublisher(const ReplicaPublisher&) = delete;
  ReplicaPublisher& operator=(const ReplicaPublisher&) = delete;
  /// Notes of what has changed since the last call. A note follows those to which it refers.
  std::vector<wire::Note> changes();
  /// Notes of everything that a new reader needs, as of the last call of changes().
  std::vector<wire::Note> everything() const;

 private:
  struct Head {
    std::uint32_t state, errors_used;
    std::uint64_t gpu_freed, freed;
    friend bool operator==(const Head&, const Head&) = default;
  };
  struct Record;
  static Record read(const GroupRecord&, std::uint32_t index);
  Head read_head() const;
  wire::Note error_note(std::uint32_t index) const;
  /// Whether the vote of a register has changed since it was last sent; if so, makes its note.
  bool vote_changed(std::size_t index, wire::Note*);
  wire::Note vote_note(std::size_t index) const;
  static void pack(const std::vector<Record>&, std::vector<wire::Note>*);
  friend Status apply(const wire::Note&, ControlPage&);

  const ControlPage& page_;
  std::uint64_t order_ = 0;
  Head head_{};
  std::vector<Record> told_;  // as last sent, by index, up to the highest record in use
  struct ToldVote {
    std::uint64_t key = 0;
    Vote vote;
    friend bool operator==(const ToldVote&, const ToldVote&) = default;
  };
  std::vector<ToldVote> told_votes_;  // as last sent, by index
};

/// The reader's side: applies a note to the copy. Errors: refused (the note has impossible contents).
Status apply(const wire::Note&, ControlPage& copy);

/// Kinds of notes on control lines. A filler has no contents: it is a sign of life as long as a
/// packet of data.
enum class NoteKind : std::uint16_t { head = 1, error, records, fenced, vote, filler };

}  // namespace ouro::rt

// Replicas: how the control page of a rank gets to ranks of other hosts. Its owner sends what has changed,
// the others keep a copy that everything else reads as if it were the page. Pure but for the pages. Used by
// network.
#pragma once
#include <vector>

#include "runtime/health/control_page.h"
#include "transport/wire/net_frames.h"

namespace ouro::rt {

/// The owner's side: what has been sent of a page.
class ReplicaPublisher {
 public:
  explicit ReplicaPublisher(const ControlPage& page);
  ~ReplicaPublisher();
  ReplicaPublisher(const ReplicaPublisher&) = delete;
  ReplicaPublisher& operator=(const ReplicaPublisher&) = delete;
  /// What has changed since the last call, in notes; what a note points to comes before it.
  std::vector<wire::Note> changes();
  /// All that a new reader has to know, as of the last call of changes().
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
  /// The vote of a register that has changed since it was told.
  bool vote_changed(std::size_t index, wire::Note*);
  wire::Note vote_note(std::size_t index) const;
  static void pack(const std::vector<Record>&, std::vector<wire::Note>*);
  friend Status apply(const wire::Note&, ControlPage&);

  const ControlPage& page_;
  std::uint64_t order_ = 0;
  Head head_{};
  std::vector<Record> told_;  // by index, as far as records have been used
  struct ToldVote {
    std::uint64_t key = 0;
    Vote vote;
    friend bool operator==(const ToldVote&, const ToldVote&) = default;
  };
  std::vector<ToldVote> told_votes_;  // by index
};

/// The reader's side: one note into the copy. Errors: refused (it says what cannot be).
Status apply(const wire::Note&, ControlPage& copy);

/// Kinds of notes on control lines. A filler says nothing: a sign of life as long as a packet of data.
enum class NoteKind : std::uint16_t { head = 1, error, records, fenced, vote, filler };

}  // namespace ouro::rt

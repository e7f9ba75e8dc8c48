// Replicas of control pages. See replica.h.
#include "runtime/health/replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ouro::rt {
namespace {

constexpr std::size_t kRecordsPerNote = 100;

template <class T>
void put(wire::Bytes* to, const T* values, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values);
  to->insert(to->end(), bytes, bytes + count * sizeof(T));
}

wire::Note note(NoteKind kind, std::uint64_t key = 0) {
  return {static_cast<std::uint16_t>(kind), 0, key, {}};
}

}  // namespace

/// A GroupRecord in wire format (little-endian). Each part is consistent in itself.
struct ReplicaPublisher::Record {
  std::uint32_t index, state = 0, error = 0, shrinking = 0, decided = 0, vote = 0;
  std::uint64_t key = 0, entered = 0, completed = 0, resume = 0;
  struct {
    std::uint64_t tag, what, count;
  } history[kHistory] = {};
  std::uint64_t dead[kMaxRanks / 64] = {};
};

ReplicaPublisher::ReplicaPublisher(const ControlPage& page) : page_(page) {}
ReplicaPublisher::~ReplicaPublisher() = default;

ReplicaPublisher::Record ReplicaPublisher::read(const GroupRecord& r, std::uint32_t index) {
  Record now{index};
  // Reads the words that announce others (state, error, decided, vote) first, then the announced ones.
  now.key = r.key.get();
  now.state = r.state.get();
  now.error = r.error.get();
  now.shrinking = r.shrinking.get();
  now.decided = r.decided.get();
  now.vote = r.vote.get();
  now.completed = r.completed.get();
  now.entered = r.entered.get();
  now.resume = r.resume.get();
  for (std::size_t i = 0; i < std::size(now.dead); ++i) now.dead[i] = r.dead[i].get();
  for (int i = 0; i < kHistory; ++i) {
    const auto& h = r.history[i];
    auto& copy = now.history[i];
    copy.tag = h.tag.get();
    copy.what = h.what.get();
    copy.count = h.count.get();
    if (h.tag.get() != copy.tag) copy = {};  // it is being written: the next call sends it
  }
  if (r.key.get() != now.key) now = Record{index};  // the record is being reused: likewise
  return now;
}

ReplicaPublisher::Head ReplicaPublisher::read_head() const {
  return {page_.state.get(), std::min<std::uint32_t>(page_.errors_used.get(), kErrors), page_.gpu_freed.get(),
          page_.freed.get()};
}

wire::Note ReplicaPublisher::error_note(std::uint32_t index) const {
  wire::Note n = note(NoteKind::error, index);
  put(&n.body, &page_.errors[index], 1);
  return n;
}

bool ReplicaPublisher::vote_changed(std::size_t index, wire::Note* out) {
  const VoteRegister& r = page_.votes[index];
  const std::uint64_t key = r.key.get();
  if (key == 0) return false;
  // A register that cannot be read now is being given to another group, or changes: the next call sends it.
  const auto vote = rt::read(r, key);
  if (!vote) return false;
  if (index >= told_votes_.size()) told_votes_.resize(index + 1);
  const ToldVote now{key, *vote};
  if (told_votes_[index] == now) return false;
  told_votes_[index] = now;
  *out = vote_note(index);
  return true;
}

wire::Note ReplicaPublisher::vote_note(std::size_t index) const {
  wire::Note n = note(NoteKind::vote, index);
  put(&n.body, &told_votes_[index], 1);
  return n;
}

void ReplicaPublisher::pack(const std::vector<Record>& records, std::vector<wire::Note>* notes) {
  for (std::size_t i = 0; i < records.size(); i += kRecordsPerNote) {
    notes->push_back(note(NoteKind::records));
    put(&notes->back().body, &records[i], std::min(kRecordsPerNote, records.size() - i));
  }
}

std::vector<wire::Note> ReplicaPublisher::changes() {
  std::vector<wire::Note> notes;
  // Reads the records first, so that the errors and votes to which they refer are seen below and sent
  // before them.
  std::vector<Record> changed;
  std::uint32_t used = kRecords;
  while (used > told_.size() && page_.groups[used - 1].key.get() == 0) --used;
  for (std::uint32_t i = 0; i < used; ++i) {
    Record now = read(page_.groups[i], i);
    if (i >= told_.size()) told_.push_back(Record{i});
    if (std::memcmp(&now, &told_[i], sizeof now) == 0) continue;
    told_[i] = now;
    changed.push_back(now);
  }
  const Head now = read_head();
  for (Record& r : changed)
    if (r.error > now.errors_used) r.error = told_[r.index].error = 0;  // being published: sent next time
  for (std::uint32_t i = head_.errors_used; i < now.errors_used; ++i) notes.push_back(error_note(i));
  // Votes are read after the records and sent before them, so that a record with a final state follows
  // the last vote.
  for (std::size_t i = 0; i < kVotes; ++i)
    if (wire::Note vote; vote_changed(i, &vote)) notes.push_back(std::move(vote));
  pack(changed, &notes);
  // The head is sent last: its error count makes readers find errors through the records, and a rank whose
  // state says that it has left sends nothing more.
  if (now != head_) {
    notes.push_back(note(NoteKind::head));
    put(&notes.back().body, &now, 1);
  }
  head_ = now;
  if (!notes.empty()) ++order_;
  for (wire::Note& n : notes) n.order = order_;
  return notes;
}

std::vector<wire::Note> ReplicaPublisher::everything() const {
  std::vector<wire::Note> notes;
  for (std::uint32_t i = 0; i < head_.errors_used; ++i) notes.push_back(error_note(i));
  for (std::size_t i = 0; i < told_votes_.size(); ++i)
    if (told_votes_[i].key != 0) notes.push_back(vote_note(i));
  std::vector<Record> used;
  for (const Record& r : told_)
    if (r.key != 0) used.push_back(r);
  pack(used, &notes);
  notes.push_back(note(NoteKind::head));
  put(&notes.back().body, &head_, 1);
  for (wire::Note& n : notes) n.order = order_;
  return notes;
}

Status apply(const wire::Note& n, ControlPage& copy) {
  const auto wrong = [&](const char* what) {
    return Status(Reason::refused,
                  fmt::format("a note of kind {} with {} bytes: {}", n.kind, n.body.size(), what));
  };
  switch (static_cast<NoteKind>(n.kind)) {
    case NoteKind::head: {
      ReplicaPublisher::Head head;
      if (n.body.size() != sizeof head) return wrong("not a head");
      std::memcpy(&head, n.body.data(), sizeof head);
      if (head.state > static_cast<std::uint32_t>(ContextState::leaving) || head.errors_used > kErrors)
        return wrong("numbers out of range");
      copy.gpu_freed.set(head.gpu_freed);
      copy.freed.set(head.freed);
      copy.errors_used.set(head.errors_used);
      copy.state.set(head.state);
      return {};
    }
    case NoteKind::error: {
      if (n.body.size() != sizeof(ErrorRecord) || n.key >= kErrors) return wrong("not an error");
      if (copy.errors_used.get() > n.key) return {};  // an error is never written twice
      std::memcpy(&copy.errors[n.key], n.body.data(), sizeof(ErrorRecord));
      return {};
    }
    case NoteKind::records: {
      if (n.body.size() % sizeof(ReplicaPublisher::Record) != 0) return wrong("no whole number of records");
      for (std::size_t at = 0; at < n.body.size(); at += sizeof(ReplicaPublisher::Record)) {
        ReplicaPublisher::Record in{0};
        std::memcpy(&in, n.body.data() + at, sizeof in);
        if (in.index >= kRecords || in.state > static_cast<std::uint32_t>(GroupState::finishing) ||
            in.error > kErrors || in.shrinking > static_cast<std::uint32_t>(Shrinking::fenced) ||
            in.vote > kVotes)
          return wrong("numbers out of range");
        GroupRecord& r = copy.groups[in.index];
        if (r.key.get() != in.key) {
          r.key.set(0), r.decided.set(0), r.state.set(0);
          // Each group numbers its operations from 1: the history of the record's previous group must not
          // pass for this group's.
          for (auto& h : r.history) h.tag.set(0);
        }
        for (int i = 0; i < kHistory; ++i) {
          auto& h = r.history[i];
          if (in.history[i].tag == 0 || h.tag.get() == in.history[i].tag) continue;
          h.tag.set(0);
          h.what.set(in.history[i].what);
          h.count.set(in.history[i].count);
          h.tag.set(in.history[i].tag);
        }
        for (std::size_t i = 0; i < std::size(in.dead); ++i) r.dead[i].set(in.dead[i]);
        r.resume.set(in.resume);
        r.completed.set(in.completed);
        r.entered.set(in.entered);
        r.vote.set(in.vote);
        r.decided.set(in.decided);
        r.shrinking.set(in.shrinking);
        r.error.set(in.error);
        r.state.set(in.state);
        r.key.set(in.key);
      }
      return {};
    }
    case NoteKind::vote: {
      ReplicaPublisher::ToldVote in;
      if (n.body.size() != sizeof in || n.key >= kVotes) return wrong("not a vote");
      std::memcpy(&in, n.body.data(), sizeof in);
      VoteRegister& r = copy.votes[n.key];
      if (r.key.get() != in.key) r.key.set(0);
      write(r, in.vote);
      r.key.set(in.key);
      return {};
    }
    case NoteKind::fenced:
    case NoteKind::filler:
      return {};
  }
  return wrong("unknown");
}

}  // namespace ouro::rt

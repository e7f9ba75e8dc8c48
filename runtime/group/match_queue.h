// MatchQueue: entries in the order in which they arrived, of which the first of a kind is found without a
// walk. Used by the message engine, for receives that wait for messages and for messages that wait
// for receives.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace ouro::rt {

/// An intrusive queue. Each entry has two kinds, which are numbers, and stands in the list of either: all
/// entries of that kind, in the order of the queue. Every call takes constant time, however many entries
/// there are (put_back: if the entry was among the first or the last of its kinds). T has a member `place`
/// and is not moved between append() and remove().
template <class T>
class MatchQueue {
  struct List {
    T *first = nullptr, *last = nullptr;
    std::size_t entries = 0;  // those that were taken out and may be put back included
  };

 public:
  using Kinds = std::array<std::uint64_t, 2>;
  class Place {
   public:
    /// Of two entries of a queue the earlier one has the lower number. 0: it has never been in a queue.
    std::uint64_t number() const { return order; }

   private:
    friend MatchQueue;
    std::uint64_t order = 0;
    bool queued = false;
    Kinds kinds = {};
    std::array<List*, 2> lists = {};  // null outside of append() and remove()
    std::array<T*, 2> before = {}, after = {};
  };

  std::size_t size() const { return size_; }
  /// The first entry of a kind, or nullptr. `which`: the kind's index in Kinds.
  T* first(std::size_t which, std::uint64_t kind) const {
    const auto at = tables_[which].find(kind);
    return at == tables_[which].end() ? nullptr : at->second.first;
  }

  /// Appends an entry. Throws bad_alloc; nothing has changed then.
  void append(T& e, const Kinds& kinds) {
    Place& p = e.place;
    const std::array<List*, 2> lists = {&tables_[0][kinds[0]], &tables_[1][kinds[1]]};
    p.lists = lists, p.kinds = kinds, p.order = ++last_number_, p.queued = true, ++size_;
    for (std::size_t w = 0; w < 2; ++w) {
      ++lists[w]->entries;
      link(e, w, lists[w]->last);
    }
  }

  /// Takes an entry out, which keeps its place; no-op if it is out.
  void take_out(T& e) {
    if (!e.place.queued) return;
    e.place.queued = false, --size_;
    for (std::size_t w = 0; w < 2; ++w) {
      T *const before = e.place.before[w], *const after = e.place.after[w];
      (before ? before->place.after[w] : e.place.lists[w]->first) = after;
      (after ? after->place.before[w] : e.place.lists[w]->last) = before;
    }
  }

  /// Puts an entry that was taken out back to its place.
  void put_back(T& e) {
    e.place.queued = true, ++size_;
    for (std::size_t w = 0; w < 2; ++w) {
      const List& list = *e.place.lists[w];
      T* before = list.last;
      if (before && before->place.order > e.place.order) {
        before = nullptr;
        for (T* next = list.first; next->place.order < e.place.order; next = next->place.after[w])
          before = next;
      }
      link(e, w, before);
    }
  }

  /// Ends an entry's stay; no-op if it has never been in a queue.
  void remove(T& e) {
    take_out(e);
    for (std::size_t w = 0; w < 2; ++w) {
      List* const list = std::exchange(e.place.lists[w], nullptr);
      // A kind that has occurred once may never occur again.
      if (list && --list->entries == 0 && tables_[w].size() > kKept) tables_[w].erase(e.place.kinds[w]);
    }
  }

 private:
  static constexpr std::size_t kKept =
      256;  // kinds whose empty lists are kept, so that they are not made again

  /// before == nullptr: it becomes the first.
  void link(T& e, std::size_t w, T* before) {
    List& list = *e.place.lists[w];
    T* const after = before ? before->place.after[w] : list.first;
    e.place.before[w] = before, e.place.after[w] = after;
    (before ? before->place.after[w] : list.first) = &e;
    (after ? after->place.before[w] : list.last) = &e;
  }

  std::array<std::unordered_map<std::uint64_t, List>, 2> tables_;
  std::uint64_t last_number_ = 0;
  std::size_t size_ = 0;
};

}  // namespace ouro::rt

// Control pages: signatures, votes and errors that are read while they change, and the decision of shrink().
#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <thread>

#include "runtime/health/revision.h"
#include "tests/explore/protocols/protocols.h"
#include "tests/explore/rank/member.h"

namespace explore {
namespace pages {

using namespace ouro;
using At = Fault::At;
using What = Fault::What;

rt::Signature signature_of(std::uint64_t seq) { return {seq * 1000 + 1, seq * 1000 + 2}; }

/// A rank enters operations whose entries share a place; another rank queries both.
class Signatures final : public Program {
 public:
  int fibers() const override { return 2; }
  void set_up() override { pages_ = new Pages(1); }
  void run(int fiber) override {
    rt::GroupRecord& record = pages_->page(0).groups[0];
    constexpr std::uint64_t kSecond = 1 + rt::kHistory;
    if (fiber == 0) {
      rt::enter(record, 1, signature_of(1));
      rt::enter(record, kSecond, signature_of(kSecond));
      return;
    }
    const std::uint64_t entered = record.entered.get();
    for (const std::uint64_t seq : {std::uint64_t{1}, kSecond}) {
      const auto s = rt::entered_as(record, seq);
      check(!s || *s == signature_of(seq), "a signature that was not entered");
      check(s || seq != kSecond || entered != kSecond, "what was entered last is not there");
    }
  }

 private:
  Pages* pages_ = nullptr;
};

/// A rank votes twice while another reads its register.
class Votes final : public Program {
 public:
  int fibers() const override { return 2; }
  void set_up() override { pages_ = new Pages(1); }
  void run(int fiber) override {
    rt::VoteRegister& v = pages_->page(0).votes[0];
    if (fiber == 0) {
      for (std::uint64_t k = 1; k <= 2; ++k) rt::write(v, vote(k));
      return;
    }
    const auto seen = rt::read(v, Pages::kKey);
    check(!seen || *seen == rt::Vote{} || *seen == vote(1) || *seen == vote(2), "a vote that nobody gave");
  }

 private:
  static rt::Vote vote(std::uint64_t k) {
    rt::Vote v{.promised = k, .accepted = k};
    for (std::uint64_t& w : v.value.dead.words) w = k;
    for (std::uint64_t& w : v.suspects.words) w = k;
    v.value.resume = k;
    return v;
  }
  Pages* pages_ = nullptr;
};

/// A member fails and publishes why; another adopts it.
class Errors final : public Program {
 public:
  int fibers() const override { return 2; }
  void set_up() override {
    job = new Job{.ranks = 2};
    job->make_links();
    const Pages& pages = *new Pages(2);
    for (int r = 0; r < 2; ++r) members_[r] = new Member(pages, *groups_[r]);
  }
  void run(int fiber) override {
    rt::FailureDetector& detector = members_[fiber]->detector;
    if (fiber == 1) {
      (void)detector.fail({.reason = Reason::data_corrupt, .text = "a checksum", .rank = 0, .seq = 5},
                          nullptr, true);
      return;
    }
    for (int look = 0; look < 2; ++look) detector.adopt_errors();
    const Status s = detector.status();
    check(s.ok() == detector.ok(), "the abort word and the error differ");
    if (!s.ok())
      check(s.reason() == Reason::data_corrupt && s.failure()->seq == 5 && s.failure()->text == "a checksum",
            "an error that nobody published");
  }

 private:
  const rt::Members* const groups_[2] = {&members_of(0, 2), &members_of(1, 2)};  // they outlive executions
  Member* members_[2] = {};
};

/// Members agree on the survivors, while one of them, possibly the one that decides, dies at any step.
class Shrink final : public Program {
 public:
  Shrink(int ranks, int dies) : ranks_(ranks), dies_(dies) {
    for (int r = 0; r < ranks; ++r) groups_.push_back(&members_of(r, ranks));
  }
  int fibers() const override { return ranks_ + 1; }
  Rules rules() const override { return {.timeouts = 40, .mortal = 1u << dies_}; }
  void set_up() override {
    job = new Job{.ranks = ranks_};
    job->make_links();
    const Pages& pages = *new Pages(ranks_);
    for (int r = 0; r < ranks_; ++r) {
      members_[r] = new Member(pages, *groups_[static_cast<std::size_t>(r)]);
      members_[r]->record.completed.value = static_cast<std::uint64_t>(10 + r);
      verdicts_[r] = nullptr;
    }
  }
  void run(int fiber) override {
    if (fiber == ranks_) return bury();
    const auto verdict = members_[fiber]->survivors.agree(true);
    check(verdict.ok(), "no verdict");
    verdicts_[fiber] = new rt::Verdict(*verdict);
  }
  void finish() override {
    const rt::Verdict* one = nullptr;
    for (int r = 0; r < ranks_; ++r) {
      const rt::Verdict* const v = verdicts_[r];
      if (!v) {
        check(r == dies_, "a survivor has come to no verdict");
        continue;
      }
      if (!one) one = v;
      check(*v == *one, "survivors have come to different verdicts");
      check(!v->dead.has(r), "a survivor was given up");
      std::uint64_t resume = ~std::uint64_t{0};
      for (int m = 0; m < ranks_; ++m)
        if (!v->dead.has(m)) resume = std::min<std::uint64_t>(resume, static_cast<std::uint64_t>(11 + m));
      check(v->resume == resume && v->dead.count() <= 1 && (v->dead.count() == 0 || v->dead.has(dies_)),
            "a wrong verdict");
    }
  }

 private:
  /// The part of the watch threads of all other members.
  void bury() {
    kill(dies_);
    for (int r = 0; r < ranks_; ++r)
      if (r != dies_) members_[r]->job_members.note_death(dies_);
  }
  const int ranks_, dies_;
  std::vector<const rt::Members*> groups_;
  Member* members_[4] = {};
  rt::Verdict* verdicts_[4] = {};
};

/// The first member proposes records while the members, none of which waits, reach their looks (the points at
/// which they check for one). Either all take a record at the intended look, or none takes it.
class Revisions final : public Program {
 public:
  explicit Revisions(int ranks) : ranks_(ranks) {}
  int fibers() const override { return ranks_; }
  void set_up() override {
    pages_ = new Pages(ranks_);
    rt::RevisionRegister& r = pages_->page(0).revisions[0];
    r.key.value = Pages::kKey;
    label(&r.made, sizeof r.made, "made");
    for (auto& of_rank : taken_) std::fill(std::begin(of_rank), std::end(of_rank), 0);
    std::fill(std::begin(from_), std::end(from_), 0);
  }
  void run(int fiber) override {
    rt::RevisionRegister& r = pages_->page(0).revisions[0];
    std::uint64_t revision = 0, proposed = 0;
    for (std::uint64_t n = 1; n <= kLooks; ++n) {
      if (const auto record = rt::pass_revision_point(mine(fiber), r, Pages::kKey, revision + 1, n))
        taken_[fiber][++revision] = n, record_[fiber][revision] = *record;
      if (fiber != 0 || proposed != revision) continue;
      const std::uint64_t from = rt::propose(r, revision + 1, from_[revision], record(revision + 1, n), [&] {
        rt::RevisionPoints all;
        for (int m = 0; m < ranks_; ++m) add(all, mine(m));
        return all;
      });
      if (from > 0) from_[++proposed] = from, meant_[proposed] = record(proposed, n);
    }
  }
  void finish() override {
    for (int rank = 0; rank < ranks_; ++rank)
      for (std::uint64_t k = 1; k <= kLooks; ++k) {
        const std::uint64_t expected = from_[k] <= kLooks ? from_[k] : 0;
        check(taken_[rank][k] == expected, "a record is taken with another look");
        check(expected == 0 || record_[rank][k] == meant_[k], "another record than the one that was meant");
      }
  }

 private:
  static constexpr std::uint64_t kLooks = 5;  // the third record reuses the place of the first
  static rt::Calibration record(std::uint64_t revision, std::uint64_t n) {
    rt::Calibration c{};
    c.pairs = 1, c.caches = static_cast<std::uint32_t>(revision);
    c.pair[0].handoff = static_cast<std::uint32_t>(100 * revision + n);
    return c;
  }
  rt::GroupRecord& mine(int fiber) const { return pages_->page(fiber).groups[0]; }
  const int ranks_;
  Pages* pages_ = nullptr;
  std::uint64_t taken_[3][kLooks + 1] = {}, from_[kLooks + 1] = {};  // by revision and by look
  rt::Calibration record_[3][kLooks + 1], meant_[kLooks + 1];
};

}  // namespace pages

void add_pages(std::vector<Protocol>* all) {
  using namespace pages;
  all->push_back({"pages.signatures",
                  "two entries at one place of the history, and a reader (enter, entered_as)",
                  new Signatures,
                  true,
                  {{"the tag is not cleared", "history.tag", At::store, What::drop},
                   {"the first word is stored without release", "history.what", At::store, What::relax},
                   {"the words are loaded without acquire", "history.count", At::load, What::relax},
                   {"the tag is stored without release", "history.tag", At::store, What::relax},
                   {"the tag is loaded without acquire", "history.tag", At::load, What::relax}}});
  all->push_back({"pages.votes",
                  "a register that is written twice, and a reader (write, read)",
                  new Votes,
                  false,
                  {{"the version is stored without release", "vote.version", At::store, What::relax},
                   {"the halves are stored without release", "vote.halves", At::store, What::relax},
                   {"the halves are loaded without acquire", "vote.halves", At::load, What::relax},
                   {"the version is loaded without acquire", "vote.version", At::load, What::relax}}});
  std::vector<Fault> unheard = {
      {"a revision point is published without sequential consistency", "revision_point", At::store,
       What::relax},
      {"revision points are read without it", "revision_point", At::load, What::relax},
      {"a proposal is written without it", "made", At::store, What::relax},
      {"a proposal is read without it", "made", At::load, What::relax},
      {"a proposal is decided by two stores", "made", At::change, What::tear}};
  all->push_back({"pages.revisions", "records that the first member proposes and both take (propose, look)",
                  new Revisions(2), false, unheard});
  // With three members, about one random execution in 800,000 finds each of these.
  unheard[2].seed = 7, unheard[4].seed = 5;
  all->push_back({"pages.revisions_three", "the same of three members", new Revisions(3), false, unheard});
  all->push_back({"pages.errors",
                  "an error that one member publishes and another adopts (FailureDetector, OwnRecords)",
                  new Errors,
                  true,
                  {{"the error is pointed to without release", "error", At::store, What::relax},
                   {"the error is looked up without acquire", "error", At::load, What::relax}}});
  all->push_back({"pages.shrink",
                  "two members agree on survivors, and the decider may die at any step (Survivors)",
                  new Shrink(2, 0),
                  false,
                  {{"the decision is announced before it is written", "decided", At::store, What::relax},
                   {"the decision is read without acquire", "decided", At::load, What::relax},
                   {"a decision that was left behind is not seen", "who is dead", At::load, What::relax}}});
  all->push_back({"pages.shrink_three",
                  "three members, of which the decider may die at any step",
                  new Shrink(3, 0),
                  false,
                  {{"the decision is announced before it is written", "decided", At::store, What::relax},
                   {"the decision is read without acquire", "decided", At::load, What::relax}}});
  all->push_back({"pages.shrink_other",
                  "three members, of which one that does not decide may die at any step",
                  new Shrink(3, 2),
                  false,
                  {{"the decision is announced before it is written", "decided", At::store, What::relax}}});
}

}  // namespace explore

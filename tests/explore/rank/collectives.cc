// Ranks that run collective operations. See collectives.h.
#include "tests/explore/rank/collectives.h"

#include <atomic>

namespace explore {

using namespace ouro;

/// State that is made anew for each execution.
struct Collectives::Run {
  Rank* ranks[8] = {};
  Buffers buffers[8] = {};
  const rt::Plan* plans[8][80] = {};
  bool ended[8] = {};
};

Collectives::Collectives(CollectivesSetting s) : s_(std::move(s)) {
  for (int r = 0; r < s_.ranks; ++r) {
    members_.push_back(&members_of(r, s_.ranks));
    own_.push_back({new std::uint64_t[kWords](), new std::uint64_t[kWords]()});
    plans_.emplace_back();
    for (const Call& c : s_.calls)
      plans_.back().push_back(new rt::Plan(plan_of(c, *members_.back(), own_.back().in, own_.back().out)));
  }
}

Rules Collectives::rules() const {
  return {.sleeps = s_.sleeps || s_.wakes,
          .brief = s_.brief,
          .may_miss_wakes = !s_.wakes,
          .spurious = s_.spurious,
          .mortal = s_.dies >= 0 ? 1u << s_.dies : 0u};
}

void Collectives::set_up() {
  job = new Job{.ranks = s_.ranks, .late_sleepers = !s_.wakes};
  for (int r = 0; r < s_.ranks; ++r) job->aborts.push_back(make<std::uint32_t>("abort"));
  bool links = false, staging = false;
  for (const Call& c : s_.calls) (c.staging ? staging : links) = true;
  if (links) job->make_links();
  if (staging) job->make_staging();
  if (!s_.registered.empty()) job->make_registered();
  run_ = new Run;
  for (int r = 0; r < s_.ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    run_->ranks[r] = new Rank(*members_[i]);
    run_->buffers[r] = own_[i];
    if (is_registered(r)) {
      auto* const words = reinterpret_cast<std::uint64_t*>(job->registered[i]);
      run_->buffers[r] = {words, words + Job::kRegisteredBytes / 16};
    }
    for (std::size_t c = 0; c < s_.calls.size(); ++c)
      run_->plans[r][c] =
          is_registered(r)
              ? new rt::Plan(plan_of(s_.calls[c], *members_[i], run_->buffers[r].in, run_->buffers[r].out))
              : plans_[i][c];
  }
  for (int k = 0; k < s_.ahead; ++k) (void)perform(0, k);
}

Status Collectives::perform(int rank, int call) {
  const Call& c = s_.calls[static_cast<std::size_t>(call)];
  const std::uint64_t n = traits_of(c.collective).in.elements(c.count, s_.ranks);
  for (std::uint64_t i = 0; i < n; ++i) run_->buffers[rank].in[i] = value(rank, call, i);
  return run_->ranks[rank]->run(*run_->plans[rank][call], static_cast<std::uint64_t>(call) + 1);
}

void Collectives::run(int fiber) {
  if (fiber == s_.ranks) return bury();
  const auto all = static_cast<int>(s_.calls.size());
  const int end = fiber > 0 && s_.last >= 0 ? s_.last : all;
  for (int k = fiber == 0 ? s_.ahead : 0; k < end; ++k) {
    const Status s = perform(fiber, k);
    if (!s.ok()) {
      check(s_.dies >= 0 && s.reason() == Reason::peer_dead, "an operation fails");
      return;
    }
    check_output(fiber, k);
  }
  run_->ended[fiber] = true;
}

void Collectives::check_output(int rank, int call) {
  const Call& c = s_.calls[static_cast<std::size_t>(call)];
  const CollectiveTraits traits = traits_of(c.collective);
  if (c.collective == Collective::barrier || !traits.out.counts(rank, c.root)) return;
  const auto expected = [&](std::uint64_t i) {
    if (c.collective == Collective::broadcast) return value(c.root, call, i);
    if (c.collective == Collective::all_gather)
      return value(static_cast<int>(i / c.count), call, i % c.count);
    std::uint64_t sum = 0;
    for (int r = 0; r < s_.ranks; ++r) sum += value(r, call, i);
    return sum;
  };
  for (std::uint64_t i = 0; i < traits.out.elements(c.count, s_.ranks); ++i)
    check(run_->buffers[rank].out[i] == expected(i), "a wrong result");
}

/// The part of the watch threads of the other ranks after a death.
void Collectives::bury() {
  kill(s_.dies);
  for (int r = 0; r < s_.ranks; ++r)
    if (r != s_.dies)
      std::atomic_ref(*job->aborts[static_cast<std::size_t>(r)]).store(1, std::memory_order_release);
}

void Collectives::finish() {
  for (int r = 0; r < s_.ranks; ++r) check(s_.dies >= 0 || run_->ended[r], "a rank has not come to its end");
  // Data published before a death still counts: a receiver may fail only if it lacks a chunk.
  if (s_.dies < 0 || job->links.empty()) return;
  const Call& c = s_.calls.back();
  const int to = 1 - c.root;
  if (s_.calls.size() == 1 && c.collective == Collective::broadcast && s_.dies == c.root && !run_->ended[to])
    check(job->links[static_cast<std::size_t>(c.root * s_.ranks + to)].full->value <
              c.count * sizeof(std::uint64_t) / Job::kSlotBytes,
          "all has been published, and the receiver fails");
}

}  // namespace explore

// Members of explored groups. See member.h.
#include "tests/explore/rank/member.h"

#include <cstring>
#include <new>

namespace explore {

using namespace ouro;

namespace {

std::vector<rt::Peer> peers_of(const Pages& pages) {
  std::vector<rt::Peer> peers(pages.segments.size());
  for (std::size_t r = 0; r < peers.size(); ++r) {
    peers[r].pid = static_cast<int>(r) + 1;
    peers[r].process = r + 1;
    peers[r].host = "here";
    peers[r].control = pages.segments[r];
  }
  return peers;
}

rt::JobMembers& job_members_of(const Pages& pages, int rank) {
  std::vector<rt::Peer> peers = peers_of(pages);
  const InArena shared("who is dead");
  return *new rt::JobMembers(rank, std::move(peers));
}

template <class T, class... Args>
T& shared(const char* label, Args&&... args) {
  const InArena in(label);
  return *new T(std::forward<Args>(args)...);
}

}  // namespace

Pages::Pages(int ranks) {
  for (int r = 0; r < ranks; ++r) {
    segments.push_back(*SharedSegment::create(sizeof(rt::ControlPage), "page"));
    rt::ControlPage& p = page(r);
    p.magic = rt::kControlMagic;
    p.rank = static_cast<std::uint32_t>(r);
    p.state.value = static_cast<std::uint32_t>(rt::ContextState::active);
    rt::GroupRecord& g = p.groups[0];
    g.key.value = kKey;
    g.state.value = static_cast<std::uint32_t>(rt::GroupState::open);
    label(&p.errors[0], sizeof p.errors, "errors");
    for (auto& h : g.history) {
      label(&h.tag, sizeof h.tag, "history.tag");
      label(&h.what, sizeof h.what, "history.what");
      label(&h.count, sizeof h.count, "history.count");
    }
    label(&g.key, sizeof g.key, "key"), label(&g.error, sizeof g.error, "error");
    label(&g.completed, sizeof g.completed, "completed"), label(&g.entered, sizeof g.entered, "entered");
    label(&g.revision_point, sizeof g.revision_point, "revision_point");
    label(&g.shrinking, sizeof g.shrinking, "shrinking"), label(&g.decided, sizeof g.decided, "decided");
    label(&g.resume, sizeof g.resume, "resume"), label(&g.dead, sizeof g.dead, "dead");
    label(&p.errors_used, sizeof p.errors_used, "errors_used");
    rt::VoteRegister& v = p.votes[0];
    v.key.value = kKey;
    label(&v.key, sizeof v.key, "vote.key"), label(&v.version, sizeof v.version, "vote.version");
    label(&v.halves, sizeof v.halves, "vote.halves");
  }
}

rt::Context& bare_context(rt::ControlPage& own) {
  auto* const nothing =
      static_cast<std::byte*>(::operator new (sizeof(rt::Context), std::align_val_t{alignof(rt::Context)}));
  std::memset(nothing, 0, sizeof(rt::Context));
  auto& context = reinterpret_cast<rt::Context&>(*nothing);
  new (&context.records()) rt::OwnRecords(own);
  return context;
}

Member::Member(const Pages& pages, const rt::Members& members)
    : context(bare_context(pages.page(members.rank()))),
      job_members(job_members_of(pages, members.rank())),
      record(pages.page(members.rank()).groups[0]),
      records(shared<rt::MemberRecords>("records", job_members, members, Pages::kKey, record)),
      detector(shared<rt::FailureDetector>(
          "detector", context, records,
          rt::FailureDetector::Settings{
              .group = "explored", .deadline = std::chrono::hours(1), .late_after = std::chrono::hours(1)})),
      survivors(context, records, {.group = "explored", .deadline = std::chrono::hours(1)}),
      mailbox(context.cores(), records, detector, nullptr, nullptr,
              [rank = members.rank()] { return Result<std::unique_ptr<transport::Links>>(links_of(rank)); }) {
  label(detector.abort_word(), sizeof *detector.abort_word(), "abort");
}

}  // namespace explore

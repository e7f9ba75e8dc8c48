// Communicators derived from others: split, shrink, grow. See nccl.h, section "Making communicators".
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "api/nccl/joining.h"
#include "api/nccl/unique_id.h"
#include "api/src/group_key.h"

namespace ouro::nccl {
namespace {

/// The configuration of a child: that of its parent without the name, changed by `given`.
ncclResult_t parse_child(const char* function, ncclComm_t parent, const ncclConfig_t* given, Config* config) {
  Config inherited = parent->config;
  inherited.name.clear();
  return parse(function, given, inherited, config);
}

/// Makes the communicator `*out` on `group`; the user sees it only once it is complete.
ncclResult_t hand_out(ncclComm_t parent, const Config& config, Group group, ncclComm_t* out) {
  const ncclComm_t child = make_handle(config, group.rank(), group.size(), parent->place);
  (void)open(child, parent->family, std::move(group));
  *out = child;
  return ncclSuccess;
}

/// A name that groups of other parents do not have, even if their members are equal.
std::string derived_name(const Group& parent, const char* what) {
  return fmt::format("{}/{}-{:x}", parent.name(), what, key_of(parent));
}

/// The members' group or, for a revoked communicator, another group of the same members, which is made
/// on first use.
Result<Group> working_group(ncclComm_t comm) {
  if (comm->phase.load() != Phase::revoked) return comm->group;
  std::lock_guard lock(comm->life);  // makes the new group visible to an abort as soon as it exists
  if (comm->cancelled->load()) return Status(Reason::revoked, "its communicator was aborted");
  if (!comm->after_revoke.valid()) {
    const auto ranks = comm->group.ranks();
    OURO_ASSIGN(comm->after_revoke,
                comm->family->context.group(ranks, derived_name(comm->group, "after-revoke")));
  }
  return comm->after_revoke;
}

ncclResult_t split(const char* function, ncclComm_t parent, int color, int key, const Config& config,
                   ncclComm_t* out) {
  auto group = working_group(parent);
  if (!group.ok()) return note(parent, function, group.status());
  auto child = group->split(color, key);
  if (!child.ok()) return note(parent, function, child.status());
  if (!child->valid()) return ncclSuccess;  // no color
  return hand_out(parent, config, std::move(*child), out);
}

ncclResult_t shrink(const char* function, ncclComm_t parent, const std::vector<int>& stay,
                    const Config& config, ncclComm_t* out) {
  std::vector<int> ranks;
  for (const int r : stay) ranks.push_back(parent->group.ranks()[static_cast<std::size_t>(r)]);
  auto child = parent->family->context.group(ranks, derived_name(parent->group, "shrink"));
  if (!child.ok()) return note(parent, function, child.status());
  const EndsToo reach(parent, [&child](const char* why) { child->abort(why); });
  if (Status s = barrier(*child, kAuto); !s.ok()) return fail(parent, function, s);
  return hand_out(parent, config, std::move(*child), out);
}

/// The members agree on the id that was passed to one or to all of them; the new ranks already have it.
Result<ncclUniqueId> agree_on_id(Group& group, const ncclUniqueId* given) {
  struct Word {
    std::uint64_t has;
    ncclUniqueId id;
  };
  Word mine = {given ? 1u : 0u, given ? *given : ncclUniqueId{}};
  std::vector<Word> all(static_cast<std::size_t>(group.size()));
  OURO_TRY(all_gather(group, CView(&mine, sizeof mine, DType::u8),
                      View(all.data(), all.size() * sizeof mine, DType::u8), kAuto));
  const Word* found = nullptr;
  for (const Word& w : all) {
    if (!w.has) continue;
    if (found && std::memcmp(&found->id, &w.id, sizeof w.id) != 0)
      return invalid("members were given different unique ids");
    found = &w;
  }
  if (!found)
    return invalid("no member was given a unique id; expected one to pass that of ncclCommGetUniqueId");
  return found->id;
}

}  // namespace
}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, CommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
          ncclConfig_t* config) {
  constexpr const char* me = "ncclCommSplit";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::members);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!newcomm) return invalid_argument(comm, me, "the pointer for the new communicator is null");
    *newcomm = nullptr;
    if (color < NCCL_SPLIT_NOCOLOR)
      return invalid_argument(comm, me, "color {}; expected 0 or more, or NCCL_SPLIT_NOCOLOR", color);
    Config child;
    if (const ncclResult_t wrong = parse_child(me, comm, config, &child); wrong != ncclSuccess) return wrong;
    return begin({.comm = comm, .run = [=] { return split(me, comm, color, key, child, newcomm); }});
  }));
}

OURO_NCCL(ncclResult_t, CommShrink, ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
          ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  constexpr const char* me = "ncclCommShrink";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::members);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!newcomm) return invalid_argument(comm, me, "the pointer for the new communicator is null");
    *newcomm = nullptr;
    if (!excludeRanksList || excludeRanksCount < 1)
      return invalid_argument(comm, me, "no ranks to exclude; expected a list of 1 or more");
    if (shrinkFlags != NCCL_SHRINK_DEFAULT && shrinkFlags != NCCL_SHRINK_ABORT)
      return invalid_argument(comm, me, "flags {:#x}; expected 0 or NCCL_SHRINK_ABORT", shrinkFlags);
    std::vector<int> out(excludeRanksList, excludeRanksList + excludeRanksCount);
    for (const int r : out)
      if (r < 0 || r >= comm->size)
        return invalid_argument(comm, me, "rank {} to exclude is not in the communicator; expected 0 to {}",
                                r, comm->size - 1);
    if (std::find(out.begin(), out.end(), comm->rank) != out.end())
      return invalid_argument(comm, me, "rank {} calls it and is in the list of those to exclude",
                              comm->rank);
    Config child;
    if (const ncclResult_t wrong = parse_child(me, comm, config, &child); wrong != ncclSuccess) return wrong;
    std::vector<int> stay;
    for (int r = 0; r < comm->size; ++r)
      if (std::find(out.begin(), out.end(), r) == out.end()) stay.push_back(r);
    if (shrinkFlags == NCCL_SHRINK_ABORT) comm->group.abort("ncclCommShrink");
    return begin({.comm = comm, .run = [=] { return shrink(me, comm, stay, child, newcomm); }});
  }));
}

OURO_NCCL(ncclResult_t, CommGetUniqueId, ncclComm_t comm, ncclUniqueId* uniqueId) {
  constexpr const char* me = "ncclCommGetUniqueId";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    return pncclGetUniqueId(uniqueId);
  }));
}

OURO_NCCL(ncclResult_t, CommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
          ncclComm_t* newcomm, ncclConfig_t* config) {
  constexpr const char* me = "ncclCommGrow";
  if (!comm) {  // a new rank: joins as it would join any communicator
    if (newcomm) *newcomm = nullptr;
    if (!uniqueId) return report_to_group(invalid_argument(nullptr, me, "a new rank without a unique id"));
    return pncclCommInitRankConfig(newcomm, nRanks, *uniqueId, rank, config);
  }
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!newcomm) return invalid_argument(comm, me, "the pointer for the new communicator is null");
    *newcomm = nullptr;
    if (rank != -1)
      return invalid_argument(comm, me, "rank {} of a member; expected -1, as members keep theirs", rank);
    if (nRanks <= comm->size)
      return invalid_argument(comm, me, "{} ranks; expected more than the {} that there are", nRanks,
                              comm->size);
    Config child;
    if (const ncclResult_t wrong = parse_child(me, comm, config, &child); wrong != ncclSuccess) return wrong;
    const bool has = uniqueId != nullptr;
    const ncclUniqueId given = has ? *uniqueId : ncclUniqueId{};
    return begin({.comm = comm, .run = [=] {
                    auto id = agree_on_id(comm->group, has ? &given : nullptr);
                    if (!id.ok()) return note(comm, me, id.status());
                    return join_as(me, comm, *id, nRanks, comm->rank, child, newcomm);
                  }});
  }));
}

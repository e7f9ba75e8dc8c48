// Making communicators from unique ids. See nccl.h, section "Making communicators".
#include <vector>

#include "api/nccl/environment.h"
#include "api/nccl/joining.h"
#include "api/nccl/mode.h"
#include "api/nccl/unique_id.h"

namespace ouro::nccl {
namespace {

/// Joins the job of `id` and opens `comm` on the group of all its ranks.
ncclResult_t join(const char* function, ncclComm_t comm, int nranks, const UniqueId& id, int rank) {
  const Inside inside(comm);
  InitOptions o;
  o.rank = rank, o.world_size = nranks, o.id = id, o.gpu = -1;
  o.cancel = comm->cancelled;
  auto context = Context::create(o);
  if (!context.ok()) return note(comm, function, context.status());
  auto family = std::make_shared<Family>(std::move(*context));
  Group group = std::move(family->context.world());
  if (!open(comm, std::move(family), std::move(group)))
    return note(comm, function, Status(Reason::revoked, "aborted while it was being made"));
  return ncclSuccess;
}

ncclResult_t init(const char* function, ncclComm_t* out, int nranks, const ncclUniqueId* ids, int nids,
                  int rank, const ncclConfig_t* given, int device) {
  if (!out) return invalid_argument(nullptr, function, "the pointer for the new communicator is null");
  *out = nullptr;
  if (nranks < 1) return invalid_argument(nullptr, function, "{} ranks; expected 1 or more", nranks);
  if (rank < 0 || rank >= nranks)
    return invalid_argument(nullptr, function, "rank {} of {}; expected 0 to {}", rank, nranks, nranks - 1);
  Config config;
  if (const ncclResult_t wrong = parse(function, given, default_config(), &config); wrong != ncclSuccess)
    return wrong;
  if (const ncclResult_t wrong = check_mode(function); wrong != ncclSuccess) return wrong;
  auto id = job_of(ids, nids);
  if (!id.ok()) return fail(nullptr, function, id.status());
  const ncclComm_t comm = make_handle(config);
  comm->rank = rank, comm->size = nranks, comm->device = device;
  *out = comm;
  const auto drop = [out, comm] {
    *out = nullptr;
    retire(comm);
  };
  Job job;
  job.run = [=, id = *id] {
    const ncclResult_t joined = join(function, comm, nranks, id, rank);
    if (joined != ncclSuccess && comm->config.blocking && !comm->cancelled->load()) drop();
    return joined;
  };
  job.drop = drop;
  return begin(comm, std::move(job));
}

}  // namespace

ncclResult_t join_as(const char* function, ncclComm_t parent, const ncclUniqueId& id, int nranks, int rank,
                     const Config& config, ncclComm_t* out) {
  auto job = job_of(&id, 1);
  if (!job.ok()) return fail(parent, function, job.status());
  const ncclComm_t comm = make_handle(config);
  comm->rank = rank, comm->size = nranks, comm->device = parent->device;
  if (const ncclResult_t joined = join(function, comm, nranks, *job, rank); joined != ncclSuccess) {
    retire(comm);
    return joined;
  }
  *out = comm;
  return ncclSuccess;
}

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, GetUniqueId, ncclUniqueId* uniqueId) {
  constexpr const char* me = "ncclGetUniqueId";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    read_environment();
    if (!uniqueId) return invalid_argument(nullptr, me, "uniqueId is null");
    auto id = make_unique_id();
    if (!id.ok()) return fail(nullptr, me, id.status());
    *uniqueId = *id;
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  constexpr const char* me = "ncclCommInitRank";
  return told(guarded(nullptr, me, [&] { return init(me, comm, nranks, &commId, 1, rank, nullptr, 0); }));
}

OURO_NCCL(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
          ncclConfig_t* config) {
  constexpr const char* me = "ncclCommInitRankConfig";
  return told(guarded(nullptr, me, [&] { return init(me, comm, nranks, &commId, 1, rank, config, 0); }));
}

OURO_NCCL(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
          ncclUniqueId* commIds, ncclConfig_t* config) {
  constexpr const char* me = "ncclCommInitRankScalable";
  return told(guarded(nullptr, me, [&]() -> ncclResult_t {
    if (newcomm) *newcomm = nullptr;
    if (!commIds) return invalid_argument(nullptr, me, "commIds is null");
    if (nId < 1 || nId > nranks)
      return invalid_argument(nullptr, me, "{} ids for {} ranks; expected 1 to {}", nId, nranks, nranks);
    return init(me, newcomm, nranks, commIds, nId, myrank, config, 0);
  }));
}

OURO_NCCL(ncclResult_t, CommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  constexpr const char* me = "ncclCommInitAll";
  return told(guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!comm) return invalid_argument(nullptr, me, "the array of communicators is null");
    if (ndev < 1) return invalid_argument(nullptr, me, "{} devices; expected 1 or more", ndev);
    for (int i = 0; devlist && i < ndev; ++i)
      if (devlist[i] < 0)
        return invalid_argument(nullptr, me, "device {} at place {}; expected 0 or more", devlist[i], i);
    auto id = make_unique_id();
    if (!id.ok()) return fail(nullptr, me, id.status());
    GroupCalls::start();
    for (int i = 0; i < ndev; ++i)
      (void)told(init(me, &comm[i], ndev, &*id, 1, i, nullptr, devlist ? devlist[i] : i));
    const ncclResult_t made = GroupCalls::end();
    if (made == ncclSuccess || made == ncclInProgress) return made;
    for (int i = 0; i < ndev; ++i)
      if (ncclComm_t c = std::exchange(comm[i], nullptr))
        stop(c, "another rank of ncclCommInitAll failed"), retire(c);
    return made;
  }));
}

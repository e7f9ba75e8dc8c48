// Making communicators from unique ids. See nccl.h, section "Making communicators".
#include <algorithm>
#include <optional>

#include "api/nccl/environment.h"
#include "api/nccl/joining.h"
#include "api/nccl/mode.h"
#include "api/nccl/unique_id.h"

namespace ouro::nccl {
namespace {

ncclResult_t init(const char* function, ncclComm_t* out, int nranks, const ncclUniqueId* ids, int nids,
                  int rank, const ncclConfig_t* given, std::optional<int> device = {}) {
  if (!out) return invalid_argument(nullptr, function, "the pointer for the new communicator is null");
  *out = nullptr;
  if (nranks < 1) return invalid_argument(nullptr, function, "{} ranks; expected 1 or more", nranks);
  if (rank < 0 || rank >= nranks)
    return invalid_argument(nullptr, function, "rank {} of {}; expected 0 to {}", rank, nranks, nranks - 1);
  Config config;
  if (const ncclResult_t wrong = parse(function, given, default_config(), &config); wrong != ncclSuccess)
    return wrong;
  if (const ncclResult_t wrong = check_mode(function); wrong != ncclSuccess) return wrong;
  const auto place = device_for(device);
  if (!place.ok()) return fail(nullptr, function, place.status());
  auto meeting = meeting_of(ids, nids);
  if (!meeting.ok()) return fail(nullptr, function, meeting.status());
  const ncclComm_t comm = make_handle(config, rank, nranks, *place);
  *out = comm;
  const auto drop = [out, comm] {
    *out = nullptr;
    (void)retire(comm);
  };
  Job job{.comm = comm, .drop = drop};
  job.run = [=, meeting = *meeting] {
    const Entry entry(comm, function);  // it may have been aborted before the group ended
    return entry.wrong != ncclSuccess ? entry.wrong : join(function, comm, nranks, meeting, rank);
  };
  if (config.blocking) {  // is retired if it cannot be made; non-blocking ones report their error when polled
    job.run = [=, joins = std::move(job.run)] {
      const ncclResult_t joined = joins();
      if (joined != ncclSuccess && !comm->cancelled->load()) drop();
      return joined;
    };
    job.ends = true;
  }
  return begin(std::move(job));
}

}  // namespace

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, GetUniqueId, ncclUniqueId* uniqueId) {
  constexpr const char* me = "ncclGetUniqueId";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (const ouro::Status s = read_environment(); !s.ok()) return fail(nullptr, me, s);
    if (!uniqueId) return invalid_argument(nullptr, me, "uniqueId is null");
    auto id = make_unique_id(Reach::several);
    if (!id.ok()) return fail(nullptr, me, id.status());
    *uniqueId = *id;
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, CommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  constexpr const char* me = "ncclCommInitRank";
  return report_to_group(
      guarded(nullptr, me, [&] { return init(me, comm, nranks, &commId, 1, rank, nullptr); }));
}

OURO_NCCL(ncclResult_t, CommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
          ncclConfig_t* config) {
  constexpr const char* me = "ncclCommInitRankConfig";
  return report_to_group(
      guarded(nullptr, me, [&] { return init(me, comm, nranks, &commId, 1, rank, config); }));
}

OURO_NCCL(ncclResult_t, CommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank, int nId,
          ncclUniqueId* commIds, ncclConfig_t* config) {
  constexpr const char* me = "ncclCommInitRankScalable";
  return report_to_group(guarded(nullptr, me, [&]() -> ncclResult_t {
    if (newcomm) *newcomm = nullptr;
    if (!commIds) return invalid_argument(nullptr, me, "commIds is null");
    if (nId < 1 || nId > nranks)
      return invalid_argument(nullptr, me, "{} ids for {} ranks; expected 1 to {}", nId, nranks, nranks);
    return init(me, newcomm, nranks, commIds, nId, myrank, config);
  }));
}

OURO_NCCL(ncclResult_t, CommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  constexpr const char* me = "ncclCommInitAll";
  return report_to_group(guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!comm) return invalid_argument(nullptr, me, "the array of communicators is null");
    if (ndev < 1) return invalid_argument(nullptr, me, "{} devices; expected 1 or more", ndev);
    for (int i = 0; devlist && i < ndev; ++i)
      if (devlist[i] < 0)
        return invalid_argument(nullptr, me, "device {} at place {}; expected 0 or more", devlist[i], i);
    auto id = make_unique_id(Reach::process);
    if (!id.ok()) return fail(nullptr, me, id.status());
    std::fill_n(comm, ndev, nullptr);
    GroupCalls::start();
    for (int i = 0; i < ndev; ++i)
      (void)report_to_group(guarded(nullptr, me, [&] {
        return init(me, &comm[i], ndev, &*id, 1, i, nullptr, devlist ? devlist[i] : i);
      }));
    const ncclResult_t made = GroupCalls::end();
    if (made == ncclSuccess || made == ncclInProgress) return made;
    for (int i = 0; i < ndev; ++i)
      if (ncclComm_t c = std::exchange(comm[i], nullptr)) {
        if (GroupCalls* group = GroupCalls::current()) group->forget(c, true);
        stop(c, "another rank of ncclCommInitAll failed");
        (void)retire(c);
      }
    return made;
  }));
}

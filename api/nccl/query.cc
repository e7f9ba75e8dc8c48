// Queries of the library and of communicators. See nccl.h, sections "Version" and "Querying communicators".
#include <dlfcn.h>

#include <cstring>

#include "api/nccl/communicator.h"
#include "api/nccl/environment.h"
#include "api/nccl/version.h"

using namespace ouro::nccl;

namespace {

template <class T>
ncclResult_t report_value(const char* function, ncclComm_t comm, T* out, const T& value) {
  if (!out) return invalid_argument(comm, function, "the pointer for the answer is null");
  *out = value;
  return ncclSuccess;
}

}  // namespace

OURO_NCCL(ncclResult_t, GetVersion, int* version) {
  constexpr const char* me = "ncclGetVersion";
  return guarded(nullptr, me, [&] { return report_value(me, nullptr, version, reported_version()); });
}

OURO_NCCL(void, ResetDebugInit, void) {
  (void)guarded(nullptr, "ncclResetDebugInit", [] {
    reset_log();
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, CommCount, const ncclComm_t comm, int* count) {
  constexpr const char* me = "ncclCommCount";
  const Entry entry(comm, me);
  if (entry.wrong != ncclSuccess) return entry.wrong;
  return report_value(me, comm, count, comm->size);
}

OURO_NCCL(ncclResult_t, CommCuDevice, const ncclComm_t comm, int* device) {
  constexpr const char* me = "ncclCommCuDevice";
  const Entry entry(comm, me);
  if (entry.wrong != ncclSuccess) return entry.wrong;
  return report_value(me, comm, device, comm->place.index);
}

OURO_NCCL(ncclResult_t, CommUserRank, const ncclComm_t comm, int* rank) {
  constexpr const char* me = "ncclCommUserRank";
  const Entry entry(comm, me);
  if (entry.wrong != ncclSuccess) return entry.wrong;
  return report_value(me, comm, rank, comm->rank);
}

OURO_NCCL(ncclResult_t, CommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError) {
  constexpr const char* me = "ncclCommGetAsyncError";
  const Entry entry(comm, me);
  if (entry.wrong != ncclSuccess) return entry.wrong;
  if (!asyncError) return invalid_argument(comm, me, "the pointer for the answer is null");
  return guarded(comm, me, [&] {
    *asyncError = state_of(comm);
    return ncclSuccess;
  });
}

extern "C" __attribute__((visibility("default"))) const char* ouro_nccl_identity(void) {
  static const std::string& text = *new std::string([] {
    Dl_info where = {};
    const char* path = dladdr(reinterpret_cast<const void*>(&ouro_nccl_identity), &where) && where.dli_fname
                           ? where.dli_fname
                           : "at an unknown path";
    return fmt::format("ouro {} {}, NCCL interface {}.{}.{}", ouro::version(), path, NCCL_MAJOR, NCCL_MINOR,
                       NCCL_PATCH);
  }());
  return text.c_str();
}

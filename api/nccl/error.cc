// Result codes and the last error. See error.h.
#include "api/nccl/error.h"

#include <pthread.h>

#include <mutex>

#include "api/nccl/communicator.h"
#include "runtime/core/log.h"

namespace ouro::nccl {
namespace {

std::mutex g_error_mutex;
/// Lets a forked child report errors, too: no other thread of the parent holds the lock during the fork.
[[maybe_unused]] const int g_forks_unlocked = pthread_atfork(
    [] { g_error_mutex.lock(); }, [] { g_error_mutex.unlock(); }, [] { g_error_mutex.unlock(); });
/// The last error of the process. Never destroyed: other threads may fail while the program ends.
std::string& last() {
  static std::string& text = *new std::string;
  return text;
}

}  // namespace

ncclResult_t code_of(const Status& s) {
  switch (s.reason()) {
    case Reason::none:
      return ncclSuccess;
    case Reason::peer_dead:
    case Reason::peer_unresponsive:
    case Reason::link_lost:
    case Reason::deadline:
    case Reason::never_joined:
    case Reason::revoked:
    case Reason::fenced:
    case Reason::no_quorum:
      return ncclRemoteError;
    case Reason::mismatch:
    case Reason::refused:
    case Reason::forked:
    case Reason::unsupported:
      return ncclInvalidUsage;
    case Reason::invalid:
      return ncclInvalidArgument;
    case Reason::resource:
    case Reason::data_corrupt:
      return ncclSystemError;
    case Reason::device:
      return ncclUnhandledCudaError;
    case Reason::ring_corrupt:
      return ncclInternalError;
  }
  return ncclInternalError;
}

const char* name_of(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return "a code that does not exist";
  }
}

std::string last_error_of(ncclComm_t comm) {
  std::lock_guard lock(g_error_mutex);
  return comm->last_error;
}

ncclResult_t fail(ncclComm_t comm, ncclResult_t code, std::string text) {
  if (comm && !comm->config.name.empty()) text = fmt::format("communicator {}: {}", comm->config.name, text);
  OURO_INFO(CALL, "{}: {}", name_of(code), text);
  std::lock_guard lock(g_error_mutex);
  if (comm) comm->last_error = text;
  last() = std::move(text);
  return code;
}

ncclResult_t fail(ncclComm_t comm, const char* function, const Status& s) {
  return fail(comm, code_of(s), fmt::format("{}: {}", function, s.message()));
}

ncclResult_t not_supported(ncclComm_t comm, const char* function, const char* what, const char* why,
                           const char* instead) {
  return fail(
      comm, ncclInvalidUsage,
      fmt::format("{}: {} is not supported by ouro {}: {}; {}", function, what, version(), why, instead));
}

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(const char*, GetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a CUDA call failed";
    case ncclSystemError:
      return "the operating system refused something: memory, threads, descriptors, files";
    case ncclInternalError:
      return "an error inside the library";
    case ncclInvalidArgument:
      return "an argument is invalid";
    case ncclInvalidUsage:
      return "the calls do not fit together, or ask for what is not supported";
    case ncclRemoteError:
      return "another rank died, left, aborted or did not arrive in time";
    case ncclInProgress:
      return "the operation is still in progress";
    default:
      return "unknown result code";
  }
}

OURO_NCCL(const char*, GetLastError, ncclComm_t comm) {
  static thread_local std::string copy;  // valid until the thread's next call
  std::lock_guard lock(g_error_mutex);
  copy = comm && comm->magic.load() == kAlive ? comm->last_error : last();
  return copy.c_str();
}

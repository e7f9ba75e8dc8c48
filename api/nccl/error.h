// Conversion of a Status of the C++ interface to a result code, and the text for ncclGetLastError. Used by
// all of libnccl.
#pragma once
#include <fmt/format.h>

#include <string>

#include "api/nccl/exports.h"
#include "ouro/ouro.hpp"

namespace ouro::nccl {

/// The code of a failure: RemoteError for actions or omissions of other ranks (dead, silent, aborted, too
/// late), InvalidUsage for calls that do not fit together, InvalidArgument, SystemError,
/// UnhandledCudaError, InternalError.
ncclResult_t code_of(const Status&);

/// The name of a code, as in nccl.h.
const char* name_of(ncclResult_t);

/// The last error of a communicator.
std::string last_error_of(ncclComm_t comm);

/// Stores `text` as the last error of the process and, if `comm` is not null, of `comm`, prefixed with its
/// name; returns `code`.
ncclResult_t fail(ncclComm_t comm, ncclResult_t code, std::string text);
/// The same for a Status: its code, and its message prefixed with the function's name.
ncclResult_t fail(ncclComm_t comm, const char* function, const Status&);
/// `fail` with ncclInvalidArgument.
template <class... A>
ncclResult_t invalid_argument(ncclComm_t comm, const char* function, fmt::format_string<A...> f, A&&... a) {
  return fail(comm, ncclInvalidArgument,
              fmt::format("{}: {}", function, fmt::format(f, std::forward<A>(a)...)));
}
/// `fail` with ncclInvalidUsage.
template <class... A>
ncclResult_t invalid_usage(ncclComm_t comm, const char* function, fmt::format_string<A...> f, A&&... a) {
  return fail(comm, ncclInvalidUsage, fmt::format("{}: {}", function, fmt::format(f, std::forward<A>(a)...)));
}
/// ncclInvalidUsage with a text that names what is missing, why, and what to do instead.
ncclResult_t not_supported(ncclComm_t comm, const char* function, const char* what, const char* why,
                           const char* instead);

/// Runs the body of a function; an exception (no memory) becomes ncclSystemError.
template <class F>
ncclResult_t guarded(ncclComm_t comm, const char* function, F&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    return fail(comm, function, Status(Reason::resource, e.what()));
  }
}

}  // namespace ouro::nccl

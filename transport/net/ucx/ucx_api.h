// The UCX library as functions, loaded when they are first asked for: a process that does not use the fabric
// does not load it, and a machine without it runs the rest. Used by the ucx fabric and by ouro-info.
#pragma once
#include <ucp/api/ucp.h>

#include <string>

#include "runtime/core/status.h"

namespace ouro::transport {

/// X(function): all of libucp that is used.
// clang-format off
#define OURO_UCP_FUNCTIONS(X) \
  X(ucp_get_version) \
  X(ucp_config_read) \
  X(ucp_config_modify) \
  X(ucp_config_release) \
  X(ucp_init_version) \
  X(ucp_cleanup) \
  X(ucp_worker_create) \
  X(ucp_worker_destroy) \
  X(ucp_worker_get_address) \
  X(ucp_worker_release_address) \
  X(ucp_worker_get_efd) \
  X(ucp_worker_arm) \
  X(ucp_worker_progress) \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create) \
  X(ucp_ep_close_nbx) \
  X(ucp_am_send_nbx) \
  X(ucp_am_recv_data_nbx) \
  X(ucp_request_check_status) \
  X(ucp_request_free)
// clang-format on

struct UcxApi {
#define OURO_X(f) decltype(&::f) f;
  OURO_UCP_FUNCTIONS(OURO_X)
#undef OURO_X
  decltype(&::ucs_status_string) ucs_status_string;
  std::string path;  ///< of the libucp in use
  unsigned major, minor, release;

  /// Loads it, once in the life of the process; it stays. Errors: unsupported (there is none, it is another
  /// major version than this was built with, or the process has two copies).
  static Result<const UcxApi*> load();
  std::string version() const;
  /// Of the headers that this was built with.
  static std::string header_version();
};

}  // namespace ouro::transport

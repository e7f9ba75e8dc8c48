// The UCX library as functions, loaded on first use: a process that does not use the fabric does not load it,
// and a machine without it can run everything else. Used by the ucx fabric and by ouro-info.
#pragma once
#include <ucp/api/ucp.h>

#include <string>

#include "runtime/core/status.h"

namespace ouro::transport {

/// X(function): all functions of libucp that are used.
// clang-format off
#define OURO_UCP_FUNCTIONS(X) \
  X(ucp_get_version) \
  X(ucp_config_read) \
  X(ucp_config_modify) \
  X(ucp_config_release) \
  X(ucp_init_version) \
  X(ucp_cleanup) \
  X(ucp_context_query) \
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
  std::string path;  ///< path of the libucp in use
  unsigned major, minor, release;

  /// Loads UCX once per process; it is never unloaded. Errors: unsupported (not found, another major version
  /// than this was built with, or two copies in the process).
  static Result<const UcxApi*> load();
  std::string version() const;
  /// Before 1.14 UCX may end the process by an assertion (ucp_request_send_state_ff) when a worker is
  /// destroyed while it answers the request of a peer to connect (openucx/ucx#8175).
  bool asserts_on_late_connections() const { return major == 1 && minor < 14; }
  /// Version of the headers that this was built with.
  static std::string header_version();
};

}  // namespace ouro::transport

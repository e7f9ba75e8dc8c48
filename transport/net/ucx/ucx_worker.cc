// Setting UCX up. See ucx_worker.h.
#include "transport/net/ucx/ucx_worker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/thread.h"

namespace ouro::transport {
namespace {

/// A setting that applies unless the user has set `variable`. `name` is its name in UCX's interface, where
/// settings of a transport have no prefix.
struct Setting {
  const char *variable, *name;
  std::string value;
};

std::vector<Setting> settings(const std::string& transports, const std::string& devices) {
  const std::string segment = std::to_string(UcxWorker::kSegment);
  std::vector<Setting> all = {
      {"UCX_TLS", "TLS",
       transports},  // without "self", which would replace all transports if no interface is usable
      {"UCX_TCP_TX_SEG_SIZE", "TX_SEG_SIZE", segment},
      {"UCX_TCP_RX_SEG_SIZE", "RX_SEG_SIZE", segment},
      {"UCX_TCP_CONN_NB", "CONN_NB", "y"},  // a sender must not wait for a connection
      {"UCX_KEEPALIVE_INTERVAL", "KEEPALIVE_INTERVAL",
       "inf"}  // the control line monitors whether peers are alive
  };
  if (!devices.empty()) all.push_back({"UCX_NET_DEVICES", "NET_DEVICES", devices});
  return all;
}

}  // namespace

std::vector<std::string> rdma_devices(const std::string& interface, const std::string& root) {
  namespace fs = std::filesystem;
  const auto within = [](const fs::path& folder) {
    std::vector<fs::path> all;
    std::error_code none;
    for (const auto& e : fs::directory_iterator(folder, none)) all.push_back(e.path());
    return all;
  };
  std::vector<std::string> found;
  for (const fs::path& device : within(root))
    for (const fs::path& port : within(device / "ports"))
      for (const fs::path& name : within(port / "gid_attrs" / "ndevs")) {
        std::string of;
        if (std::ifstream(name) >> of && of == interface)
          found.push_back(device.filename().string() + ":" + port.filename().string());
      }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());  // a port has several addresses
  return found;
}

Status UcxWorker::failed(const char* call, ucs_status_t s) const {
  return {Reason::resource, fmt::format("{}: {}", call, what(s))};
}

Status UcxWorker::configure(ucp_config_t* config, const std::string& transports,
                            const std::string& devices) const {
  for (const Setting& s : settings(transports, devices)) {
    if (const char* set = std::getenv(s.variable)) {
      OURO_INFO(NET, "{}={} is set and goes before ouro's {}", s.variable, set, s.value);
      continue;
    }
    if (const ucs_status_t e = ucx_->ucp_config_modify(config, s.name, s.value.c_str()); e != UCS_OK)
      return failed(s.variable, e);
  }
  return {};
}

Status UcxWorker::make_context(int world, const std::string& transports, const std::string& devices) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t e = ucx_->ucp_config_read(nullptr, nullptr, &config); e != UCS_OK)
    return failed("ucp_config_read", e);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<std::size_t>(world);
  params.name = "ouro";
  Status s = configure(config, transports, devices);
  if (s.ok()) {
    const ucs_status_t e = ucx_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    if (e != UCS_OK) s = failed("ucp_init", e);
  }
  ucx_->ucp_config_release(config);
  return s;
}

bool UcxWorker::takes_cuda() const {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucx_->ucp_context_query(context_, &attributes) == UCS_OK &&
         (attributes.memory_types & (std::uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) != 0;
}

/// A context with transports of CUDA alone would be made, too, where no interface can be used: so the one
/// without them is made first.
void UcxWorker::add_cuda(int world, const std::string& transports, const std::string& devices) {
  const ucp_context_h plain = std::exchange(context_, nullptr);
  const Status made = make_context(world, transports + ",cuda_copy,gdr_copy", devices);
  if (made.ok() && takes_cuda()) return ucx_->ucp_cleanup(plain);
  if (context_) ucx_->ucp_cleanup(context_);
  context_ = plain;
}

Status UcxWorker::open(int world, const std::string& devices, Cuda cuda, ucp_am_recv_callback_t take,
                       void* arg) {
  const SignalsBlocked ours;  // UCX starts a thread of its own
  auto api = UcxApi::load();
  if (!api.ok()) return api.status();
  ucx_ = *api;
  const std::vector<std::string> rdma = rdma_devices(devices);
  Status made{Reason::resource, "no RDMA"};
  std::string transports = "tcp", on = devices;
  if (!rdma.empty()) {
    const std::string both = fmt::format("{},{}", devices, fmt::join(rdma, ","));
    made = make_context(world, "rc,ud,tcp", both);
    rdma_ = made.ok() && !std::getenv("UCX_TLS") && !std::getenv("UCX_NET_DEVICES");
    if (made.ok()) transports = "rc,ud,tcp", on = both;
    if (made.ok())
      OURO_INFO(NET, "RDMA by {}", fmt::join(rdma, ", "));
    else
      OURO_WARN("interface {} has RDMA by {}, and UCX cannot use it: {}; going by TCP", devices,
                fmt::join(rdma, ", "), made.failure()->text);
  }
  if (!made.ok()) OURO_TRY(make_context(world, transports, on));
  if (cuda == Cuda::always || (cuda == Cuda::beside_rdma && rdma_)) add_cuda(world, transports, on);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // serialised by the exchange's lock
  if (const ucs_status_t e = ucx_->ucp_worker_create(context_, &worker, &worker_); e != UCS_OK)
    return failed("ucp_worker_create", e);
  if (const ucs_status_t e = ucx_->ucp_worker_get_efd(worker_, &events_); e != UCS_OK)
    return failed("ucp_worker_get_efd", e);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrame;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = take;
  handler.arg = arg;
  if (const ucs_status_t e = ucx_->ucp_worker_set_am_recv_handler(worker_, &handler); e != UCS_OK)
    return failed("ucp_worker_set_am_recv_handler", e);
  OURO_INFO(NET, "UCX {} from {}; built with the headers of {}", ucx_->version(), ucx_->path,
            UcxApi::header_version());
  return {};
}

UcxWorker::~UcxWorker() {
  if (worker_) ucx_->ucp_worker_destroy(worker_);
  if (context_) ucx_->ucp_cleanup(context_);
}

std::vector<std::uint8_t> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (ucx_->ucp_worker_get_address(worker_, &address, &bytes) != UCS_OK) return {};
  const auto* first = reinterpret_cast<const std::uint8_t*>(address);
  std::vector<std::uint8_t> copy(first, first + bytes);
  ucx_->ucp_worker_release_address(worker_, address);
  return copy;
}

}  // namespace ouro::transport

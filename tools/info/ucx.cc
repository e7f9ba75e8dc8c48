// Queries UCX for its components. Used through ucx.h.
#include "tools/info/ucx.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#if OURO_BUILD_UCX
#include <dlfcn.h>
#include <uct/api/uct.h>

#include "transport/net/ucx/ucx_api.h"
#endif

namespace ouro::info {

#if OURO_BUILD_UCX
namespace {

/// Names of the components, without opening any: modules are loaded, but devices are not touched.
std::vector<std::string> parts() {
  // The one that belongs to libucp; never closed.
  void* const lib = dlopen("libuct.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!lib) return {};
  const auto query = reinterpret_cast<decltype(&uct_query_components)>(dlsym(lib, "uct_query_components"));
  const auto release =
      reinterpret_cast<decltype(&uct_release_component_list)>(dlsym(lib, "uct_release_component_list"));
  const auto ask = reinterpret_cast<decltype(&uct_component_query)>(dlsym(lib, "uct_component_query"));
  uct_component_h* all = nullptr;
  unsigned count = 0;
  if (!query || !release || !ask || query(&all, &count) != UCS_OK) return {};
  std::vector<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
    if (ask(all[i], &attributes) == UCS_OK) names.emplace_back(attributes.name);
  }
  release(all);
  return names;
}

/// Asks a context, which opens devices; so only where UCX has components for CUDA at all.
std::string gpu_memory(const transport::UcxApi& api, const std::vector<std::string>& parts) {
  std::string by;
  for (const std::string& p : parts)
    if (p.starts_with("cuda") || p.starts_with("gdr")) by += (by.empty() ? "" : ", ") + p;
  if (by.empty()) return "no: it has no component for CUDA";
  ucp_config_t* config = nullptr;
  if (const ucs_status_t e = api.ucp_config_read(nullptr, nullptr, &config); e != UCS_OK)
    return std::string("unknown: ucp_config_read: ") + api.ucs_status_string(e);
  if (!std::getenv("UCX_TLS")) (void)api.ucp_config_modify(config, "TLS", "tcp,cuda_copy,gdr_copy");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  const ucs_status_t made = api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  api.ucp_config_release(config);
  if (made != UCS_OK) return std::string("unknown: ucp_init: ") + api.ucs_status_string(made);
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const bool asked = api.ucp_context_query(context, &attributes) == UCS_OK;
  api.ucp_cleanup(context);
  if (asked && (attributes.memory_types & (std::uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) != 0)
    return "yes, by " + by;
  return "no: it has " + by + ", which find no GPU here";
}

}  // namespace

Ucx read_ucx() {
  Ucx u;
  u.built_with = transport::UcxApi::header_version();
  const auto api = transport::UcxApi::load();
  if (!api.ok()) {
    u.why = api.status().failure()->text;
    return u;
  }
  u.version = (*api)->version();
  u.path = (*api)->path;
  u.parts = parts();
  u.gpu_memory = gpu_memory(**api, u.parts);
  return u;
}
#else
Ucx read_ucx() { return {.why = kNoUcx}; }
#endif

std::vector<std::string> lacks(const Ucx& u) {
  const auto has = [&](const char* start) {
    return std::any_of(u.parts.begin(), u.parts.end(),
                       [&](const std::string& p) { return p.starts_with(start); });
  };
  std::vector<std::string> missing;
  if (!u.why.empty()) return missing;
  if (!has("tcp")) missing.push_back("TCP (the fabric does not start)");
  if (!has("cuda")) missing.push_back("CUDA (GPU memory goes through the host)");
  if (!has("ib")) missing.push_back("verbs (no InfiniBand, no RoCE)");
  if (!has("rdmacm")) missing.push_back("rdmacm");
  return missing;
}

}  // namespace ouro::info

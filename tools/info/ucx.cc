// Queries UCX for its components. Used through ucx.h.
#include "tools/info/ucx.h"

#include <algorithm>

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

// ouro's settings, by name, as nccl.h's parameters. See nccl.h, section "Parameters".
#include <charconv>
#include <cstring>
#include <limits>

#include "api/nccl/group_calls.h"
#include "runtime/core/env.h"
#include "runtime/core/per_process.h"

/// A parameter that was looked up; lives as long as the process.
struct ncclParamHandle {
  std::string key, value;
};

namespace ouro::nccl {
namespace {

/// The handle of a parameter, with the value it had at the first query of any parameter; nullptr: no
/// such parameter.
ncclParamHandle_t find(const char* key) {
  using Handles = std::map<std::string, std::unique_ptr<ncclParamHandle>>;
  static constinit MadeOnce<const Handles> made;
  const Handles& known = made.get([] {
    Handles all;
    for (const env::Setting& s : env::settings()) {
      const std::string name(s.parameter->name);
      all.emplace(name, std::make_unique<ncclParamHandle>(ncclParamHandle{name, s.value.value_or("")}));
    }
    return all;
  });
  const auto it = known.find(key);
  return it == known.end() ? nullptr : it->second.get();
}

ncclResult_t no_such(const char* function, const char* key) {
  return invalid_argument(nullptr, function,
                          "there is no parameter {}; ncclParamGetAllParameterKeys has their names", key);
}

template <class T>
ncclResult_t number(const char* function, ncclParamHandle_t h, T* out) {
  if (!h || !out) return invalid_argument(nullptr, function, "a null pointer");
  T value = 0;
  const char* const end = h->value.data() + h->value.size();
  const auto [rest, error] = std::from_chars(h->value.data(), end, value);
  if (error != std::errc() || rest != end)
    return invalid_argument(nullptr, function, "{} is '{}'; that is no whole number from {} to {}", h->key,
                            h->value, +std::numeric_limits<T>::min(), +std::numeric_limits<T>::max());
  *out = value;
  return ncclSuccess;
}

}  // namespace
}  // namespace ouro::nccl

using namespace ouro::nccl;

#define OURO_NCCL_NUMBER(name, type)                                                                     \
  OURO_NCCL(ncclResult_t, ParamGet##name, ncclParamHandle_t h, type* out) {                              \
    return guarded(nullptr, "ncclParamGet" #name, [&] { return number("ncclParamGet" #name, h, out); }); \
  }
OURO_NCCL_NUMBER(I8, int8_t)
OURO_NCCL_NUMBER(I16, int16_t)
OURO_NCCL_NUMBER(I32, int32_t)
OURO_NCCL_NUMBER(I64, int64_t)
OURO_NCCL_NUMBER(U8, uint8_t)
OURO_NCCL_NUMBER(U16, uint16_t)
OURO_NCCL_NUMBER(U32, uint32_t)
OURO_NCCL_NUMBER(U64, uint64_t)

OURO_NCCL(ncclResult_t, ParamBind, ncclParamHandle_t* out, const char* key) {
  constexpr const char* me = "ncclParamBind";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!out || !key) return invalid_argument(nullptr, me, "a null pointer");
    *out = find(key);
    return *out ? ncclSuccess : no_such(me, key);
  });
}

OURO_NCCL(ncclResult_t, ParamGetStr, ncclParamHandle_t h, const char** out) {
  constexpr const char* me = "ncclParamGetStr";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!h || !out) return invalid_argument(nullptr, me, "a null pointer");
    *out = h->value.c_str();
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, ParamGet, ncclParamHandle_t h, void* out, int maxLen, int* len) {
  constexpr const char* me = "ncclParamGet";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!h || !out || !len) return invalid_argument(nullptr, me, "a null pointer");
    const int needed = static_cast<int>(h->value.size()) + 1;  // including the terminating zero
    *len = needed;
    if (maxLen < needed)
      return invalid_argument(nullptr, me, "room for {} bytes; {} needs {}", maxLen, h->key, needed);
    std::memcpy(out, h->value.c_str(), static_cast<std::size_t>(needed));
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, ParamGetParameter, const char* key, const char** value, int* valueLen) {
  constexpr const char* me = "ncclParamGetParameter";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!key || !value || !valueLen) return invalid_argument(nullptr, me, "a null pointer");
    const ncclParamHandle_t h = find(key);
    if (!h) return no_such(me, key);
    *value = h->value.c_str();
    *valueLen = static_cast<int>(h->value.size());
    return ncclSuccess;
  });
}

OURO_NCCL(ncclResult_t, ParamGetAllParameterKeys, const char*** table, int* tableLen) {
  constexpr const char* me = "ncclParamGetAllParameterKeys";
  return guarded(nullptr, me, [&]() -> ncclResult_t {
    if (!table || !tableLen) return invalid_argument(nullptr, me, "a null pointer");
    static auto& keys = *new std::vector<const char*>([] {
      std::vector<const char*> all;
      for (const ouro::env::Parameter& p : ouro::env::kParameters)
        all.push_back(p.name.data());  // zero-terminated: a literal
      return all;
    }());
    *table = keys.data();
    *tableLen = static_cast<int>(keys.size());
    return ncclSuccess;
  });
}

OURO_NCCL(void, ParamDumpAll, void) {
  (void)guarded(nullptr, "ncclParamDumpAll", [] {
    for (const ouro::env::Setting& s : ouro::env::settings())
      if (s.value) fmt::print(stderr, "{}={} ({})\n", s.parameter->name, *s.value, s.origin);
    return ncclSuccess;
  });
}

// Shared by the parts of the C interface: handles, the thread's last error, argument checks. Used by
// c_api.cc, c_operations.cc and c_streams.cc.
#pragma once
#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "api/include/ouro/ouro.h"
#include "api/include/ouro/ouro.hpp"

struct ouro_group {
  ouro::Group owned;  ///< not valid if borrowed
  ouro::Group* borrowed = nullptr;
  ouro::Group& get() { return borrowed ? *borrowed : owned; }
};

struct ouro_context {
  explicit ouro_context(ouro::Context c) : context(std::move(c)) { world.borrowed = &context.world(); }
  ouro::Context context;
  ouro_group world;
  std::mutex mutex;
  std::map<void*, ouro::Memory> memory;  ///< guarded by mutex
};

struct ouro_registration {
  ouro::Registration registration;
};

struct ouro_stream {
  ouro::Stream stream;
};

struct ouro_work {
  ouro::Work work;
};

namespace ouro::c {

/// Stores a failure as this thread's last error; returns the code in either case. Never throws.
int finish(const Status&) noexcept;

/// Runs the body of a C call; no exception escapes.
template <class F>
int guarded(F&& call) noexcept {
  try {
    return finish(call());
  } catch (const std::bad_alloc&) {
    return finish(Status(Reason::resource, "out of memory"));
  } catch (const std::exception& e) {
    return finish(Status(Reason::resource, e.what()));
  }
}

/// `invalid` if a pointer is null: "all_reduce: group is null".
inline Status need(const void* pointer, const char* call, const char* what) {
  return pointer ? Status{} : invalid(fmt::format("{}: {} is null", call, what));
}

/// The value of a getter that returns a number; -1 and an error if the handle is null.
template <class Handle, class F>
int number(Handle handle, const char* call, F&& get) {
  int value = -1;
  const int code = guarded([&]() -> Status {
    OURO_TRY(need(handle, call, "the handle"));
    value = get();
    return {};
  });
  return code == 0 ? value : -1;
}

Result<DType> dtype_of(int, const char* call);
Result<Numerics> numerics_of(int, const char* call);
Result<Priority> priority_of(int, const char* call);
Result<ReduceOp> reduction_of(ouro_op_t, const char* call);

/// The options passed by a caller that may be compiled against another version: members that the caller's
/// structure lacks keep their value in `defaults`.
template <class Options>
Result<Options> options_of(const Options* given, Options defaults, const char* call) {
  if (!given) return defaults;
  if (given->size < sizeof(std::size_t) || given->size > sizeof(Options))
    return invalid(fmt::format(
        "{}: options->size is {}, expected at most {}; initialise options with the OURO_*_OPTIONS macro",
        call, given->size, sizeof(Options)));
  std::memcpy(static_cast<void*>(&defaults), given, given->size);
  defaults.size = sizeof(Options);
  return defaults;
}

}  // namespace ouro::c

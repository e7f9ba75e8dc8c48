// Handles exceptions of user functions within a trainer's call. Used by the parts of GossipTrainer
// and ShardedTrainer.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <new>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Returns f's result. An exception becomes a status, which reaches the other ranks like any other failure:
/// lack of memory is `resource`, everything else `invalid`, because only user functions (optimisers,
/// schedules, pre_mix) throw anything else.
template <class F>
auto caught(F&& f, const char* no_memory = "no memory") -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return Status(Reason::resource, no_memory);
  } catch (const std::exception& e) {
    return invalid(fmt::format("a function of the user's threw an exception: {}", e.what()));
  } catch (...) {
    return invalid("a function of the user's threw an exception");
  }
}

}  // namespace ouro::train

// The knowledge of a fiber: which steps of other fibers happen before its next one, and which stores are the
// oldest that it may read. Used by the engine.
#pragma once
#include <algorithm>
#include <cstdint>

namespace explore {

inline constexpr int kFibers = 8, kLocations = 256;
using Tick = std::uint32_t;  // counts the releases of a fiber
using Key = std::uint32_t;   // position of a store in the modification order of its location; from 1

enum class Order : std::uint8_t { relaxed, acquire, release, acq_rel, seq_cst };
constexpr bool acquires(Order o) { return o == Order::acquire || o >= Order::acq_rel; }
constexpr bool releases(Order o) { return o >= Order::release; }
constexpr const char* name(Order o) {
  constexpr const char* kNames[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
  return kNames[static_cast<int>(o)];
}

/// A vector clock: for each fiber, the tick up to which everything that it did happens before now.
struct VectorClock {
  Tick at[kFibers] = {};
  void join(const VectorClock& o) {
    for (int i = 0; i < kFibers; ++i) at[i] = std::max(at[i], o.at[i]);
  }
};

/// For each location, the newest store that happens before now or was read by something that does: a fiber
/// with this view reads no older store.
struct View {
  Key at[kLocations] = {};
  void join(const View& o, int locations) {
    for (int i = 0; i < locations; ++i) at[i] = std::max(at[i], o.at[i]);
  }
  void join(const Key* o, int locations) {
    for (int i = 0; i < locations; ++i) at[i] = std::max(at[i], o[i]);
  }
  void clear(int locations) { std::fill_n(at, locations, Key{0}); }
};

/// Clock and view for three sets: what happens before now; what relaxed stores publish (since the last
/// release fence); and what the next acquire fence takes in (from relaxed loads).
struct Knowledge {
  int fiber = 0;
  VectorClock clock, released, unacquired;
  View view, released_view, unacquired_view;
  bool has_released = false, has_unacquired = false;
  void clear(int of, int locations) {
    fiber = of;
    clock = released = unacquired = {};
    clock.at[of] = 1;
    view.clear(locations), released_view.clear(locations), unacquired_view.clear(locations);
    has_released = has_unacquired = false;
  }
};

}  // namespace explore

// Faults that are planted into explored programs, and the sites of their atomic operations. Used by the
// machine and by the list of protocols.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/explore/engine/knowledge.h"

namespace explore {

/// One kind of operation that is carried out wrongly wherever it matches: by kind, by the label of what it
/// accesses and, if given, by its place in the program.
struct Fault {
  enum class At : std::uint8_t { load, store, change, wait, wake, fence };
  enum class What : std::uint8_t {
    relax,  ///< with relaxed memory order
    drop,   ///< not at all
    add,    ///< loads and stores: `by` is added to the value
    tear,   ///< read-modify-writes: split into a load and a store
  };
  const char* name;
  const char* label;
  At at;
  What what;
  std::int64_t by = 0;
  const void* site = nullptr;
  std::uint64_t seed = 1;  ///< of the random search, if one seed finds the fault earlier than others
};

/// One operation of an execution, for its trace.
struct Event {
  int fiber;
  const char* what;
  Order order;
  std::string where;
  std::uint64_t value;
  const void* site;
  bool old;
};

struct Site {
  const void* at;
  std::string label;
  Fault::At kind;
  Order order;
};
using SiteList = std::vector<Site>;

}  // namespace explore

// The protocols of shared memory that are explored: programs of a few ranks that run the library's own code,
// and the faults that must be found in them. Used by the tests and the program.
#pragma once
#include <vector>

#include "tests/explore/engine/fault.h"
#include "tests/explore/engine/program.h"

namespace explore {

/// One program, the bounds of its search in a test of seconds, and the faults planted into it.
struct Protocol {
  const char* name;
  const char* what;  ///< the code that runs, and the property that is checked
  Program* program;
  bool exhaustive;  ///< all executions can be tried within seconds
  std::vector<Fault> faults = {};
};
std::vector<Protocol> protocols();

// One function for each file.
void add_links(std::vector<Protocol>*);
void add_staging(std::vector<Protocol>*);
void add_messages(std::vector<Protocol>*);
void add_pages(std::vector<Protocol>*);
void add_references(std::vector<Protocol>*);
void add_devices(std::vector<Protocol>*);

}  // namespace explore

// The list of protocols. See protocols.h.
#include "tests/explore/protocols/protocols.h"

namespace explore {

std::vector<Protocol> protocols() {
  std::vector<Protocol> all;
  add_links(&all);
  add_staging(&all);
  add_references(&all);
  add_messages(&all);
  add_pages(&all);
  add_devices(&all);
  return all;
}

}  // namespace explore

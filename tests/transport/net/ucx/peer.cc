// A rank in a process of its own that returns each chunk, until it is killed or its input ends. Used by
// failure_test: addresses, preceded by their length, are exchanged over its standard input and output.
#include <sys/prctl.h>

#include <csignal>

#include "tests/transport/net/ucx/lab.h"

int main() {
  using namespace ouro::transport;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Rank me(1);
  if (!me.status().ok()) return 1;
  const auto mine = me.fabric().address();
  const auto bytes = static_cast<std::uint32_t>(mine.size());
  if (write(STDOUT_FILENO, &bytes, sizeof bytes) != sizeof bytes) return 1;
  if (write(STDOUT_FILENO, mine.data(), mine.size()) != static_cast<ssize_t>(mine.size())) return 1;
  std::uint32_t theirs = 0;
  if (read(STDIN_FILENO, &theirs, sizeof theirs) != sizeof theirs || theirs > 4096) return 1;
  std::vector<std::uint8_t> address(theirs);
  if (read(STDIN_FILENO, address.data(), address.size()) != static_cast<ssize_t>(address.size())) return 1;
  me.fabric().connect(0, address);
  NetLink& link = me.open(7, 0, 65536);
  for (std::uint64_t i = 0; me.failure(0).ok(); ++i) {
    if (!me.await(*link.in().full, i + 1, std::chrono::minutes(1))) return 1;
    const std::uint32_t n = link.in().header(i).bytes;
    publish(*link.in().freed, i + 1);
    if (!me.send(link, 7, i, n, 0)) return 1;
  }
}

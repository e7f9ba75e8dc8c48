// What the fuzzers feed: one function for each parser of bytes that come from a socket. Used by the libFuzzer
// programs (fuzz_main.cc) and by the test that runs them over mutated seeds (corpus_test.cc).
#pragma once
#include <span>
#include <vector>

#include "transport/wire/keys.h"

namespace ouro::fuzz {

/// Ends the program where a promise of the parser is broken.
using Target = void (*)(wire::View);

void frames(wire::View);            ///< control frames of one host
void handshake_server(wire::View);  ///< what a client may say
void handshake_client(wire::View);  ///< what a server may say
void net_frames(wire::View);        ///< frames between hosts, and the table of ranks
void sealed(wire::View);            ///< streams of sealed frames
void chunks(wire::View);            ///< headers of the data between hosts (link_targets.cc, as the next)
void notes(wire::View);             ///< news of a control page
std::vector<wire::Bytes> chunks_seeds();
std::vector<wire::Bytes> notes_seeds();

struct Entry {
  const char* name;
  Target target;
  std::vector<wire::Bytes> (*seeds)();
};
/// All of them, with inputs that reach deep.
std::span<const Entry> entries();

}  // namespace ouro::fuzz

// What the fuzzers feed: one function for each parser of bytes that come from outside of the process. Used by
// the libFuzzer programs (fuzz_main.cc) and by the test that runs them over the corpus and mutations of it
// (corpus_test.cc).
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

// join_targets.cc
void pages(wire::View);         ///< a control page as a peer leaves it
void local_socket(wire::View);  ///< packets with descriptors between ranks of a host
void frame_stream(wire::View);  ///< control lines
// text_targets.cc
void launch(wire::View);       ///< launchers' variables
void settings(wire::View);     ///< files of parameters, and their variables
void rules(wire::View);        ///< OURO_SELECT
void tune(wire::View);         ///< OURO_TUNE
void addresses(wire::View);    ///< addresses, places, interfaces
void calibration(wire::View);  ///< records of a host's processors, as text and as a peer leaves them
// tool_targets.cc
void hosts(wire::View);       ///< lists and files of hosts
void agent(wire::View);       ///< what agents of ouro-run say
void cluster(wire::View);     ///< descriptions of clusters, ouro-sim
void results(wire::View);     ///< results of ouro-perf, and its words
void checkpoint(wire::View);  ///< states of ouro-train
void elf(wire::View);         ///< files that ouro-info --who reads
// nccl_targets.cc
void nccl_ids(wire::View);     ///< unique ids
void nccl_config(wire::View);  ///< ncclConfig_t of any version
void roll_hello(wire::View);   ///< reports to a roll call
void roll_answer(wire::View);  ///< answers of a roll call

struct Entry {
  const char* name;
  Target target;
  std::vector<wire::Bytes> (*seeds)();  ///< inputs that reach deep, beside the files of corpus/NAME
  bool slow = false;  ///< hundreds a second: it goes by the kernel or another thread, or has long inputs
};
/// All of them.
std::span<const Entry> entries();

}  // namespace ouro::fuzz

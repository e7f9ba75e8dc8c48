// The fuzz targets: one function for each parser of bytes that come from outside the process. Used by the
// libFuzzer programs (fuzz_main.cc) and by the test that runs the targets over the corpus and mutations of
// it (corpus_test.cc).
#pragma once
#include <span>
#include <vector>

#include "transport/wire/keys.h"

namespace ouro::fuzz {

/// Ends the program if a promise of the parser is broken.
using Target = void (*)(wire::View);

void frames(wire::View);            ///< control frames of one host
void handshake_server(wire::View);  ///< data from a client
void handshake_client(wire::View);  ///< data from a server
void net_frames(wire::View);        ///< frames between hosts, and the table of ranks
void sealed(wire::View);            ///< streams of sealed frames
void chunks(wire::View);            ///< headers of the data between hosts (link_targets.cc, like the next)
void notes(wire::View);             ///< changes of a control page, for replicas
std::vector<wire::Bytes> chunks_seeds();
std::vector<wire::Bytes> notes_seeds();

// join_targets.cc
void pages(wire::View);         ///< a control page written by a peer
void local_socket(wire::View);  ///< packets with descriptors between ranks of a host
void frame_stream(wire::View);  ///< control lines
// text_targets.cc
void launch(wire::View);       ///< variables set by launchers
void settings(wire::View);     ///< parameter files and variables
void rules(wire::View);        ///< OURO_SELECT
void tune(wire::View);         ///< OURO_TUNE
void addresses(wire::View);    ///< addresses, places, interfaces
void calibration(wire::View);  ///< calibration records, as text and as written by a peer
// tool_targets.cc
void hosts(wire::View);       ///< host lists and host files
void agent(wire::View);       ///< output of ouro-run's agents
void cluster(wire::View);     ///< cluster descriptions of ouro-sim
void results(wire::View);     ///< results and arguments of ouro-perf
void checkpoint(wire::View);  ///< checkpoints of ouro-train
void elf(wire::View);         ///< files that ouro-info --who reads
// nccl_targets.cc
void nccl_ids(wire::View);     ///< unique ids
void nccl_config(wire::View);  ///< ncclConfig_t of any version
void roll_hello(wire::View);   ///< reports to a roll call
void roll_answer(wire::View);  ///< answers of a roll call

struct Entry {
  const char* name;
  Target target;
  std::vector<wire::Bytes> (*seeds)();  ///< inputs that reach deep, in addition to corpus/NAME
  bool slow = false;  ///< hundreds per second: uses the kernel or another thread, or has long inputs
};
/// All fuzz targets.
std::span<const Entry> entries();

}  // namespace ouro::fuzz

# Writes copies of the library's sources with faults in them, each in force only on request, and the list of the
# faults. Usage: plant.py ROOT OUTPUT. Exits with 1 if a rule is not found exactly once in its source.
import pathlib
import sys

AGREEMENT = "runtime/health/agreement.cc"
LINES = "runtime/network/control_lines.cc"
SERVER = "runtime/join/rendezvous_server.cc"
CLIENT = "runtime/join/rendezvous_client.cc"

# Each entry: what is wrong, the file, the rule as it is in the source, its replacement; PLANTED: whether the fault is
# in force.
FAULTS = [
    ("a proposer does not wait for the promises of a quorum", AGREEMENT,
     "if (!is_quorum(promises, gone)) return;", "if (!PLANTED && !is_quorum(promises, gone)) return;"),
    ("who has given up the maker of the newest ballot always outbids it at once", AGREEMENT,
     "(orphaned && attempts_ == 0)", "(orphaned && (PLANTED || attempts_ == 0))"),
    ("any half is a quorum", AGREEMENT,
     "return first >= 0 && voters.has(first);", "return PLANTED || (first >= 0 && voters.has(first));"),
    ("silent members count as proven dead", AGREEMENT,
     "if (s == Standing::out || s == Standing::dead) gone.add(r);",
     "if (s == Standing::out || s == Standing::dead || (PLANTED && s == Standing::lost)) gone.add(r);"),
    ("after a pause of its own a process takes the others for silent", LINES,
     "if (now - last_beat_ > kStalled + kBeat)", "if (!PLANTED && now - last_beat_ > kStalled + kBeat)"),
    ("a new line begins without what was said on the one before", LINES,
     "fill(*control);\n  control->send(payloads(publisher_.everything()));",
     "fill(*control);\n  if (!PLANTED) control->send(payloads(publisher_.everything()));"),
    ("votes are not said again on a new line", "runtime/health/replica.cc",
     "if (told_votes_[i].key != 0) notes.push_back", "if (told_votes_[i].key != 0 && !PLANTED) notes.push_back"),
    ("silence is never judged", LINES,
     "if (silent >= fail_after) {", "if (!PLANTED && silent >= fail_after) {"),
    ("a line that breaks is a death", LINES,
     "  // A line that broke at once is dialled again",
     "  if (PLANTED) return peers_.lose(peer.remote.rank, Reason::peer_dead, \"its line broke\", \"planted\");\n"
     "  // A line that broke at once is dialled again"),
    ("a refused connection is left to the clock of silence", LINES,
     "if (line.status().reason() == Reason::peer_dead)", "if (!PLANTED && line.status().reason() == Reason::peer_dead)"),
    ("of losses that come together one is reported", "runtime/network/remote_peers.cc",
     "  losses_.push_back({rank,", "  if (PLANTED) losses_.clear();\n  losses_.push_back({rank,"),
    ("after a broken connection one chunk is not sent again", "transport/net/net_link.cc",
     "for (std::uint64_t i = load(out_freed_); i < sent_; ++i) again_ |= bit(i);",
     "for (std::uint64_t i = load(out_freed_) + PLANTED; i < sent_; ++i) again_ |= bit(i);"),
    ("what was received in part counts as coming", "transport/net/tcp/tcp_connection.cc",
     "if (within_ && destination_.to) exchange_.abandon", "if (!PLANTED && within_ && destination_.to) exchange_.abandon"),
    ("the first farewell of a peer counts as its answer to ours", "transport/net/farewells.h",
     "if (h.index == 1) {", "if (h.index == 1 || PLANTED) {"),
    ("farewells are not said again after a broken connection", "transport/net/farewells.h",
     "for (List* const list : {&unconfirmed_, &closed_}) unsent_.merge(*list);",
     "for (List* const list : {&unconfirmed_, &closed_})\n      if (!PLANTED) unsent_.merge(*list);"),
    ("a data connection that could not be made is not tried again", "runtime/network/data_lines.cc",
     "    if (e) return;\n    dialing_[rank].now = false;", "    if (e || PLANTED) return;\n    dialing_[rank].now = false;"),
    ("who comes back on a new line while joining is a duplicate", SERVER,
     "const bool again = before != taken_.end() &&", "const bool again = !PLANTED && before != taken_.end() &&"),
    ("a line that breaks while joining is a death", SERVER,
     "    limbo_.push_back(host);\n",
     "    limbo_.push_back(host);\n    if (PLANTED) return stays_away(host, HostInquiry::Verdict::dead);\n"),
    ("a rank gives up where rank 0 does not listen yet", CLIENT,
     "return nobody || stale || no_verdict ? try_again() : fail(why);",
     "return (nobody && !PLANTED) || stale || no_verdict ? try_again() : fail(why);"),
    ("who has the table ends without handing it on", CLIENT,
     "for (const auto& child : children_) hand_on(*child);",
     "for (const auto& child : children_)\n      if (!PLANTED) hand_on(*child);"),
    ("bytes that the socket has no room for are dropped", "runtime/network/frame_stream.cc",
     "sent_ += *n;", "sent_ = PLANTED ? sealed_.size() : sent_ + *n;"),
]

# The seed that found each fault; 0: none is known.
FOUND_BY = [(6 << 40) + 1, 87, 69, 52, 747, 1449, (2 << 40) + 131, 23, 409, 77, 418, 1468, (1 << 40) + 50,
            (4 << 40) + 2, (4 << 40) + 38, 107, 78, 82, 4, (5 << 40) + 14, (1 << 40) + 2]


def main():
    root, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    texts = {}
    for number, (what, file, rule, instead) in enumerate(FAULTS, 1):
        text = texts.setdefault(file, (root / file).read_text())
        if text.count(rule) != 1:
            sys.exit(f"{file} has the rule of '{what}' {text.count(rule)} times; expected once: {rule}")
        texts[file] = text.replace(rule, instead.replace("PLANTED", f"(::simulate::planted == {number})"))
    for file, text in texts.items():
        path = output / file
        path.parent.mkdir(parents=True, exist_ok=True)
        first = text.index("#include")
        path.write_text(text[:first] + '#include "tests/simulate/planted.h"\n' + text[first:])
    names = ",\n      ".join(f'{{"{what}", {FOUND_BY[number]}}}' for number, (what, *_) in enumerate(FAULTS))
    (output / "faults.cc").write_text(f"""// Made by plant.py.
#include "tests/simulate/planted.h"
namespace simulate {{
const std::vector<Fault>& faults() {{
  static const std::vector<Fault> all{{
      {names}}};
  return all;
}}
}}  // namespace simulate
""")


main()

// The shapes of the GPU protocols, and those of textbooks. See litmus.h. A host is a thread on a device of
// its own; its atomics are strong accesses at system scope.
#include "tests/ptx/litmus.h"

namespace ptx::litmus {
namespace {

const Weakening kStore = {"the flag stored relaxed", "st.release", "st.relaxed"},
                kLoad = {"the flag loaded relaxed", "ld.acquire", "ld.relaxed"},
                kScope = {"the device's scope between devices", ".sys.", ".gpu."};

/// Well-known shapes: what the model allows, and what forbids it.
std::vector<Shape> known() {
  const std::string w = "st.relaxed.sys.global.u64 ", r = "ld.relaxed.sys.global.u64 ", sc = "fence.sc.sys; ",
                    a = "ld.acquire.sys.global.u64 ", l = "st.release.sys.global.u64 ";
  return {
      {"CoRR",
       "two looks at one word",
       {{0, 0, w + "[x], 1"}, {1, 1, r + "r1, [x]; " + r + "r2, [x]"}},
       {"r1=1 r2=0", "race"},
       {},
       {{"scopes that do not meet", ".sys.", ".gpu."}}},
      {"MP",
       "nothing: a flag without order",
       {{0, 0, w + "[x], 1; " + w + "[y], 1"}, {1, 1, r + "r1, [y]; " + r + "r2, [x]"}},
       {"race"},
       {"r1=1 r2=0"},
       {kScope}},
      {"MP+release+acquire",
       "a flag and data",
       {{0, 0, "st.global.u64 [x], 1; " + l + "[f], 1"},
        {1, 1, a + "r1, [f]; if r1=1: ld.global.u64 r2, [x]"}},
       {"r1=1 r2=0", "race"},
       {"r1=0 r2=-"},
       {kStore, kLoad, kScope}},
      {"SB",
       "nothing: release and acquire do not forbid it",
       {{0, 0, l + "[x], 1; " + a + "r1, [y]"}, {1, 1, l + "[y], 1; " + a + "r2, [x]"}},
       {"race"},
       {"r1=0 r2=0"},
       {kScope}},
      {"SB+fence.sc",
       "nothing in this project",
       {{0, 0, w + "[x], 1; " + sc + r + "r1, [y]"}, {1, 1, w + "[y], 1; " + sc + r + "r2, [x]"}},
       {"r1=0 r2=0", "race"},
       {},
       {{"fences of release and acquire", "fence.sc", "fence.acq_rel"}}},
      {"LB",
       "nothing: packets have no order, but a condition",
       {{0, 0, r + "r1, [x]; " + w + "[y], 1"}, {1, 1, r + "r2, [y]; " + w + "[x], 1"}},
       {"race"},
       {"r1=1 r2=1"},
       {kScope},
       true},
      {"LB+condition",
       "whoever writes only after what it has read",
       {{0, 0, r + "r1, [x]; if r1=1: " + w + "[y], 1"}, {1, 1, r + "r2, [y]; " + w + "[x], 1"}},
       {"race"},
       {"r1=1 r2=1"},
       {kScope},
       true},
      {"LB+acquire+release",
       "the place of a message is reused",
       {{0, 0, a + "r1, [x]; " + l + "[y], 1"}, {1, 1, a + "r2, [y]; " + l + "[x], 1"}},
       {"r1=1 r2=1", "race"},
       {},
       {{"the flags stored relaxed", "st.release", "st.relaxed", true},
        {"the flags loaded relaxed", "ld.acquire", "ld.relaxed", true}}},
      {"IRIW",
       "nothing: readers may differ about the order of two writers",
       {{0, 0, l + "[x], 1"},
        {1, 1, l + "[y], 1"},
        {2, 2, a + "r1, [x]; " + a + "r2, [y]"},
        {3, 3, a + "r3, [y]; " + a + "r4, [x]"}},
       {"race"},
       {"r1=1 r2=0 r3=1 r4=0"},
       {kScope}},
      {"IRIW+fence.sc",
       "nothing in this project",
       {{0, 0, w + "[x], 1"},
        {1, 1, w + "[y], 1"},
        {2, 2, r + "r1, [x]; " + sc + r + "r2, [y]"},
        {3, 3, r + "r3, [y]; " + sc + r + "r4, [x]"}},
       {"r1=1 r2=0 r3=1 r4=0", "race"},
       {},
       {{"fences of release and acquire", "fence.sc", "fence.acq_rel"}}},
      {"2+2W",
       "nothing: no word has two writers at once but by atomic operations",
       {{0, 0, w + "[x], 1; " + w + "[y], 2"},
        {1, 1, w + "[y], 1; " + w + "[x], 2"},
        {2, 2, r + "r1, [x]; " + r + "r2, [x]"},
        {3, 3, r + "r3, [y]; " + r + "r4, [y]"}},
       {"race"},
       {"r1=2 r2=1 r3=2 r4=1"},
       {kScope},
       true},
  };
}

/// The shapes of resident kernels: resident_channel.h, resident_body.h, resident_packets.h.
std::vector<Shape> resident() {
  const std::string a = "ld.acquire.sys.global.u64 ", l = "st.release.sys.global.u64 ",
                    v = "volatile.global.u64 ", pair = "volatile.global.v2.u64 ", bar = "bar.sync 0; ";
  return {
      {"slot hand-off",
       "lanes fill a slot, one lane publishes it; one lane waits, lanes read",
       {{0, 0, "st.global.u64 [slot], 1; " + bar},
        {0, 0, bar + l + "[full], 1"},
        {1, 1, a + "r1, [full]; " + bar},
        {1, 1, bar + "if r1=1: ld.global.u64 r2, [slot]"}},
       {"r1=1 r2=0", "race"},
       {"r1=1 r2=1"},
       {kStore,
        kLoad,
        kScope,
        {"no barrier before the flag", "[slot], 1; bar.sync 0", "[slot], 1"},
        {"no barrier after the wait", "r1, [full]; bar.sync 0", "r1, [full]"}}},
      {"slot reuse",
       "lanes have read a slot, one lane frees it; one lane waits, lanes fill it anew",
       {{1, 1, "ld.global.u64 r1, [slot]; " + bar},
        {1, 1, bar + l + "[freed], 1"},
        {0, 0, a + "r2, [freed]; " + bar},
        {0, 0, bar + "if r2=1: st.global.u64 [slot], 2"}},
       {"r1=2", "race"},
       {"r1=0 r2=1"},
       {kStore,
        kLoad,
        kScope,
        {"no barrier before the flag", "r1, [slot]; bar.sync 0", "r1, [slot]"},
        {"no barrier after the wait", "r2, [freed]; bar.sync 0", "r2, [freed]"}}},
      {"pages and their readers",
       "a page is posted to two readers and written again when both are done",
       {{0, 0,
         "st.global.u64 [page], 1; " + l + "[to_a], 1; " + l + "[to_b], 1; " + a +
             "r1, [of_a]; if r1=1: " + a + "r2, [of_b]; if r2=1: st.global.u64 [page], 2"},
        {1, 1, a + "r3, [to_a]; if r3=1: ld.global.u64 r4, [page]; if r3=1: " + l + "[of_a], 1"},
        {2, 2, a + "r5, [to_b]; if r5=1: ld.global.u64 r6, [page]; if r5=1: " + l + "[of_b], 1"}},
       {"r4=0", "r4=2", "r6=0", "r6=2", "race"},
       {"r2=1 r4=1 r6=1"},
       {kStore,
        kLoad,
        kScope,
        {"written again when one is done",
         "if r1=1: ld.acquire.sys.global.u64 r2, [of_b]; if r2=1:", "if r1=1:"}}},
      {"one device",
       "arrival words of ranks that share a device",
       {{0, 0, "st.global.u64 [page], 1; st.release.gpu.global.u64 [word], 1"},
        {0, 1, "ld.acquire.gpu.global.u64 r1, [word]; if r1=1: ld.global.u64 r2, [page]"}},
       {"r1=1 r2=0", "race"},
       {"r1=1 r2=1"},
       {kStore, kLoad, {"a block's scope", ".gpu.", ".cta."}}},
      {"ring of three",
       "what the first has given reaches the third by the second's flag",
       {{0, 0, "st.global.u64 [x], 1; " + l + "[f], 1"},
        {1, 1, a + "r1, [f]; if r1=1: " + l + "[g], 1"},
        {2, 2, a + "r2, [g]; if r2=1: ld.global.u64 r3, [x]"}},
       {"r2=1 r3=0", "race"},
       {"r2=1 r3=1"},
       {kStore,
        kLoad,
        kScope,
        {"the one between looks relaxed", "ld.acquire.sys.global.u64 r1", "ld.relaxed.sys.global.u64 r1"}}},
      {"packet halves",
       "a flag beside each half of the data; 11: flag and data",
       {{0, 0, "st." + pair + "[p], {11+11}"}, {1, 1, "ld." + pair + "{r1+r2}, [p]"}},
       {"r1=1 r2=0", "race"},
       {"r1=11 r2=0", "r1=0 r2=11"},  // therefore each half has a flag of its own
       {{"the flag in a word of its own", "{11+11}", "{1+1}"}, {"a plain store", "st.volatile", "st"}}},
      {"packet parity",
       "packets of an operation are written over when their reader has given the next one's",
       {{0, 0, "ld." + v + "r1, [even]; " + bar},
        {0, 0, bar + "if r1=1: st." + v + "[odd], 2"},
        {1, 1, "st." + v + "[even], 1; ld." + v + "r2, [odd]; if r2=2: st." + v + "[even], 3"}},
       {"r1=3", "race"},
       {"r1=1 r2=2"},
       {{"given before all is read", "if r1=1: st", "st", true}}},
      {"claim and record",
       "the first block that fails leaves a record for the host",
       {{0, 0,
         "atom.gpu.global.cas.b32 r1, [failed], 0, 1; if r1=0: st.global.u64 [peer], 7; if r1=0: " + l +
             "[fault], 1"},
        {0, 1,
         "atom.gpu.global.cas.b32 r2, [failed], 0, 1; if r2=0: st.global.u64 [peer], 8; if r2=0: " + l +
             "[fault], 2"},
        {9, 9, a + "r3, [fault]; if r3=1: ld.global.u64 r4, [peer]"}},
       {"r1=0 r2=0", "r3=1 r4=0", "r3=1 r4=8", "race"},
       {"r1=0 r2=1 r3=1 r4=7"},
       {kStore, kLoad, {"a block's scope", "atom.gpu.global.cas", "atom.cta.global.cas"}}},
  };
}

/// The shapes of launches, words and streams: optim_tile.h, access.h, gpu_words.h. The semantics of a
/// stream's wait and write of a word follow the driver's manual: a write comes after a fence at system scope,
/// unless a flag disables it.
std::vector<Shape> words() {
  const std::string a = "ld.acquire.sys.global.u64 ", l = "st.release.sys.global.u64 ",
                    last = "membar.gl; atom.global.add.u32 ";
  return {
      {"last one in",
       "blocks leave partial results, the last one reads them all and resets the count",
       {{0, 0,
         "st.global.u64 [p], 1; " + last +
             "r1, [n], 1; membar.gl; if r1=1: ld.global.u64 r2, [q]; if r1=1: st.global.u32 [n], 0"},
        {0, 1,
         "st.global.u64 [q], 1; " + last +
             "r3, [n], 1; membar.gl; if r3=1: ld.global.u64 r4, [p]; if r3=1: st.global.u32 [n], 0"}},
       {"r1=1 r2=0", "r3=1 r4=0", "race"},
       {"r1=1 r2=1"},
       {{"no fence before the count", "membar.gl; atom", "atom"},
        {"no fence after the count", "1; membar.gl; if", "1; if"},
        {"a block's scope", "membar.gl", "membar.cta"},
        {"the count of a block's scope", "atom.global", "atom.cta.global"}}},
      {"stop word",
       "the host stops a group, then sets its words: whoever a word lets go on finds the stop",
       {{9, 9, "st.relaxed.sys.global.u64 [stop], 1; " + l + "[word], 1"},
        {0, 0, a + "r1, [word]; if r1=1: ld.relaxed.sys.global.u64 r2, [stop]"}},
       {"r1=1 r2=0", "race"},
       {"r1=1 r2=1"},
       {kStore, kLoad, kScope}},
      {"poisoned words",
       "a rank poisons its words and sets them; a stream goes on; another rank sees its end",
       {{8, 8, l + "[poisoned], 1; " + l + "[word], 1"},
        {0, 0, a + "r1, [word]; if r1=1: " + l + "[ended], 1"},
        {9, 9, a + "r2, [ended]; if r2=1: " + a + "r3, [poisoned]"}},
       {"r2=1 r3=0", "race"},
       {"r2=1 r3=1"},
       {kStore, kLoad, kScope}},
      {"words of streams",
       "a stream writes a word after its kernel, another one waits for it and launches",
       {{0, 0, "st.global.u64 [x], 1; fence.sc.sys; st.relaxed.sys.global.u32 [word], 1"},
        {1, 1, "ld.relaxed.sys.global.u32 r1, [word]; fence.sc.sys; if r1=1: ld.global.u64 r2, [x]"}},
       {"r1=1 r2=0", "race"},
       {"r1=1 r2=1"},
       {{"a write without the barrier", "fence.sc.sys; st", "st"},
        {"a wait without one", "fence.sc.sys; if", "if"},
        {"the device's scope", "fence.sc.sys", "fence.sc.gpu"}}},
  };
}

}  // namespace

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = [] {
    std::vector<Shape> list = known();
    for (Shape& s : resident()) list.push_back(s);
    for (Shape& s : words()) list.push_back(s);
    return list;
  }();
  return all;
}

}  // namespace ptx::litmus

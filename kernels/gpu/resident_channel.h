// One channel of one rank, as the block that runs it sees it: its memory, its flags, its waits and its
// failures. Used by resident_body.h and resident_packets.h.
#pragma once
#include "kernels/flow/list.h"
#include "kernels/gpu/block.h"
#include "kernels/gpu/resident.h"
#include "kernels/gpu/resident_memory.h"
#include "runtime/core/collectives.h"

namespace ouro::gpu {

/// The state of a channel between launches, at the start of its part of the arena.
struct ResidentState {
  std::uint64_t sent[ResidentLayout::kMaxRanks], received[ResidentLayout::kMaxRanks];  // messages, by link
  std::uint64_t known[ResidentLayout::kMaxRanks];  // rounds that each rank is known to have released
  std::uint64_t round;                             // current round of the staging buffers
  std::uint64_t operations;                        // number of operations by packets
};

/// A rank's posts for one reader: for each staging slot, a word and this rank's factor (premulsum).
struct alignas(ResidentLayout::kLine) ResidentArrival {
  std::uint64_t word[ResidentLayout::kStagingSlots];
  Scalar premul[ResidentLayout::kStagingSlots];
};
static_assert(sizeof(ResidentArrival) == ResidentLayout::kLine);

/// The places of the writer's buffers, next to its posts, if operations run by pointer. For an uneven
/// all_to_all also the element of the writer's input at which the block for the reader begins, and the number
/// of elements in that block. Each ordered pair of ranks has one such line, so its size does not depend on
/// the number of ranks.
struct alignas(ResidentLayout::kLine) ResidentNames {
  std::uint64_t in[ResidentLayout::kStagingSlots], out[ResidentLayout::kStagingSlots];
  std::uint64_t at[ResidentLayout::kStagingSlots], count[ResidentLayout::kStagingSlots];
};
static_assert(sizeof(ResidentNames) == ResidentLayout::kLine);

/// Data that the threads of a block share; in shared memory on a device.
struct ResidentShared {
  ResidentState state;
  const std::byte* source[ResidentLayout::kMaxRanks];
  Scalar factor[ResidentLayout::kMaxRanks];
  const std::byte* in_of[ResidentLayout::kMaxRanks];  // by reference: the buffers of all ranks
  std::byte* out_of[ResidentLayout::kMaxRanks];
  // For uneven operations: the first element of each block of this rank's input and output.
  std::uint64_t in_begin[ResidentLayout::kMaxRanks], out_begin[ResidentLayout::kMaxRanks];
};

/// A wait ends when the awaited value arrives, when the deadline passes, when the abort word is set or when
/// another block of this rank has failed. One thread waits; the block learns the result by any().
template <class Block>
class ResidentChannel {
 public:
  OURO_HD ResidentChannel(const ResidentArgs& args, const Block& block, ResidentShared& shared)
      : a_(args), b_(block), shared_(shared), n_(args.layout.ranks), start_(now_ns()) {}

  /// Loads the state. Returns false if this rank has failed before; then nothing may be accessed.
  OURO_HD bool enter() {
    const bool failed = load_relaxed(failed_word()) != 0;  // this load overlaps with those below
    const ResidentState& kept = *reinterpret_cast<const ResidentState*>(part(a_.rank));
    ResidentState& state = shared_.state;
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      state.sent[p] = kept.sent[p];
      state.received[p] = kept.received[p];
      state.known[p] = kept.known[p];
    }
    if (b_.thread() == 0) {
      state.round = kept.round;
      state.operations = kept.operations;
    }
    return !b_.any(failed);
  }

  /// Stores the state for the next launch.
  OURO_HD void leave() {
    b_.sync();
    ResidentState& kept = *reinterpret_cast<ResidentState*>(part(a_.rank));
    const ResidentState& state = shared_.state;
    for (int p = b_.thread(); p < n_; p += b_.threads()) {
      kept.sent[p] = state.sent[p];
      kept.received[p] = state.received[p];
      kept.known[p] = state.known[p];
    }
    if (b_.thread() == 0) {
      kept.round = state.round;
      kept.operations = state.operations;
    }
  }

  /// Adds the mappings of peers' memory that the host has made to the table. They are for later launches,
  /// since other blocks of this launch may already be running.
  OURO_HD void learn() const {
    if (b_.block() != 0) return;
    for (int i = b_.thread(); i < a_.learned; i += b_.threads())
      *mapping(a_.learn[i].peer, a_.learn[i].number) = a_.learn[i].mapping;
  }
  /// Finds p's buffers in this rank's address space, by pointer, after rank p has posted `round`. Returns
  /// false if p says that not every rank has mapped them. If p names an address outside the memory that this
  /// rank has mapped, the block fails.
  OURO_HD bool find_buffers(int p, std::uint64_t round, std::uint64_t element, bool* failed) {
    shared_.in_of[p] = a_.in, shared_.out_of[p] = a_.out;
    if (p == a_.rank) return a_.in_ref != ResidentRef::kNone;
    const ResidentNames& named = names(p, a_.rank);
    const std::uint64_t in = named.in[round % ResidentLayout::kStagingSlots];
    const std::uint64_t out = named.out[round % ResidentLayout::kStagingSlots];
    if (in == ResidentRef::kNone) return false;
    const CollectiveTraits traits = traits_of(a_.collective);
    const flow::Buffers needs = flow::zero_copy_buffers(a_.collective);
    const std::uint64_t block = a_.count * element, all = block * static_cast<std::uint64_t>(n_);
    if (needs.inputs && (!needs.root_input_only || p == a_.root))
      *failed |= !reach(p, in, traits.in.many() ? all : block, &shared_.in_of[p]);
    if (needs.outputs) *failed |= !reach(p, out, traits.out.many() ? all : block, &shared_.out_of[p]);
    return true;
  }
  /// The same for uneven blocks. For an all_to_all, in_of[p] becomes the address of the block for this rank
  /// in the input of rank p. Fails if rank p sends another number of elements than this rank expects, whether
  /// or not buffers can be accessed, or if the block is outside the memory that this rank has mapped.
  OURO_HD bool find_uneven(int p, std::uint64_t round, std::uint64_t element, bool* failed) {
    shared_.in_of[p] = a_.in, shared_.out_of[p] = a_.out;
    if (p == a_.rank) return a_.in_ref != ResidentRef::kNone;
    const ResidentNames& named = names(p, a_.rank);
    const std::uint64_t slot = round % ResidentLayout::kStagingSlots;
    const std::uint64_t in = named.in[slot], out = named.out[slot];
    const bool pairs = a_.collective == Collective::all_to_all;
    if (pairs && named.count[slot] != a_.out_counts[p]) {
      *failed |= fail(ResidentFault::counts, p, named.count[slot], a_.out_counts[p]);
      return false;
    }
    if (in == ResidentRef::kNone) return false;
    const int last = n_ - 1;
    if (pairs)
      *failed |= !reach_elements(p, in, element, named.at[slot], a_.out_counts[p], &shared_.in_of[p]);
    else if (a_.collective == Collective::reduce_scatter)
      *failed |=
          !reach_elements(p, in, element, 0, shared_.in_begin[last] + a_.in_counts[last], &shared_.in_of[p]);
    else
      *failed |= !reach_elements(p, out, element, 0, shared_.out_begin[last] + a_.out_counts[last],
                                 &shared_.out_of[p]);
    return true;
  }

  // Addresses in the arenas, for this channel.
  OURO_HD std::byte* part(int rank) const {
    return a_.arena[rank] + ResidentLayout::kHeaderBytes +
           static_cast<std::uint64_t>(b_.block()) * a_.layout.channel_bytes;
  }
  /// The line that `peer` writes in the arena of rank `at`, in the table that begins at offset `table`.
  OURO_HD std::uint64_t* line(int at, std::uint64_t table, int peer) const {
    return reinterpret_cast<std::uint64_t*>(part(at) + table +
                                            static_cast<std::uint64_t>(peer) * ResidentLayout::kLine);
  }
  OURO_HD std::uint64_t slot_index(std::uint64_t message) const {
    return message & static_cast<std::uint64_t>(a_.layout.slots - 1);
  }
  /// The flag and the payload of a message on the link from `from` to `to`.
  OURO_HD std::uint64_t* full(int from, int to, std::uint64_t message) const {
    return line(to, a_.layout.full_at, from) + slot_index(message);
  }
  OURO_HD std::byte* slot(int from, int to, std::uint64_t message) const {
    const std::uint64_t index =
        static_cast<std::uint64_t>(from) * static_cast<std::uint64_t>(a_.layout.slots) + slot_index(message);
    return part(to) + a_.layout.slots_at + index * a_.layout.slot_bytes;
  }
  OURO_HD ResidentArrival& arrival(int writer, int reader) const {
    return *reinterpret_cast<ResidentArrival*>(line(reader, a_.layout.arrivals_at, writer));
  }
  OURO_HD ResidentNames& names(int writer, int reader) const {
    return *reinterpret_cast<ResidentNames*>(line(reader, a_.layout.names_at, writer));
  }
  OURO_HD std::byte* staging(int rank, std::uint64_t round) const {
    return part(rank) + a_.layout.pages_at + round % ResidentLayout::kStagingSlots * a_.layout.staging_bytes;
  }

  /// Spins until arrived() is true; `peer` is the rank to report, which arrived() may change. Returns true if
  /// the block has to leave instead.
  template <class Arrived>
  OURO_HD bool spin(const int& peer, Arrived&& arrived) {
    constexpr std::uint32_t kGate =
        128;  // polls of the flag per check of the conditions that end a wait, which are in slow memory
    for (std::uint32_t polls = 1; !arrived(); ++polls) {
      if (polls % kGate != 0) {
        pause();
        continue;
      }
      if (load_relaxed(failed_word()) != 0) return true;
      if (load_relaxed(a_.abort) != 0) return fail(ResidentFault::aborted, peer);
      if (now_ns() - start_ >= a_.deadline_ns) return fail(ResidentFault::deadline, peer);
    }
    return false;
  }
  /// Waits until the number in `word` is at least `number`. Returns true on failure.
  OURO_HD bool await(const std::uint64_t* word, std::uint64_t number, int peer) {
    return spin(peer, [&] { return (load_acquire(word, a_.one_device) & kNumberMask) >= number; });
  }
  /// The same for a flag that also carries the tag of its writer's operation, which is checked.
  OURO_HD bool await_tagged(const std::uint64_t* word, std::uint64_t number, int peer) {
    std::uint64_t seen = 0;
    const bool failed = spin(peer, [&] {
      seen = load_acquire(word, a_.one_device);
      return (seen & kNumberMask) >= number;
    });
    if (failed) return true;
    return seen >> kTagShift != a_.tag && fail(ResidentFault::mismatch, peer);
  }
  OURO_HD void publish(std::uint64_t* word, std::uint64_t number) const {
    store_release(word, number, a_.one_device);
  }
  OURO_HD void publish_tagged(std::uint64_t* word, std::uint64_t number) const {
    publish(word, std::uint64_t{a_.tag} << kTagShift | number);
  }

 protected:
  /// Always returns true. The first of the rank's blocks to fail writes the record.
  OURO_HD bool fail(ResidentFault fault, int peer, std::uint64_t sent, std::uint64_t expected) {
    if (claim(failed_word())) {
      a_.error->sent = sent;
      a_.error->expected = expected;
      publish_error(fault, peer);
    }
    return true;
  }
  OURO_HD bool fail(ResidentFault fault, int peer) {
    if (claim(failed_word())) publish_error(fault, peer);
    return true;
  }
  OURO_HD void publish_error(ResidentFault fault, int peer) const {
    a_.error->peer = peer;
    a_.error->step = step_;
    a_.error->channel = b_.block();
    store_release(reinterpret_cast<std::uint32_t*>(&a_.error->fault), static_cast<std::uint32_t>(fault));
  }

  const ResidentArgs& a_;
  const Block& b_;
  ResidentShared& shared_;
  const int n_;
  std::uint32_t step_ = 0;

 private:
  // A flag: the tag in the high bits, below it a number that only grows (enough for nine years at one
  // per microsecond).
  static constexpr int kTagShift = 48;
  static constexpr std::uint64_t kNumberMask = (std::uint64_t{1} << kTagShift) - 1;

  OURO_HD ResidentMapping* mapping(int peer, std::uint64_t number) const {
    return reinterpret_cast<ResidentMapping*>(a_.arena[a_.rank] + a_.layout.mapped_at()) +
           static_cast<std::uint64_t>(peer) * ResidentRef::kListed + number;
  }
  template <class Byte>
  OURO_HD bool reach(int p, std::uint64_t ref, std::uint64_t bytes, Byte** at) {
    const std::uint64_t number = ResidentRef::number(ref), offset = ResidentRef::offset(ref);
    const ResidentMapping found =
        number < ResidentRef::kListed ? *mapping(p, number) : ResidentMapping{nullptr, 0};
    if (offset > found.bytes || bytes > found.bytes - offset) return !fail(ResidentFault::reference, p);
    *at = found.at + offset;
    return true;
  }
  /// The same for elements [first, first + count) of the buffer. `ref` and `first` come from a peer and may
  /// have any value.
  template <class Byte>
  OURO_HD bool reach_elements(int p, std::uint64_t ref, std::uint64_t element, std::uint64_t first,
                              std::uint64_t count, Byte** at) {
    const std::uint64_t number = ResidentRef::number(ref), offset = ResidentRef::offset(ref);
    const ResidentMapping found =
        number < ResidentRef::kListed ? *mapping(p, number) : ResidentMapping{nullptr, 0};
    const std::uint64_t there = offset <= found.bytes ? (found.bytes - offset) / element : 0;
    // A rank without data may name no allocation; nothing is read then.
    if (first > there || count > there - first) return count == 0 || !fail(ResidentFault::reference, p);
    *at = found.at + offset + first * element;
    return true;
  }

  OURO_HD std::uint32_t* failed_word() const { return reinterpret_cast<std::uint32_t*>(a_.arena[a_.rank]); }
  const std::uint64_t start_;
};

}  // namespace ouro::gpu

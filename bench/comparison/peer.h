// The interface of every library under comparison: one collective call, and buffers for it.
// Implemented by ouro_peer.cc, mpi_peer.cc and gloo_peer.cc; called by harness.cc and methods.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace ouro::compare {

enum class Collective : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, all_to_all };
enum class Element : std::uint8_t { float32, bfloat16 };
enum class Buffer : std::uint8_t { private_memory, registered };

/// Empty on success; otherwise a readable error text.
using Error = std::string;

constexpr std::size_t size_of(Element e) { return e == Element::float32 ? 4 : 2; }

/// One collective call of one rank. Broadcast is from rank 0 and in place, as in MPI; reductions are sums.
struct Call {
  Collective collective = Collective::all_reduce;
  Element element = Element::float32;
  void* in = nullptr;  ///< equal to `out` in place
  void* out = nullptr;
  std::size_t block = 0;      ///< elements: whole buffer (all_reduce, broadcast), else one rank's part
  std::size_t in_count = 0;   ///< elements
  std::size_t out_count = 0;  ///< elements
  std::string algorithm;      ///< of the peer, by its own name; empty: the peer's default

  std::size_t in_bytes() const { return in_count * size_of(element); }
  std::size_t out_bytes() const { return out_count * size_of(element); }
};

/// Properties of a launch, which the harness passes to its peer.
struct Launch {
  int rank = 0;
  int ranks = 1;
  std::string directory;                 ///< of this launch alone; for a rendezvous by files
  std::vector<std::byte>* id = nullptr;  ///< what rank 0 published (see Peer::make_id)
};

/// Private memory for Peer::allocate, from the heap. It begins at a 2 MiB page: where the launch asks the
/// heap for such pages, all of it is on them, and not only what lies beyond the first 2 MiB of the heap.
inline void* private_memory(std::size_t bytes) {
  constexpr std::size_t kLargePage = 2 << 20;
  return std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage);
}

class Peer {
 public:
  virtual ~Peer() = default;
  /// Name and version of the library in use.
  virtual std::string library() const = 0;
  /// Whether the library's own threads do the work. If so, ranks that wait in the harness sleep at once.
  virtual bool needs_idle_cores() const { return false; }
  /// Called on rank 0 before start(): returns the data that all other ranks need to join.
  virtual Error make_id(std::vector<std::byte>&) { return {}; }
  virtual Error start(const Launch&) = 0;
  /// Memory that lives as long as the peer. Null: this peer does not have this class of buffers.
  virtual void* allocate(Buffer, std::size_t bytes) = 0;
  /// Called by all ranks before a call is first made; connections and registrations belong here.
  /// `supported` becomes false where the library has no such operation; that is not an error.
  virtual Error prepare(const Call&, bool& supported) = 0;
  /// The timed call. False: it failed, error() has the reason, and the launch ends.
  virtual bool run(const Call&) = 0;
  virtual Error error() const = 0;
  /// Collective; after it the peer is not used any more.
  virtual void stop() = 0;
};

}  // namespace ouro::compare

// Two ranks that share no memory: the interface of a library that is timed between hosts, and the timing.
// Implemented by pair_ouro.cc and pair_mpi.cc; started by bench/compare --transport.
#pragma once
#include <cstddef>
#include <string>

namespace ouro::compare {

class Pair {
 public:
  static constexpr int kWindow = 8;  ///< messages that a library submits together in a stream, if it can

  virtual ~Pair() = default;
  virtual std::string library() const = 0;
  /// Joins; sets the own rank, 0 or 1. An empty result is success, as with Error of peer.h.
  virtual std::string start(int* rank) = 0;
  // These end the program on failure, since its peer would wait for it.
  virtual void send(const void* data, std::size_t bytes) = 0;
  virtual void recv(void* data, std::size_t bytes) = 0;
  /// `count` messages one way, with as many in flight as the library chooses.
  virtual void send_many(const void* data, std::size_t bytes, int count) {
    for (int i = 0; i < count; ++i) send(data, bytes);
  }
  virtual void recv_many(void* data, std::size_t bytes, int count) {
    for (int i = 0; i < count; ++i) recv(data, bytes);
  }
  virtual void all_reduce(const float* in, float* out, std::size_t count) = 0;
  virtual void stop() = 0;
};

/// Arguments: --points WHAT:BYTES[,...] --cores A,B --blocks N --block-ms MS --seconds S, with WHAT latency,
/// stream or all_reduce. Rank 0 prints one JSON line for each point.
int run_pair(int argc, char** argv, Pair&);

}  // namespace ouro::compare

// The kinds of calls of Gpu, the calls of CUDA's driver that each of them makes, and numbers of both. Used by
// CountingGpu and the tests of costs.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ouro::gpu {

/// What a call costs. `piece`: it hands work to a stream, under the lock that the driver has for the device.
/// `query`: it asks whether something has ended. `other`: the driver answers it at once or waits in it.
/// `setup`: it makes, destroys or maps something; the driver calls of these depend on the device and are not
/// stated.
enum class CallClass : std::uint8_t { piece, query, other, setup };

/// X(kind, class, driver, contexts) for all kinds. `driver`: calls of the driver and its runtime that cuda.cc
/// makes for it, in a thread in which the device's context is current: the call itself, cuCtxGetCurrent for a
/// Scope, two changes of the capture mode for a Relaxed. `contexts`: the Scopes of it. Each pushes and pops a
/// context in a thread that has none, which are two calls more.
// clang-format off
#define OURO_GPU_CALLS(X)                                                                       \
  X(launch, piece, 2, 1)            /* of a kernel */                                           \
  X(batch, piece, 1, 1)             /* of operations on words; a driver call for every 64 */    \
  X(record, piece, 2, 1)                                                                        \
  X(wait, piece, 2, 1)              /* of a stream for an event */                              \
  X(copy, piece, 2, 1)                                                                          \
  X(set, piece, 2, 1)                                                                           \
  X(call_host, piece, 2, 1)                                                                     \
  X(launch_graph, piece, 2, 1)                                                                  \
  X(query_stream, query, 4, 1)      /* one more if it has not ended */                          \
  X(query_event, query, 4, 1)       /* the same */                                              \
  X(capturing, other, 1, 1)         /* one more for a stream that can be captured */            \
  X(check_context, other, 0, 0)     /* one for a stream that was created */                     \
  X(pointer, other, 1, 0)           /* more for memory of a device: CountingGpu */            \
  X(synchronize_stream, other, 4, 1)                                                            \
  X(synchronize_event, other, 4, 1)                                                             \
  X(elapsed, other, 2, 1)                                                                       \
  X(current_device, other, 1, 0)                                                                \
  X(set_current_device, other, 1, 0)                                                            \
  X(scope, other, 3, 1)                                                                         \
  X(properties, other, 1, 1)        /* far more at the first call */                            \
  X(flush_arrivals, setup, 0, 0)                                                                \
  X(create_stream, setup, 0, 0)                                                                 \
  X(destroy_stream, setup, 0, 0)                                                                \
  X(create_event, setup, 0, 0)                                                                  \
  X(destroy_event, setup, 0, 0)                                                                 \
  X(capture, setup, 0, 0)           /* its beginning or its end */                              \
  X(destroy_graph, setup, 0, 0)                                                                 \
  X(alloc, setup, 0, 0)             /* of a device, shareable or pinned; pinning */             \
  X(free, setup, 0, 0)              /* of the same */                                           \
  X(export_memory, setup, 0, 0)     /* a descriptor or a handle for another process */          \
  X(map, setup, 0, 0)               /* memory of another process */                             \
  X(unmap, setup, 0, 0)                                                                         \
  X(piece_of_program, setup, 0, 0)  /* keeps, opens or releases a piece of cuMemMap */          \
  X(multicast, setup, 0, 0)                                                                     \
  X(peers, setup, 0, 0)             /* which devices reach each other */                        \
  X(kernel_info, setup, 0, 0)                                                                   \
  X(reserve_stack, setup, 0, 0)
// clang-format on

enum class GpuCall : std::uint8_t {
#define OURO_X(kind, cost, driver, contexts) kind,
  OURO_GPU_CALLS(OURO_X)
#undef OURO_X
};

struct CallTerms {
  std::string_view name;
  CallClass cost;
  std::uint8_t driver, contexts;
};
inline constexpr CallTerms kCallTerms[] = {
#define OURO_X(kind, cost, driver, contexts) {#kind, CallClass::cost, driver, contexts},
    OURO_GPU_CALLS(OURO_X)
#undef OURO_X
};
inline constexpr std::size_t kGpuCalls = std::size(kCallTerms);
constexpr const CallTerms& terms(GpuCall c) { return kCallTerms[static_cast<std::size_t>(c)]; }

/// Numbers of calls: of one thread or of all, since a beginning or between two moments.
struct CallCounts {
  std::array<std::uint64_t, kGpuCalls> calls{};
  std::uint64_t words = 0;     ///< operations on words, of all batches
  std::uint64_t driver = 0;    ///< calls of the driver, where the device's context is current in the thread
  std::uint64_t contexts = 0;  ///< times that a thread without a current context pushes and pops one

  std::uint64_t of(GpuCall c) const { return calls[static_cast<std::size_t>(c)]; }
  std::uint64_t of(CallClass) const;
  std::uint64_t pieces() const { return of(CallClass::piece); }
  std::uint64_t queries() const { return of(CallClass::query); }
  /// Calls of the driver in a thread that has no current context, as a plain thread has none.
  std::uint64_t driver_calls() const { return driver + 2 * contexts; }
  /// Those of them that hand no work to a stream.
  std::uint64_t other_driver_calls() const { return driver_calls() - pieces(); }
  CallCounts& operator+=(const CallCounts&);
  CallCounts& operator-=(const CallCounts&);
  friend CallCounts operator-(CallCounts a, const CallCounts& b) { return a -= b; }
  friend bool operator==(const CallCounts&, const CallCounts&) = default;
  /// The kinds of a class that are not 0, as "launch 1, record 2".
  std::string text(CallClass) const;
};

}  // namespace ouro::gpu

// One call of the collective under test through the public API, and the buffers that it uses. Used by the
// measuring loop and by the rank program.
#pragma once
#include <cstddef>
#include <memory>

#include "ouro/ouro.hpp"
#include "runtime/plan/operation.h"
#include "tools/perf/collective.h"

namespace ouro::perf {

/// The arguments of one call; for in-place forms the pointers are already shifted.
struct Call {
  Kind kind = Kind::all_reduce;
  const void* in = nullptr;
  void* out = nullptr;
  Layout shape;
  DType dtype = DType::f32;
  ReduceOp op;
  int root = 0;
  Device device;  ///< device that holds both buffers; the host by default
};

/// Submits the call `times` times (in one group if more than once). On a valid stream it returns at once.
Status issue(Group&, const Call&, int times, const Stream&);

/// The same call in the form that selection in the runtime takes. Must not be called for sendrecv, which is
/// not a collective.
rt::Operation operation_of(const Call&);

/// Whether the collective has an in-place form. sendrecv has none: a received message would overwrite one
/// that is still being sent.
bool has_in_place(Kind);

/// Page-aligned memory of the host or a GPU, touched before any clock starts. It comes from ouro's allocator
/// (`registered`) or is private (malloc, the driver). A shift by some elements makes it unaligned.
class Buffer {
 public:
  static Result<Buffer> make(Context&, std::size_t bytes, bool registered, Device = {});
  std::byte* at(std::size_t offset) const { return data_ + offset; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    bool on_device;
    void operator()(void* p) const;
  };
  Memory registered_;
  std::unique_ptr<void, Free> private_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ouro::perf

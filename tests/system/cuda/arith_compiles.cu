// The arithmetic and the flows are one source for host and device: this unit fails to compile if one of their
// functions cannot run on a device. It is never run.
#include "kernels/arith/floats.h"
#include "kernels/arith/reduce.h"
#include "kernels/flow/list.h"

namespace ouro {
namespace {

/// Folds `count` elements of two inputs.
template <class Reduction>
__global__ void fold(typename Reduction::Element* out, const typename Reduction::Element* a,
                     const typename Reduction::Element* b, std::size_t count, int ranks) {
  using Acc = typename Reduction::Acc;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const Acc one = Reduction::lift(a[i], Acc{}), other = Reduction::lift(b[i], Acc{});
    out[i] = Reduction::finish(Reduction::combine(one, other), ranks);
  }
}

template <template <class> class Op, class T>
void instantiate() {
  fold<Op<T>><<<1, 32>>>(nullptr, nullptr, nullptr, 0, 1);
}

/// Adds up all fields of a flow's steps, so that the compiler cannot remove any part of the flow.
struct Count {
  unsigned* bits;
  __device__ void operator()(flow::Step s) const {
    *bits += s.verb + static_cast<unsigned>(s.chunk + s.from + s.to);
  }
};

template <class Flow>
__global__ void say(flow::Place at, unsigned* bits) {
  Flow{}(at, Count{bits});
}
template <class Flow>
void say_on_device() {
  if constexpr (flow::kOnDevices<Flow>) say<Flow><<<1, 1>>>(flow::Place{}, nullptr);
}

}  // namespace

void instantiate_all() {
  using namespace arith;
  instantiate<Sum, Half>();
  instantiate<Sum, BFloat16>();
  instantiate<Sum, F8E4M3>();
  instantiate<Prod, F8E5M2>();
  instantiate<Max, float>();
  instantiate<Min, double>();
  instantiate<Avg, std::int8_t>();
  instantiate<Avg, std::uint64_t>();  // accumulates in 128 bits
  instantiate<BitXor, std::uint32_t>();
#define OURO_X(collective, algorithm, Flow) say_on_device<flow::Flow>();
  OURO_FLOWS(OURO_X)
#undef OURO_X
}

}  // namespace ouro

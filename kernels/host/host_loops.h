// Host loops: element-wise reductions over plain arrays, one definition of the arithmetic (kernels/arith),
// compiled for several instruction sets and chosen at run time. Used by the host executor and by tests.
#pragma once
#include <cstddef>
#include <span>

#include "kernels/arith/wire.h"
#include "runtime/core/types.h"

namespace ouro::kernels {

using arith::accumulator_bytes;

/// A reduction over `ranks` contributions. `premul` is this rank's own factor (premulsum only).
struct Reduction {
  DType dtype = DType::f32;
  OpKind op = OpKind::sum;
  int ranks = 1;
  Scalar premul = {};
};

// For all functions, `in` and `out` are arrays of dtype, `acc` arrays of the accumulation type; any
// alignment; `count` elements; the destination may be exactly one of the sources, otherwise arrays do not
// overlap. pre(x) widens x (and multiplies by premul); fin(a) divides (avg), rounds once and narrows.
// `weight` multiplies the received value acc_in (floating-point types only; 1 leaves it untouched,
// bit for bit).

/// acc = pre(in)
void widen(const Reduction&, void* acc, const void* in, std::size_t count);
/// acc_out = weight*acc_in (+) pre(in)
void reduce_input(const Reduction&, void* acc_out, const void* acc_in, const void* in, double weight,
                  std::size_t count);
/// acc_out = weight*acc_in (+) acc
void reduce_acc(const Reduction&, void* acc_out, const void* acc_in, const void* acc, double weight,
                std::size_t count);
/// out = fin(acc)
void finish(const Reduction&, void* out, const void* acc, std::size_t count);
/// out = fin(acc_in (+) pre(in))
void reduce_input_finish(const Reduction&, void* out, const void* acc_in, const void* in, std::size_t count);
/// out = fin(acc_in (+) acc)
void reduce_acc_finish(const Reduction&, void* out, const void* acc_in, const void* acc, std::size_t count);
/// out = fin(pre_0(in[0]) (+) pre_1(in[1]) (+) ...), left to right, in registers. premul[i] belongs to in[i]
/// and is read for premulsum only. `out` may be one of the inputs. n >= 1 sources.
void fold(const Reduction&, void* out, std::span<const void* const> in, std::span<const Scalar> premul,
          std::size_t count);

/// fold() with its loop chosen once, for repeated calls with the same reduction.
class Fold {
 public:
  Fold() = default;
  explicit Fold(const Reduction&);
  void operator()(void* out, std::span<const void* const> in, std::span<const Scalar> premul,
                  std::size_t count) const;

 private:
  void (*kernel_)(const struct Job&) = nullptr;
  int ranks_ = 1;
};

/// "avx512", "avx2" or "baseline": the instruction set that the loops use. OURO_ISA lowers it (for tests). If
/// OURO_ISA was not usable, a remark in parentheses follows the name.
const char* instruction_set();

}  // namespace ouro::kernels

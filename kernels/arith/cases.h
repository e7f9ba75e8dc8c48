// All reductions as one switch, which maps a (type, op) pair known at run time to its struct in reduce.h.
// Used by the host loops and the kernels of devices.
#pragma once
#include "kernels/arith/reduce.h"

namespace ouro::arith {
inline namespace OURO_ISA {

struct Case {
  DType type;
  OpKind op;
};
/// The representative of all cases that compute the same bits: wrapping arithmetic ignores the sign, and
/// booleans have only three distinct ops.
constexpr Case same_bits(DType t, OpKind op) {
  if (t == DType::boolean) {
    if (op == OpKind::sum || op == OpKind::max || op == OpKind::lor) return {t, OpKind::bor};
    if (op == OpKind::prod || op == OpKind::min || op == OpKind::land) return {t, OpKind::band};
    return {t, op == OpKind::lxor ? OpKind::bxor : op};
  }
  if (op == OpKind::max || op == OpKind::min || op == OpKind::avg) return {t, op};
  switch (t) {
    case DType::i8:
      return {DType::u8, op};
    case DType::i16:
      return {DType::u16, op};
    case DType::i32:
      return {DType::u32, op};
    case DType::i64:
      return {DType::u64, op};
    default:
      return {t, op};
  }
}

template <DType kType, OpKind kOp, class F>
OURO_HD void apply_case(const F& f) {
  if constexpr (applies(kOp, kType)) {
    constexpr Case same = same_bits(kType, kOp);
    f.template operator()<ReductionFor<same.type, same.op>>();
  }
}
template <DType kType, class F>
OURO_HD void apply_type(OpKind op, const F& f) {
  switch (op) {
#define OURO_X(e, n) \
  case OpKind::e:    \
    return apply_case<kType, OpKind::e>(f);
    OURO_OPS(OURO_X)
#undef OURO_X
  }
}
/// Calls f.operator()<R>() with R the reduction of (t, op); does nothing if `applies` is false for the pair.
/// Types and ops come from their lists, so one without a struct does not compile.
template <class F>
OURO_HD void with_reduction(DType t, OpKind op, const F& f) {
  switch (t) {
#define OURO_X(e, b, n) \
  case DType::e:        \
    return apply_type<DType::e>(op, f);
    OURO_DTYPES(OURO_X)
#undef OURO_X
  }
}

}  // namespace OURO_ISA
}  // namespace ouro::arith

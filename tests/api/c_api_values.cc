// Checks by compiling that the enumerations of ouro.h have the values of those of the C++ interface. Part
// of test_c_api.
#include "api/include/ouro/ouro.h"
#include "api/include/ouro/ouro.hpp"

namespace ouro {
namespace {

template <class C, class Cpp>
constexpr bool same(C c, Cpp cpp) {
  return static_cast<int>(c) == static_cast<int>(cpp);
}

#define SAME(c, cpp) static_assert(same(c, cpp))
SAME(OURO_CODE_OK, Code::ok);
SAME(OURO_CODE_INVALID, Code::invalid);
SAME(OURO_CODE_UNSUPPORTED, Code::unsupported);
SAME(OURO_CODE_TIMEOUT, Code::timeout);
SAME(OURO_CODE_PEER_LOST, Code::peer_lost);
SAME(OURO_CODE_SYSTEM, Code::system);
SAME(OURO_CODE_CUDA, Code::cuda);
SAME(OURO_CODE_ABORTED, Code::aborted);

SAME(OURO_DTYPE_I8, DType::i8);
SAME(OURO_DTYPE_U8, DType::u8);
SAME(OURO_DTYPE_I16, DType::i16);
SAME(OURO_DTYPE_U16, DType::u16);
SAME(OURO_DTYPE_I32, DType::i32);
SAME(OURO_DTYPE_U32, DType::u32);
SAME(OURO_DTYPE_I64, DType::i64);
SAME(OURO_DTYPE_U64, DType::u64);
SAME(OURO_DTYPE_F16, DType::f16);
SAME(OURO_DTYPE_F32, DType::f32);
SAME(OURO_DTYPE_F64, DType::f64);
SAME(OURO_DTYPE_BF16, DType::bf16);
SAME(OURO_DTYPE_F8E4M3, DType::f8e4m3);
SAME(OURO_DTYPE_F8E5M2, DType::f8e5m2);
SAME(OURO_DTYPE_BOOLEAN, DType::boolean);
SAME(OURO_DTYPE_BOOLEAN + 1, kDTypes);

SAME(OURO_OP_SUM, OpKind::sum);
SAME(OURO_OP_PROD, OpKind::prod);
SAME(OURO_OP_MAX, OpKind::max);
SAME(OURO_OP_MIN, OpKind::min);
SAME(OURO_OP_AVG, OpKind::avg);
SAME(OURO_OP_PREMULSUM, OpKind::premulsum);
SAME(OURO_OP_BAND, OpKind::band);
SAME(OURO_OP_BOR, OpKind::bor);
SAME(OURO_OP_BXOR, OpKind::bxor);
SAME(OURO_OP_LAND, OpKind::land);
SAME(OURO_OP_LOR, OpKind::lor);
SAME(OURO_OP_LXOR, OpKind::lxor);
SAME(OURO_OP_LXOR + 1, kOps);

SAME(OURO_NUMERICS_INHERIT, Numerics::inherit);
SAME(OURO_NUMERICS_FAST, Numerics::fast);
SAME(OURO_NUMERICS_CANONICAL, Numerics::canonical);
SAME(OURO_PRIORITY_LOW, Priority::low);
SAME(OURO_PRIORITY_NORMAL, Priority::normal);
SAME(OURO_PRIORITY_HIGH, Priority::high);

SAME(OURO_COLLECTIVE_NONE, Collective::none);
SAME(OURO_COLLECTIVE_ALL_REDUCE, Collective::all_reduce);
SAME(OURO_COLLECTIVE_REDUCE_SCATTER, Collective::reduce_scatter);
SAME(OURO_COLLECTIVE_ALL_GATHER, Collective::all_gather);
SAME(OURO_COLLECTIVE_BROADCAST, Collective::broadcast);
SAME(OURO_COLLECTIVE_REDUCE, Collective::reduce);
SAME(OURO_COLLECTIVE_GATHER, Collective::gather);
SAME(OURO_COLLECTIVE_SCATTER, Collective::scatter);
SAME(OURO_COLLECTIVE_ALL_TO_ALL, Collective::all_to_all);
SAME(OURO_COLLECTIVE_BARRIER, Collective::barrier);

SAME(OURO_ANY_SOURCE, kAnySource);
static_assert(sizeof(ouro_unique_id_t) == sizeof(UniqueId));
#undef SAME

}  // namespace
}  // namespace ouro

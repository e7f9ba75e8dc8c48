// Element types, and reductions of NCCL and of users. See arguments.h, and nccl.h, section
// "User-defined reductions".
#include <cstring>
#include <type_traits>

#include "api/nccl/arguments.h"
#include "kernels/arith/reduce.h"

namespace ouro::nccl {
namespace {

/// The factor of a user-defined reduction on elements of type T.
template <class T>
ReduceOp premultiplied_by(const void* from) {
  T factor;
  std::memcpy(&factor, from, sizeof factor);
  if constexpr (std::is_integral_v<T>)
    return ReduceOp::premul(static_cast<std::int64_t>(factor));
  else if constexpr (arith::Format<T>::kSmall)
    return ReduceOp::premul(static_cast<double>(arith::widen(factor)));
  else if constexpr (arith::Format<T>::kFloat)
    return ReduceOp::premul(static_cast<double>(factor));
  else
    return ReduceOp::premul(1.0);  // booleans, which nccl.h lacks
}

}  // namespace

std::optional<DType> dtype_of(ncclDataType_t type) {
  static constexpr DType kTypes[] = {DType::i8,  DType::u8,   DType::i32,    DType::u32,
                                     DType::i64, DType::u64,  DType::f16,    DType::f32,
                                     DType::f64, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  static_assert(std::size(kTypes) == ncclNumTypes);
  const auto i = static_cast<unsigned>(type);
  return i < std::size(kTypes) ? std::optional<DType>(kTypes[i]) : std::nullopt;
}

ReduceOp premultiplied(const void* from, DType type) {
  switch (type) {
#define OURO_X(e, b, n) \
  case DType::e:        \
    return premultiplied_by<arith::ElementOf<DType::e>::type>(from);
    OURO_DTYPES(OURO_X)
#undef OURO_X
  }
  return {};
}

ncclResult_t set_reduction(const char* function, ncclRedOp_t op, ncclDataType_t type, Call* call) {
  switch (static_cast<int>(op)) {
    case ncclSum:
      call->op = ReduceOp::sum;
      return ncclSuccess;
    case ncclProd:
      call->op = ReduceOp::prod;
      return ncclSuccess;
    case ncclMax:
      call->op = ReduceOp::max;
      return ncclSuccess;
    case ncclMin:
      call->op = ReduceOp::min;
      return ncclSuccess;
    case ncclAvg:
      call->op = ReduceOp::avg;
      return ncclSuccess;
    default:
      break;
  }
  const ncclComm_t comm = call->comm;
  const auto i = static_cast<std::size_t>(static_cast<unsigned>(op)) - ncclNumOps;
  std::lock_guard lock(comm->ops_mutex);
  if (static_cast<int>(op) < 0 || i >= comm->ops.size() || !comm->ops[i].used)
    return invalid_argument(comm, function, "reduction {} does not exist on this communicator",
                            static_cast<int>(op));
  const UserOp& mine = comm->ops[i];
  if (mine.type != type)
    return invalid_argument(comm, function, "reduction {} was made for type {}; the operation is on type {}",
                            static_cast<int>(op), static_cast<int>(mine.type), static_cast<int>(type));
  call->op = mine.op;
  call->factor = mine.read_when_run;
  return ncclSuccess;
}

}  // namespace ouro::nccl

using namespace ouro::nccl;

OURO_NCCL(ncclResult_t, RedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
          ncclScalarResidence_t residence, ncclComm_t comm) {
  constexpr const char* me = "ncclRedOpCreatePreMulSum";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me, Needs::open);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    if (!op || !scalar) return invalid_argument(comm, me, "{} is null", op ? "scalar" : "op");
    const auto type = dtype_of(datatype);
    if (!type) return invalid_argument(comm, me, "type {} does not exist", static_cast<int>(datatype));
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
      return invalid_argument(comm, me, "residence {}; expected 0 or 1", static_cast<int>(residence));
    UserOp made{true, datatype, {}, nullptr};
    if (residence == ncclScalarDevice)
      made.read_when_run = scalar;
    else
      made.op = premultiplied(scalar, *type);
    std::lock_guard lock(comm->ops_mutex);
    std::size_t i = 0;
    while (i < comm->ops.size() && comm->ops[i].used) ++i;
    if (i == comm->ops.size()) comm->ops.emplace_back();
    comm->ops[i] = made;
    *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(i));
    return ncclSuccess;
  }));
}

OURO_NCCL(ncclResult_t, RedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  constexpr const char* me = "ncclRedOpDestroy";
  return report_to_group(guarded(comm, me, [&]() -> ncclResult_t {
    const Entry entry(comm, me);
    if (entry.wrong != ncclSuccess) return entry.wrong;
    const int number = static_cast<int>(op);
    if (number < ncclNumOps) return invalid_argument(comm, me, "reduction {} is built in", number);
    const auto i = static_cast<std::size_t>(number - ncclNumOps);
    std::lock_guard lock(comm->ops_mutex);
    if (i >= comm->ops.size() || !comm->ops[i].used)
      return invalid_argument(comm, me, "reduction {} does not exist on this communicator", number);
    comm->ops[i] = {};
    return ncclSuccess;
  }));
}

// Collectives and messages. See nccl.h, sections "Collectives" and "Messages".
#include "api/nccl/arguments.h"
#include "api/nccl/gpu_calls.h"

namespace ouro::nccl {
namespace {

/// Checks what all operations share: the type, the root or peer.
ncclResult_t check_call(const char* function, ncclComm_t comm, ncclDataType_t type, int root, DType* out) {
  const auto t = dtype_of(type);
  if (!t) return invalid_argument(comm, function, "type {} does not exist", static_cast<int>(type));
  if (root < 0 || root >= comm->size)
    return invalid_argument(comm, function, "rank {} is not in the communicator; expected 0 to {}", root,
                            comm->size - 1);
  *out = *t;
  return ncclSuccess;
}

/// Checks the arguments and submits an operation without a reduction.
ncclResult_t move(const char* function, Kind kind, const void* in, void* out, std::size_t count,
                  ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream,
                  const ncclCollConfig_t* options = nullptr) {
  return told(guarded(comm, function, [&]() -> ncclResult_t {
    const Entry entry(comm, function, Needs::open);
    if (entry.wrong != ncclSuccess) [[unlikely]]
      return entry.wrong;
    Call call{kind, comm, in, out, count, DType::i8, {}, root};
    call.stream = stream;
    if (const ncclResult_t wrong = check_call(function, comm, type, root, &call.type); wrong != ncclSuccess)
      return wrong;
    if (options)
      if (const ncclResult_t wrong = set_options(function, options, &call); wrong != ncclSuccess)
        return wrong;
    return submit(function, call);
  }));
}

/// The same for an operation with a reduction.
ncclResult_t reduce(const char* function, Kind kind, const void* in, void* out, std::size_t count,
                    ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                    const ncclCollConfig_t* options = nullptr) {
  return told(guarded(comm, function, [&]() -> ncclResult_t {
    const Entry entry(comm, function, Needs::open);
    if (entry.wrong != ncclSuccess) [[unlikely]]
      return entry.wrong;
    Call call{kind, comm, in, out, count, DType::i8, {}, root};
    call.stream = stream;
    if (const ncclResult_t wrong = check_call(function, comm, type, root, &call.type); wrong != ncclSuccess)
      return wrong;
    if (const ncclResult_t wrong = set_reduction(function, op, type, &call); wrong != ncclSuccess)
      return wrong;
    if (options)
      if (const ncclResult_t wrong = set_options(function, options, &call); wrong != ncclSuccess)
        return wrong;
    return submit(function, call);
  }));
}

}  // namespace

namespace {

/// `on` is empty, which runs the operation in host mode (R is Status), or a stream, on which the operation is
/// enqueued or, with an open batch, deferred (R is Result<Work>).
template <class R, class... On>
R hand_over(const Call& c, const On&... on) {
  Group& group = c.comm->group;
  ReduceOp op = c.op;
  if (c.factor && sizeof...(on) > 0 && on_gpu(c.comm)) {
    OURO_ASSIGN(op, read_factor(c.factor, c.type, c.on));
  } else if (c.factor) {
    op = premultiplied(c.factor, c.type);
  }
  const CallOptions options{.numerics = c.numerics};
  const auto n = static_cast<std::size_t>(c.comm->size);
  const Device place = sizeof...(on) > 0 && on_gpu(c.comm) ? c.comm->place : Device();
  const auto in = [&](std::size_t count) { return CView(c.in, count, c.type, place); };
  const auto out = [&](std::size_t count) { return View(c.out, count, c.type, place); };
  const bool blocks = c.kind == Kind::all_gather || c.kind == Kind::reduce_scatter ||
                      c.kind == Kind::all_to_all || c.kind == Kind::gather || c.kind == Kind::scatter;
  std::size_t all = c.count;
  if (blocks && __builtin_mul_overflow(c.count, n, &all))
    return invalid(fmt::format("{} elements for each of {} ranks overflow an address", c.count, n));
  switch (c.kind) {
    case Kind::all_reduce:
      return all_reduce(group, in(c.count), out(c.count), op, on..., options);
    case Kind::reduce:
      return ouro::reduce(group, in(c.count), out(c.count), op, c.root, on..., options);
    case Kind::broadcast:
      return broadcast(group, in(c.count), out(c.count), c.root, on..., options);
    case Kind::all_gather:
      return all_gather(group, in(c.count), out(all), on..., options);
    case Kind::reduce_scatter:
      return reduce_scatter(group, in(all), out(c.count), op, on..., options);
    case Kind::all_to_all:
      return all_to_all(group, in(all), out(all), on..., options);
    case Kind::gather:
      return gather(group, in(c.count), out(all), c.root, on..., options);
    case Kind::scatter:
      return scatter(group, in(all), out(c.count), c.root, on..., options);
    case Kind::send:
      if (c.root != c.comm->rank) c.comm->sent.store(true, std::memory_order_relaxed);
      return send(group, in(c.count), c.root, 0, on...);
    case Kind::recv:
      if constexpr (sizeof...(on) == 0)
        return recv(group, out(c.count), c.root, 0, RecvOptions{.exact = true}).status();
      else
        return recv(group, out(c.count), c.root, 0, on..., RecvOptions{.exact = true});
  }
  return invalid("no such operation");
}

}  // namespace

Status run(const Call& c) { return hand_over<Status>(c); }
Result<Work> enqueue_or_defer(const Call& c) { return hand_over<Result<Work>>(c, c.on); }

}  // namespace ouro::nccl

using namespace ouro::nccl;

// Defines both forms of a collective: X(name, body, parameters).
#define OURO_NCCL_COLLECTIVE(name, body, ...)                                              \
  OURO_NCCL(ncclResult_t, name, __VA_ARGS__, ncclComm_t comm, cudaStream_t stream) {       \
    constexpr const char* me = "nccl" #name;                                               \
    constexpr const ncclCollConfig_t* config = nullptr;                                    \
    return body;                                                                           \
  }                                                                                        \
  OURO_NCCL(ncclResult_t, name##Config, __VA_ARGS__, ncclComm_t comm, cudaStream_t stream, \
            const ncclCollConfig_t* config) {                                              \
    constexpr const char* me = "nccl" #name "Config";                                      \
    return body;                                                                           \
  }

OURO_NCCL_COLLECTIVE(
    AllReduce, reduce(me, Kind::all_reduce, sendbuff, recvbuff, count, datatype, op, 0, comm, stream, config),
    const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op)
OURO_NCCL_COLLECTIVE(
    Reduce, reduce(me, Kind::reduce, sendbuff, recvbuff, count, datatype, op, root, comm, stream, config),
    const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root)
OURO_NCCL_COLLECTIVE(Broadcast,
                     move(me, Kind::broadcast, sendbuff, recvbuff, count, datatype, root, comm, stream,
                          config),
                     const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)
OURO_NCCL_COLLECTIVE(AllGather,
                     move(me, Kind::all_gather, sendbuff, recvbuff, sendcount, datatype, 0, comm, stream,
                          config),
                     const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype)
OURO_NCCL_COLLECTIVE(ReduceScatter,
                     reduce(me, Kind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op, 0, comm,
                            stream, config),
                     const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                     ncclRedOp_t op)
OURO_NCCL_COLLECTIVE(AlltoAll,
                     move(me, Kind::all_to_all, sendbuff, recvbuff, count, datatype, 0, comm, stream, config),
                     const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype)
OURO_NCCL_COLLECTIVE(Gather,
                     move(me, Kind::gather, sendbuff, recvbuff, count, datatype, root, comm, stream, config),
                     const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)
OURO_NCCL_COLLECTIVE(Scatter,
                     move(me, Kind::scatter, sendbuff, recvbuff, count, datatype, root, comm, stream, config),
                     const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root)

OURO_NCCL(ncclResult_t, Bcast, void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
          cudaStream_t stream) {
  return move("ncclBcast", Kind::broadcast, buff, buff, count, datatype, root, comm, stream);
}

OURO_NCCL(ncclResult_t, Send, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
          ncclComm_t comm, cudaStream_t stream) {
  return move("ncclSend", Kind::send, sendbuff, nullptr, count, datatype, peer, comm, stream);
}

OURO_NCCL(ncclResult_t, Recv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
          ncclComm_t comm, cudaStream_t stream) {
  return move("ncclRecv", Kind::recv, nullptr, recvbuff, count, datatype, peer, comm, stream);
}

// Collectives and messages. See nccl.h, sections "Collectives" and "Messages".
#include "api/nccl/arguments.h"
#include "api/nccl/gpu_calls.h"

namespace ouro::nccl {
namespace {

/// The arguments that every operation of nccl.h has, as the program passed them.
struct Common {
  const char* function;
  ncclComm_t comm;
  cudaStream_t stream;
  std::size_t count;
  ncclDataType_t type;
};
/// The operation, and the arguments that not every operation has.
struct Particular {
  Collective collective = Collective::none;
  MessageHalf half = MessageHalf::none;
  const void* in = nullptr;
  void* out = nullptr;
  int root = 0;                        ///< or the peer of a message
  std::optional<ncclRedOp_t> op = {};  ///< if the collective reduces
  const ncclCollConfig_t* config = nullptr;
};

/// Checks the arguments and submits the operation.
ncclResult_t issue(const Common& a, const Particular& p) {
  return report_to_group(guarded(a.comm, a.function, [&]() -> ncclResult_t {
    const Entry entry(a.comm, a.function, Needs::open);
    if (entry.wrong != ncclSuccess) [[unlikely]]
      return entry.wrong;
    const auto type = dtype_of(a.type);
    if (!type)
      return invalid_argument(a.comm, a.function, "type {} does not exist", static_cast<int>(a.type));
    if (p.root < 0 || p.root >= a.comm->size)
      return invalid_argument(a.comm, a.function, "rank {} is not in the communicator; expected 0 to {}",
                              p.root, a.comm->size - 1);
    Call call{.collective = p.collective,
              .half = p.half,
              .comm = a.comm,
              .in = p.in,
              .out = p.out,
              .count = a.count,
              .type = *type,
              .root = p.root,
              .stream = a.stream};
    ncclResult_t wrong = ncclSuccess;
    if (p.op) wrong = set_reduction(a.function, *p.op, a.type, &call);
    if (wrong == ncclSuccess && p.config) wrong = set_options(a.function, p.config, &call);
    return wrong == ncclSuccess ? submit(a.function, call) : wrong;
  }));
}

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
  const CollectiveTraits traits = traits_of(c.collective);
  std::size_t all = c.count;  // of one block per rank
  if (traits.blocks() && __builtin_mul_overflow(c.count, n, &all))
    return invalid(fmt::format("{} elements for each of {} ranks overflow an address", c.count, n));
  const CView in(c.in, traits.in.many() ? all : c.count, c.type, place);
  const View out(c.out, traits.out.many() ? all : c.count, c.type, place);
  if (c.half == MessageHalf::send && c.root != c.comm->rank)
    c.comm->sent.store(true, std::memory_order_relaxed);
  if (c.half != MessageHalf::none && place.kind != Device::Kind::host) {
    const Transfer t =
        c.half == MessageHalf::send ? Transfer::send_to(c.root, in) : Transfer::receive_from(c.root, out);
    return exchange(group, std::span(&t, 1), on...);
  }
  if (c.half == MessageHalf::send) {
    return send(group, in, c.root, 0, on...);
  }
  if (c.half == MessageHalf::recv) {
    const RecvOptions exact{.exact = true};
    if constexpr (sizeof...(on) == 0)
      return recv(group, out, c.root, 0, exact).status();
    else
      return recv(group, out, c.root, 0, on..., exact);
  }
  switch (c.collective) {
    case Collective::all_reduce:
      return all_reduce(group, in, out, op, on..., options);
    case Collective::reduce:
      return reduce(group, in, out, op, c.root, on..., options);
    case Collective::broadcast:
      return broadcast(group, in, out, c.root, on..., options);
    case Collective::all_gather:
      return all_gather(group, in, out, on..., options);
    case Collective::reduce_scatter:
      return reduce_scatter(group, in, out, op, on..., options);
    case Collective::all_to_all:
      return all_to_all(group, in, out, on..., options);
    case Collective::gather:
      return gather(group, in, out, c.root, on..., options);
    case Collective::scatter:
      return scatter(group, in, out, c.root, on..., options);
    default:
      return invalid("no such operation");
  }
}

}  // namespace

Status run(const Call& c) { return hand_over<Status>(c); }
Result<Work> enqueue_or_defer(const Call& c) { return hand_over<Result<Work>>(c, c.on); }

}  // namespace ouro::nccl

using namespace ouro::nccl;

#define OURO_NCCL_PARAMETERS(...) __VA_ARGS__
// Defines both forms of a collective: X(name, collective, count, (parameters), members of Particular).
#define OURO_NCCL_COLLECTIVE(name, which, elements, parameters, ...)                                     \
  OURO_NCCL(ncclResult_t, name, OURO_NCCL_PARAMETERS parameters, ncclComm_t comm, cudaStream_t stream) { \
    return issue({"nccl" #name, comm, stream, elements, datatype},                                       \
                 {.collective = ouro::Collective::which, .in = sendbuff, .out = recvbuff, __VA_ARGS__}); \
  }                                                                                                      \
  OURO_NCCL(ncclResult_t, name##Config, OURO_NCCL_PARAMETERS parameters, ncclComm_t comm,                \
            cudaStream_t stream, const ncclCollConfig_t* config) {                                       \
    Particular p{.collective = ouro::Collective::which, .in = sendbuff, .out = recvbuff, __VA_ARGS__};   \
    p.config = config;                                                                                   \
    return issue({"nccl" #name "Config", comm, stream, elements, datatype}, p);                          \
  }

OURO_NCCL_COLLECTIVE(AllReduce, all_reduce, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                      ncclRedOp_t op),
                     .op = op)
OURO_NCCL_COLLECTIVE(Reduce, reduce, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                      ncclRedOp_t op, int root),
                     .root = root, .op = op)
OURO_NCCL_COLLECTIVE(Broadcast, broadcast, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root),
                     .root = root)
OURO_NCCL_COLLECTIVE(AllGather, all_gather, sendcount,
                     (const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype))
OURO_NCCL_COLLECTIVE(ReduceScatter, reduce_scatter, recvcount,
                     (const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                      ncclRedOp_t op),
                     .op = op)
OURO_NCCL_COLLECTIVE(AlltoAll, all_to_all, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype))
OURO_NCCL_COLLECTIVE(Gather, gather, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root),
                     .root = root)
OURO_NCCL_COLLECTIVE(Scatter, scatter, count,
                     (const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root),
                     .root = root)

OURO_NCCL(ncclResult_t, Bcast, void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
          cudaStream_t stream) {
  return issue({"ncclBcast", comm, stream, count, datatype},
               {.collective = ouro::Collective::broadcast, .in = buff, .out = buff, .root = root});
}

OURO_NCCL(ncclResult_t, Send, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
          ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclSend", comm, stream, count, datatype},
               {.half = MessageHalf::send, .in = sendbuff, .root = peer});
}

OURO_NCCL(ncclResult_t, Recv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
          ncclComm_t comm, cudaStream_t stream) {
  return issue({"ncclRecv", comm, stream, count, datatype},
               {.half = MessageHalf::recv, .out = recvbuff, .root = peer});
}

// c10d's collectives, each as one body over views of its tensors. See backend.h.
#include <numeric>

#include "backend.h"
#include "tensors.h"

namespace ouro::adapter {
namespace {

using Counts = std::vector<std::size_t>;

/// Number of ouro elements in each tensor.
Counts counts_of(const std::vector<at::Tensor>& tensors, Use use = Use::move) {
  Counts counts;
  for (const at::Tensor& t : tensors) counts.push_back(view(t, use).count);
  return counts;
}

bool even(const Counts& c) {
  return std::adjacent_find(c.begin(), c.end(), std::not_equal_to<>()) == c.end();
}

/// The shares of dimension 0, in ouro elements per rank; empty `sizes`: equal shares.
Counts shares(const char* what, const at::Tensor& t, const std::vector<std::int64_t>& sizes,
              std::size_t ranks) {
  const std::int64_t rows = t.dim() == 0 ? t.numel() : t.size(0);
  const std::int64_t row = rows == 0 ? 0 : t.numel() / rows;
  const std::size_t each = per_element(t);
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(rows % static_cast<std::int64_t>(ranks) == 0,
                      "ouro: all_to_all_single: dimension 0 of the ", what, " has ", rows, " rows, which ",
                      ranks, " ranks cannot share evenly");
    return Counts(ranks, static_cast<std::size_t>(rows / static_cast<std::int64_t>(ranks) * row) * each);
  }
  TORCH_CHECK_VALUE(
      sizes.size() == ranks && std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == rows,
      "ouro: all_to_all_single: the sizes for the ", what, " are ", sizes, ", for ", ranks, " ranks and ",
      rows, " rows");
  Counts counts;
  for (const std::int64_t s : sizes) {
    TORCH_CHECK_VALUE(s >= 0, "ouro: all_to_all_single: a negative size for the ", what);
    counts.push_back(static_cast<std::size_t>(s * row) * each);
  }
  return counts;
}

void check_root(const char* function, std::int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "ouro: ", function, ": root ", root, " of a group of ", size);
}

std::vector<at::Tensor> joined(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  std::vector<at::Tensor> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& o) {
  const at::Tensor t = only("broadcast", tensors);
  check_root("broadcast", o.rootRank, size_);
  check("broadcast", tensors, rank_ == o.rootRank ? Tensors() : tensors);
  return start({c10d::OpType::BROADCAST, "broadcast", tensors, tensors, o.timeout, o.asyncOp},
               [this, t, root = static_cast<int>(o.rootRank)](const Stream& s) -> Status {
                 const Target target(t);
                 if (rank_ == root && !target.flat().is_same(t)) target.flat().copy_(t);
                 const View v = view(target.flat());
                 OURO_TRY(ouro::broadcast(group_, v, v, root, s).status());
                 if (rank_ != root) target.store();
                 return {};
               });
}

Backend::WorkPtr Backend::all_reduced(const char* name, c10d::OpType type, Tensors tensors,
                                      const c10d::AllreduceOptions& o) {
  check(name, tensors, tensors);
  if (tensors.empty())
    return start({type, name, {}, {}, o.timeout, false}, [](const Stream&) { return Status(); });
  const ReduceOp op = reduction(o.reduceOp, tensors.front().scalar_type());
  (void)view(tensors.front(), Use::reduce);
  const Call call{type, name, tensors, tensors, o.timeout, o.asyncOp};
  return start(call, [this, tensors = std::move(tensors), op](const Stream& s) -> Status {
    if (tensors.size() == 1 && tensors.front().is_contiguous()) {
      const View v = view(tensors.front(), Use::reduce);
      return ouro::all_reduce(group_, v, v, op, s).status();
    }
    const Packed packed(tensors);
    packed.load();
    const View v = view(packed.flat(), Use::reduce);
    OURO_TRY(ouro::all_reduce(group_, v, v, op, s).status());
    packed.store();
    return {};
  });
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& o) {
  if (const at::Tensor& t = only("all_reduce", tensors); t.is_sparse()) return sparse_reduced(t, o);
  return all_reduced("all_reduce", c10d::OpType::ALLREDUCE, {only("all_reduce", tensors)}, o);
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& o) {
  return all_reduced("all_reduce", c10d::OpType::ALLREDUCE_COALESCED, tensors, o);
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& o) {
  const at::Tensor t = only("reduce", tensors);
  check_root("reduce", o.rootRank, size_);
  check("reduce", tensors, rank_ == o.rootRank ? tensors : Tensors());
  const ReduceOp op = reduction(o.reduceOp, t.scalar_type());
  (void)view(t, Use::reduce);
  return start({c10d::OpType::REDUCE, "reduce", tensors, tensors, o.timeout, o.asyncOp},
               [this, t, op, root = static_cast<int>(o.rootRank)](const Stream& s) -> Status {
                 const Packed packed({t});
                 packed.load();
                 const View v = view(packed.flat(), Use::reduce);
                 OURO_TRY(ouro::reduce(group_, v, rank_ == root ? v : View(), op, root, s).status());
                 if (rank_ == root) packed.store();
                 return {};
               });
}

Backend::WorkPtr Backend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& o) {
  const at::Tensor in = only("all_gather", inputs);
  const Tensors outs = only("all_gather", outputs, ranks());
  check("all_gather", joined(inputs, outs), outs);
  const Counts counts = counts_of(outs);
  same_count("all_gather", "the input", in.numel(), "this rank's output",
             outs[static_cast<std::size_t>(rank_)].numel());
  return start({c10d::OpType::ALLGATHER, "all_gather", inputs, outs, o.timeout, o.asyncOp},
               [this, in, outs, counts](const Stream& s) -> Status {
                 const Packed packed(outs);
                 const auto before = counts.begin() + rank_;
                 const at::Tensor from = to_read(
                     in, packed.flat(),
                     static_cast<std::int64_t>(std::accumulate(counts.begin(), before, std::size_t{0})));
                 const View all = view(packed.flat());
                 OURO_TRY(even(counts) ? ouro::all_gather(group_, view(from), all, s).status()
                                       : ouro::all_gather_v(group_, view(from), all, counts, s).status());
                 packed.store();
                 return {};
               });
}

Backend::WorkPtr Backend::allgather_coalesced(Lists& lists, Tensors& inputs,
                                              const c10d::AllgatherOptions& o) {
  TORCH_CHECK_VALUE(lists.size() == ranks(), "ouro: all_gather_coalesced: ", lists.size(),
                    " lists of outputs, of ", size_, " ranks");
  TORCH_CHECK_VALUE(!inputs.empty(), "ouro: all_gather_coalesced: no tensors");
  Tensors outs;  // rank by rank, in the order of arrival if each rank sends its tensors as one
  for (const Tensors& of_rank : lists) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "ouro: all_gather_coalesced: a list of ",
                      of_rank.size(), " outputs for ", inputs.size(), " inputs");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      same_count("all_gather_coalesced", "an output", of_rank[i].numel(), "its input", inputs[i].numel());
    outs.insert(outs.end(), of_rank.begin(), of_rank.end());
  }
  check("all_gather_coalesced", joined(inputs, outs), outs);
  return start({c10d::OpType::ALLGATHER_COALESCED, "all_gather", inputs, outs, o.timeout, o.asyncOp},
               [this, ins = inputs, outs](const Stream& s) -> Status {
                 const Packed from(ins), all(outs);
                 from.load();
                 OURO_TRY(ouro::all_gather(group_, view(from.flat()), view(all.flat()), s).status());
                 all.store();
                 return {};
               });
}

Backend::WorkPtr Backend::gathered(Tensors outputs, Tensors inputs, const c10d::AllgatherOptions& o,
                                   c10d::OpType type) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ouro: all_gather_into_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensors both{inputs[i], outputs[i]};
    check("all_gather_into_tensor", both, {&outputs[i], 1});
    same_count("all_gather_into_tensor", "the output", outputs[i].numel(), "the inputs of all ranks",
               inputs[i].numel() * size_);
  }
  const Call call{type, "all_gather_into_tensor", inputs, outputs, o.timeout, o.asyncOp};
  return start(call,
               [this, outputs = std::move(outputs), inputs = std::move(inputs)](const Stream& s) -> Status {
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   const Target out(outputs[i]);
                   const at::Tensor in = to_read(inputs[i], out.flat(), rank_ * inputs[i].numel());
                   OURO_TRY(ouro::all_gather(group_, view(in), view(out.flat()), s).status());
                   out.store();
                 }
                 return {};
               });
}

Status Backend::as_long_as_roots(at::Tensor* in, int root) {
  std::int64_t wanted = in->numel();
  const std::span<std::int64_t> word(&wanted, 1);
  OURO_TRY(ouro::broadcast(group_, word, word, root));
  if (in->numel() >= wanted) return {};  // all ranks reject longer ones
  at::Tensor longer = at::zeros({wanted}, in->options());
  longer.narrow(0, 0, in->numel()).copy_(in->reshape({-1}));
  *in = std::move(longer);
  return {};
}

Backend::WorkPtr Backend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& o) {
  const at::Tensor in = only("gather", inputs);
  check_root("gather", o.rootRank, size_);
  const int root = static_cast<int>(o.rootRank);
  TORCH_CHECK_VALUE(rank_ == root || outputs.empty() || outputs.front().empty(),
                    "ouro: gather: outputs on rank ", rank_, ", which is not the root");
  const Tensors outs = rank_ == root ? only("gather", outputs, ranks()) : Tensors();
  check("gather", joined(inputs, outs), outs);
  for (const at::Tensor& t : outs) same_count("gather", "an output", t.numel(), "the input", in.numel());
  return start(
      {c10d::OpType::GATHER, "gather", inputs, outs, o.timeout, o.asyncOp},
      [this, in, outs, root](const Stream& s) -> Status {
        const Packed packed(outs);
        at::Tensor from = to_read(in, packed.flat(), rank_ * in.numel());
        // gloo accepts inputs shorter than the root's and pads them with zeros; torchgfn relies on that.
        if (name_ == "gloo" && !in.is_cuda()) OURO_TRY(as_long_as_roots(&from, root));
        OURO_TRY(
            ouro::gather(group_, view(from), outs.empty() ? View() : view(packed.flat()), root, s).status());
        packed.store();
        return {};
      });
}

#ifdef C10D_BACKEND_HAS_HOOKS
Backend::WorkPtr Backend::gather_single(Tensor& out, Tensor& in, const c10d::GatherOptions& o) {
  Lists outputs;
  if (rank_ == o.rootRank) {
    same_count("gather_single", "the output", out.numel(), "the inputs of all ranks", in.numel() * size_);
    TORCH_CHECK_VALUE(out.is_contiguous(), "ouro: gather_single: the output is not contiguous");
    outputs.emplace_back(out.view({size_, -1}).unbind(0));
  }
  Tensors inputs{in.reshape({-1})};
  return gather(outputs, inputs, o);
}
#endif

Backend::WorkPtr Backend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& o) {
  const at::Tensor out = only("scatter", outputs);
  check_root("scatter", o.rootRank, size_);
  const int root = static_cast<int>(o.rootRank);
  TORCH_CHECK_VALUE(rank_ == root || inputs.empty() || inputs.front().empty(),
                    "ouro: scatter: inputs on rank ", rank_, ", which is not the root");
  const Tensors ins = rank_ == root ? only("scatter", inputs, ranks()) : Tensors();
  check("scatter", joined(outputs, ins), outputs);
  for (const at::Tensor& t : ins) same_count("scatter", "an input", t.numel(), "the output", out.numel());
  return start(
      {c10d::OpType::SCATTER, "scatter", rank_ == root ? ins : outputs, outputs, o.timeout, o.asyncOp},
      [this, out, ins, root](const Stream& s) -> Status {
        const Packed packed(ins);
        packed.load();
        const Target target(out);
        OURO_TRY(ouro::scatter(group_, ins.empty() ? CView() : CView(view(packed.flat())),
                               view(target.flat()), root, s)
                     .status());
        target.store();
        return {};
      });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                         const c10d::ReduceScatterOptions& o) {
  const at::Tensor out = only("reduce_scatter", outputs);
  const Tensors ins = only("reduce_scatter", inputs, ranks());
  check("reduce_scatter", joined(outputs, ins), outputs);
  const ReduceOp op = reduction(o.reduceOp, out.scalar_type());
  const Counts counts = counts_of(ins, Use::reduce);
  same_count("reduce_scatter", "the output", out.numel(), "this rank's input",
             ins[static_cast<std::size_t>(rank_)].numel());
  return start({c10d::OpType::REDUCE_SCATTER, "reduce_scatter", ins, outputs, o.timeout, o.asyncOp},
               [this, out, ins, op, counts](const Stream& s) -> Status {
                 const Packed packed(ins);
                 packed.load();
                 const Target target(out);
                 const auto before = counts.begin() + rank_;
                 const at::Tensor from = to_read(
                     packed.flat(), target.flat(),
                     -static_cast<std::int64_t>(std::accumulate(counts.begin(), before, std::size_t{0})));
                 const View all = view(from, Use::reduce), own = view(target.flat(), Use::reduce);
                 OURO_TRY(even(counts) ? ouro::reduce_scatter(group_, all, own, op, s).status()
                                       : ouro::reduce_scatter_v(group_, all, own, counts, op, s).status());
                 target.store();
                 return {};
               });
}

Backend::WorkPtr Backend::scattered(Tensors outputs, Tensors inputs, const c10d::ReduceScatterOptions& o,
                                    c10d::OpType type) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ouro: reduce_scatter_tensor: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensors both{inputs[i], outputs[i]};
    check("reduce_scatter_tensor", both, {&outputs[i], 1});
    (void)reduction(o.reduceOp, inputs[i].scalar_type());
    (void)view(inputs[i], Use::reduce);
    same_count("reduce_scatter_tensor", "the input", inputs[i].numel(), "the outputs of all ranks",
               outputs[i].numel() * size_);
  }
  const Call call{type, "reduce_scatter_tensor", inputs, outputs, o.timeout, o.asyncOp};
  return start(call,
               [this, outputs = std::move(outputs), inputs = std::move(inputs),
                how = o.reduceOp](const Stream& s) -> Status {
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   const Target out(outputs[i]);
                   const at::Tensor in = to_read(inputs[i], out.flat(), -rank_ * outputs[i].numel());
                   OURO_TRY(ouro::reduce_scatter(group_, view(in, Use::reduce), view(out.flat(), Use::reduce),
                                                 reduction(how, in.scalar_type()), s)
                                .status());
                   out.store();
                 }
                 return {};
               });
}

Backend::WorkPtr Backend::exchanged(Tensor& out, Tensor& in, const std::vector<std::int64_t>& out_sizes,
                                    const std::vector<std::int64_t>& in_sizes,
                                    const c10d::AllToAllOptions& o) {
  const Tensors both{in, out};
  check("all_to_all_single", both, {&out, 1});
  const Counts sent = shares("input", in, in_sizes, ranks()),
               received = shares("output", out, out_sizes, ranks());
  return start(
      {c10d::OpType::ALLTOALL_BASE, "all_to_all", {in}, {out}, o.timeout, o.asyncOp},
      [this, out, in, sent, received](const Stream& s) -> Status {
        const Target target(out);
        const at::Tensor from = to_read(in, target.flat());
        OURO_TRY(ouro::all_to_all_v(group_, view(from), view(target.flat()), sent, received, s).status());
        target.store();
        return {};
      });
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& o) {
  TORCH_CHECK_VALUE(outputs.size() == ranks() && inputs.size() == ranks(), "ouro: all_to_all: lists of ",
                    inputs.size(), " inputs and ", outputs.size(), " outputs, of ", size_, " ranks");
  check("all_to_all", joined(inputs, outputs), outputs);
  return start(
      {c10d::OpType::ALLTOALL, "all_to_all", inputs, outputs, o.timeout, o.asyncOp},
      [this, outs = outputs, ins = inputs](const Stream& s) -> Status {
        const Packed from(ins), to(outs);
        from.load();
        const at::Tensor in = to_read(from.flat(), to.flat());
        OURO_TRY(ouro::all_to_all_v(group_, view(in), view(to.flat()), counts_of(ins), counts_of(outs), s)
                     .status());
        to.store();
        return {};
      });
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& o) {
  return start({c10d::OpType::BARRIER, "barrier", {}, {}, o.timeout, o.asyncOp},
               [this](const Stream& s) { return ouro::barrier(group_, s).status(); });
}

}  // namespace ouro::adapter

// The sum of sparse tensors, such as gradients of embeddings. See backend.h.
#include "backend.h"
#include "tensors.h"

namespace ouro::adapter {

Backend::WorkPtr Backend::sparse_reduced(const at::Tensor& t, const c10d::AllreduceOptions& o) {
  TORCH_CHECK_VALUE(t.is_cpu(), "ouro: all_reduce: a sparse tensor is on ", t.device(),
                    "; those on cpu are served");
  TORCH_CHECK_VALUE(o.reduceOp.op_ == c10d::ReduceOp::SUM,
                    "ouro: all_reduce: sparse tensors can be summed up, nothing else");
  (void)view(at::empty({0}, t.options().layout(at::kStrided)), Use::reduce);
  const Call call{c10d::OpType::ALLREDUCE, "sparse_all_reduce", {t}, {t}, o.timeout, o.asyncOp};
  return start(call, [this, t](const Stream&) -> Status {
    const at::Tensor own = t.coalesce();
    // Exchanges the number of entries of each rank, and the shape, on which all must agree.
    std::vector<std::int64_t> shape{own._nnz(), own.sparse_dim()};
    shape.insert(shape.end(), own.sizes().begin(), own.sizes().end());
    std::vector<std::int64_t> shapes(shape.size() * ranks());
    OURO_TRY(ouro::all_gather(group_, std::span<const std::int64_t>(shape), std::span(shapes)));
    std::int64_t all = 0;
    std::vector<std::size_t> entries;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const auto at = shapes.begin() + static_cast<std::ptrdiff_t>(r * shape.size());
      if (!std::equal(shape.begin() + 1, shape.end(), at + 1))
        return {Reason::mismatch,
                c10::str("all_reduce of sparse tensors: rank ", r, " has the shape ",
                         c10::IntArrayRef(&at[2], shape.size() - 2), " of ", at[1],
                         " sparse dimensions, rank ", rank_, " has ", own.sizes(), " of ", shape[1])};
      all += *at;
      entries.push_back(static_cast<std::size_t>(*at));
    }
    const at::Tensor places = own.indices().t().contiguous(), values = own.values().contiguous();
    const at::Tensor all_places = at::empty({all, own.sparse_dim()}, places.options());
    std::vector<std::int64_t> sizes = values.sizes().vec();
    sizes[0] = all;
    const at::Tensor all_values = at::empty(sizes, values.options());
    for (const auto& [mine, theirs] : {std::pair(places, all_places), std::pair(values, all_values)}) {
      const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(all, 1));
      std::vector<std::size_t> counts = entries;
      for (std::size_t& c : counts) c *= view(theirs).count / rows;
      OURO_TRY(ouro::all_gather_v(group_, view(mine), view(theirs), counts));
    }
    t.copy_(at::_sparse_coo_tensor_unsafe(all_places.t(), all_values, own.sizes()).coalesce());
    return {};
  });
}

}  // namespace ouro::adapter

// The mean of all ranks' models, and its reversal. See gossip.hpp.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "api/train/common/caught.h"
#include "api/train/common/comparison.h"
#include "api/train/common/param_checks.h"
#include "api/train/gossip/gossip_state.h"
#include "api/train/optim/update.h"
#include "kernels/arith/floats.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

/// Element i of an array in host bytes.
double number(CBytes bytes, DType t, std::size_t i) {
  const auto as = [&]<class T>(T) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    return x;
  };
  switch (t) {
    case DType::f64:
      return as(double{});
    case DType::f32:
      return as(float{});
    case DType::f16:
      return arith::widen(arith::from_bits<arith::Half>(as(std::uint16_t{})));
    default:
      return arith::widen(arith::from_bits<arith::BFloat16>(as(std::uint16_t{})));
  }
}

}  // namespace

/// The values that an average replaced. `views` may refer to memory of the trainer.
struct Average::Saved {
  std::shared_ptr<GossipTrainer::State> trainer;
  std::vector<View> views;
  std::vector<Bytes> values;
  bool keep = false;

  Status restore() {
    for (std::size_t i = 0; i < views.size(); ++i) OURO_TRY(write_view(views[i], values[i]));
    trainer->averaged = false;
    return {};
  }
};

Average::Average(std::unique_ptr<Saved> s) : saved_(std::move(s)) {}
Average::Average(Average&&) noexcept = default;
Average& Average::operator=(Average&& o) noexcept {
  if (this != &o) {
    if (saved_ && !saved_->keep) (void)revert().ok();
    distance = o.distance;
    saved_ = std::move(o.saved_);
  }
  return *this;
}
Average::~Average() {
  // Errors are lost here; an explicit revert() returns them.
  if (saved_ && !saved_->keep) (void)revert().ok();
}

Status Average::revert() {
  if (!saved_) return invalid("revert: the average was reverted already");
  if (saved_->keep) return invalid("revert: the average is kept");
  const std::unique_ptr<Saved> saved = std::move(saved_);
  return saved->restore();
}

Result<Average> GossipTrainer::global_average(const GlobalAverageOptions& o) {
  State& s = *state_;
  const StandardFloats floats;
  OURO_TRY(s.usable());
  OURO_TRY(s.between_steps("global_average"));
  if (o.keep)
    for (const int p : s.trainable)
      if (size_of(s.params[static_cast<std::size_t>(p)].value.dtype) == 2)
        return unsupported(
            fmt::format("global_average: keep, and parameter '{}' is of 16 bits; its optimiser may hold a "
                        "master copy, which would undo the mean",
                        s.params[static_cast<std::size_t>(p)].name));
  auto saved = std::make_unique<Average::Saved>();
  saved->trainer = state_;
  saved->keep = o.keep;
  std::size_t parameters = 0;
  const auto add = [&](const View& v) {
    if (trains(v.dtype) && v.count > 0) saved->views.push_back(v);
  };
  for (const Param& p : s.params) add(p.value);
  parameters = saved->views.size();
  if (s.options.average_buffers)
    for (const Buffer& b : s.buffers) add(b.value);

  bool replacing = false;
  const auto average = [&]() -> Status {
    const Claim claim{"another choice of what to keep", o.keep};
    OURO_TRY(compare(s.control, "global_average", {&claim, 1}));
    OURO_TRY(s.settle());
    for (const View& v : saved->views) {
      Bytes& old = saved->values.emplace_back(v.bytes());
      OURO_TRY(read_view(v, old));
    }
    replacing = true;
    group_start();
    for (const View& v : saved->views)
      (void)all_reduce(s.control, v, v, ReduceOp::avg).ok();  // group_end reports the error
    return group_end();
  };
  double squares = 0;
  const auto measure = [&]() -> Status {
    for (std::size_t k = 0; k < parameters && o.distance; ++k) {
      const View& v = saved->views[k];
      Bytes mean(v.bytes());
      OURO_TRY(read_view(v, mean));
      for (std::size_t i = 0; i < v.count; ++i) {
        const double d = number(mean, v.dtype, i) - number(saved->values[k], v.dtype, i);
        squares += d * d;
      }
    }
    return {};
  };
  const auto keep = [&]() -> Status {
    for (GossipBucket& b : s.buckets) {
      b.pending = false;
      OURO_TRY(zero_view(b.message.view()));
      for (std::size_t i = 0; i < b.params.size() && b.second; ++i)
        OURO_TRY(copy_view(b.pieces(b.second)[i], b.params[i].value));
    }
    saved->values.clear();
    return {};
  };
  const auto all = [&]() -> Status {
    OURO_TRY(average());
    OURO_TRY(measure());
    return o.keep ? keep() : Status{};
  };
  Status done = caught(all, "global_average: no memory for the values that the mean replaces");
  if (!done.ok()) {
    // Restores the values replaced so far, because a partly averaged model is of no use.
    if (replacing) (void)saved->restore().ok();
    return s.fail(std::move(done));
  }
  s.averaged = !o.keep;
  Average result(std::move(saved));
  if (o.distance) result.distance = std::sqrt(squares);
  return result;
}

}  // namespace ouro::train

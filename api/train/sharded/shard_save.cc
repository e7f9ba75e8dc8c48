// Saving and loading a sharded trainer. See shard.hpp.
#include <fmt/format.h>

#include "api/train/common/caught.h"
#include "api/train/common/saved_form.h"
#include "api/train/optim/update.h"
#include "api/train/sharded/shard_state.h"

namespace ouro::train {
namespace {

using State = ShardedTrainer::State;

constexpr std::uint64_t kMagic = 0x32647261'6873756f;  // version 2

/// The contents of a saved state; the shard's values are views into it.
struct Saved {
  std::int64_t steps = 0;
  std::optional<GradScaler> scaler;
  std::vector<CBytes> values;  // of the shard's parts, in their order
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  std::vector<std::int64_t> positions;
};

Result<Saved> read(const State& s, CBytes in) {
  OURO_TRY(s.before_steps("load"));
  auto checked = Reader::checked(in);
  if (!checked) return invalid("load: the state of the trainer is too short, or damaged");
  Reader& r = *checked;
  if (r.number<std::uint64_t>() != kMagic) return invalid("load: not the state of a sharded trainer");
  if (const int size = r.number<int>(); size != s.shards.size)
    return invalid(
        fmt::format("load: the state of one of {} shards; this trainer has {}", size, s.shards.size));
  if (r.number<std::uint64_t>() != s.params_digest)
    return invalid("load: the state of a trainer with other parameters");
  if (r.number<std::uint64_t>() != s.options_digest)
    return invalid("load: the state of a trainer with other options");
  if (const int rank = r.number<int>(); rank != s.shards.rank)
    return invalid(fmt::format("load: the state of shard {}; this is shard {}", rank, s.shards.rank));
  const Status contradicts = invalid("load: the state of the trainer contradicts itself");
  Saved saved;
  saved.steps = r.number<std::int64_t>();
  saved.scaler = s.options.scaler;
  if (saved.scaler) {
    saved.scaler->scale = r.number<double>();
    saved.scaler->clean_steps = r.number<std::int64_t>();
  }
  for (const ShardBucket& b : s.buckets) {
    for (const Param& p : b.mine) {
      saved.values.push_back(r.bytes());
      if (saved.values.back().size() != p.value.bytes()) return contradicts;
    }
    OURO_ASSIGN(auto optimizer, make_optimizer(s.options.optimizer, b.mine));
    const CBytes state = r.bytes();
    if (!r.whole) return contradicts;
    OURO_TRY(optimizer->load(state));
    saved.optimizers.push_back(std::move(optimizer));
    saved.positions.push_back(r.number<std::int64_t>());
  }
  if (!r.whole || !r.empty()) return contradicts;
  return saved;
}

Result<Bytes> write(State& s) {
  Writer w;
  w.number(kMagic);
  w.number(s.shards.size);
  w.number(s.params_digest);
  w.number(s.options_digest);
  w.number(s.shards.rank);
  w.number(s.steps);
  if (s.options.scaler) {
    w.number(s.options.scaler->scale);
    w.number(s.options.scaler->clean_steps);
  }
  for (ShardBucket& b : s.buckets) {
    for (const Param& p : b.mine) {
      Bytes value(p.value.bytes());
      OURO_TRY(read_view(p.value, value));
      w.bytes(value);
    }
    OURO_ASSIGN(auto optimizer, b.optimizer->save());
    w.bytes(optimizer);
    w.number(b.schedule ? b.schedule->position() : std::int64_t{0});
  }
  return w.take();
}

}  // namespace

Result<Bytes> ShardedTrainer::save() {
  State& s = *state_;
  OURO_TRY(s.usable());
  OURO_TRY(s.between_steps("save"));
  return caught([&] { return write(s); }, "save: no memory for the state of the trainer");
}

Status ShardedTrainer::load(CBytes in) {
  State& s = *state_;
  OURO_TRY(s.usable());
  auto saved = caught([&] { return read(s, in); }, "load: no memory for the state of the trainer");
  const Claim claims[] = {
      {"the state of another step", saved.ok() ? static_cast<std::uint64_t>(saved->steps) : 0, true}};
  Status agreed = s.compare_all("load", claims, saved.status());
  if (!agreed.ok() && saved.ok() && agreed.code() != Code::invalid) return s.fail(std::move(agreed));
  OURO_TRY(agreed);
  const auto take = [&]() -> Status {
    auto value = saved->values.begin();
    for (std::size_t k = 0; k < s.buckets.size(); ++k) {
      ShardBucket& b = s.buckets[k];
      for (const Param& p : b.mine) OURO_TRY(write_view(p.value, *value++));
      b.optimizer = std::move(saved->optimizers[k]);
      if (b.schedule) b.schedule->seek(saved->positions[k]);
      OURO_TRY(s.gather(k));
    }
    return {};
  };
  if (Status done = take(); !done.ok()) return s.fail(std::move(done));
  s.steps = saved->steps;
  s.options.scaler = saved->scaler;
  return {};
}

}  // namespace ouro::train

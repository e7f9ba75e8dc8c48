// The saved forms of outer optimisers and of local steps. See ouro/train/outer.hpp.
#include <fmt/format.h>

#include <new>

#include "api/train/common/comparison.h"
#include "api/train/common/saved_form.h"
#include "api/train/federated/outer_state.h"

namespace ouro::train {
namespace {

constexpr std::uint64_t kOuterMagic = 0x317265747565756f, kLocalMagic = 0x316c61636f6c756f;  // version 1

Status no_memory(const char* what) {
  return {Reason::resource, fmt::format("{}: no memory for the state", what)};
}

/// Digest of the list, and of the options that the saved state depends on.
std::uint64_t digest_of(const OuterOptimizer::State& s) {
  Digest d;
  for (const auto& i : s.items) d.add(i.param);
  d.add(s.options.on_host);
  d.add(s.options.schedule.has_value());
  return d.value();
}

Result<Bytes> write(OuterOptimizer::State& s) {
  Writer w;
  w.number(kOuterMagic);
  w.number(digest_of(s));
  w.number(s.steps);
  w.number(s.options.schedule ? s.options.schedule->position() : std::int64_t{0});
  auto optimizer = s.optimizer->save();  // also waits for the stream of the last step
  OURO_TRY(optimizer.status());
  w.bytes(*optimizer);
  for (const auto& i : s.items) {
    Bytes b(i.before.view().bytes());
    OURO_TRY(read_view(i.before.view(), b));
    w.bytes(b);
  }
  return w.take();
}

Status read(OuterOptimizer::State& s, CBytes in) {
  std::optional<Reader> r = Reader::checked(in);
  if (!r || r->number<std::uint64_t>() != kOuterMagic)
    return invalid("load: not the state of an outer optimiser, or damaged");
  if (r->number<std::uint64_t>() != digest_of(s))
    return invalid("load: the state of an outer optimiser with other parameters or options");
  const auto steps = r->number<std::int64_t>(), position = r->number<std::int64_t>();
  const CBytes optimizer = r->bytes();
  std::vector<CBytes> before;
  for (const auto& i : s.items) {
    before.push_back(r->bytes());
    r->whole &= before.back().size() == i.before.view().bytes();
  }
  if (!r->whole || !r->empty()) return invalid("load: the state of an outer optimiser contradicts itself");
  OURO_TRY(s.optimizer->load(optimizer));
  for (std::size_t k = 0; k < before.size(); ++k) OURO_TRY(write_view(s.items[k].before.view(), before[k]));
  s.steps = steps;
  if (s.options.schedule) s.options.schedule->seek(position);
  return {};
}

}  // namespace

Result<Bytes> OuterOptimizer::save() {
  try {
    return write(*state_);
  } catch (const std::bad_alloc&) {
    return no_memory("save");
  }
}
Status OuterOptimizer::load(CBytes in) {
  try {
    return read(*state_, in);
  } catch (const std::bad_alloc&) {
    return no_memory("load");
  }
}

Result<Bytes> LocalSteps::save() {
  try {
    OURO_ASSIGN(auto outer, state_->outer->save());
    Writer w;
    w.number(kLocalMagic);
    w.number(state_->rule);
    w.number(state_->taken);
    w.bytes(outer);
    return w.take();
  } catch (const std::bad_alloc&) {
    return no_memory("save");
  }
}
Status LocalSteps::load(CBytes in) {
  std::optional<Reader> r = Reader::checked(in);
  if (!r || r->number<std::uint64_t>() != kLocalMagic)
    return invalid("load: not the state of local steps, or damaged");
  if (r->number<std::uint64_t>() != state_->rule)
    return invalid("load: the state of local steps with another optimiser or other options");
  const auto taken = r->number<std::int64_t>();
  const CBytes outer = r->bytes();
  if (!r->whole || !r->empty() || taken < 0)
    return invalid("load: the state of local steps contradicts itself");
  OURO_TRY(state_->outer->load(outer));
  state_->taken = taken;
  state_->claim();
  return {};
}

}  // namespace ouro::train

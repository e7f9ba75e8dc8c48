// Memory of optimiser states and their saved form. See optimizer_state.h.
#include "api/train/optim/optimizer_state.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "kernels/arith/floats.h"

namespace ouro::train {

Status OptimizerState::allocate(Device d) {
  OURO_ASSIGN(memory_, ZeroedBytes::make(d, bytes()));
  device = d;
  leave();
  host_step = 0;
  return {};
}

void OptimizerState::join(std::shared_ptr<Cohort> cohort) {
  leave();
  cohort_ = std::move(cohort);
  ++cohort_->members;
}
void OptimizerState::leave() {
  if (!cohort_) return;
  host_step = cohort_->steps;
  --cohort_->members;
  cohort_.reset();
}

Result<std::shared_ptr<OptimizerState>> OptimizerState::make(const View& parameter, int arrays, bool master) {
  auto state = std::make_shared<OptimizerState>();
  state->dtype = parameter.dtype;
  state->count = parameter.count;
  state->arrays = arrays;
  state->master = master;
  OURO_TRY(state->allocate(parameter.device));
  return state;
}

Status OptimizerState::start_master(const View& p) {
  std::vector<std::uint16_t> value(count);
  std::vector<float> copy(count);
  const bool on_host = device.kind == Device::Kind::host;
  if (on_host)
    std::memcpy(value.data(), p.data, p.bytes());
  else
    OURO_TRY(copy_and_wait(device.index, value.data(), p.data, p.bytes()));
  for (std::size_t i = 0; i < count; ++i)
    copy[i] = dtype == DType::bf16 ? arith::widen(arith::from_bits<arith::BFloat16>(value[i]))
                                   : arith::widen(arith::from_bits<arith::Half>(value[i]));
  if (!on_host) return copy_and_wait(device.index, array(arrays), copy.data(), array_bytes());
  std::memcpy(array(arrays), copy.data(), array_bytes());
  return {};
}

Status OptimizerState::move_to(Device to) {
  std::int64_t step = 0;
  Bytes contents;
  OURO_TRY(read(&step, &contents));
  OURO_TRY(allocate(to));
  return write(step, contents);
}

Status OptimizerState::read(std::int64_t* step, Bytes* contents) const {
  contents->resize(static_cast<std::size_t>(all_arrays()) * array_bytes());
  std::byte* to = contents->data();
  *step = host_step;
  if (cohort_) {
    OURO_ASSIGN(*step, cohort_->count());
  }
  if (device.kind == Device::Kind::host) {
    for (int k = 0; k < all_arrays(); ++k) to = std::copy_n(array(k), array_bytes(), to);
    return {};
  }
  for (int k = 0; k < all_arrays(); ++k, to += array_bytes())
    OURO_TRY(copy_and_wait(device.index, to, array(k), array_bytes()));
  return {};
}

Status OptimizerState::write(std::int64_t step, CBytes contents) {
  const std::byte* from = contents.data();
  leave();
  host_step = step;
  if (device.kind == Device::Kind::host) {
    for (int k = 0; k < all_arrays(); ++k, from += array_bytes()) std::copy_n(from, array_bytes(), array(k));
    return {};
  }
  for (int k = 0; k < all_arrays(); ++k, from += array_bytes())
    OURO_TRY(copy_and_wait(device.index, array(k), from, array_bytes()));
  return {};
}

// ---- the saved form -------------------------------------------------------------------------------
// Head; then for each parameter in the order of names: Entry, name, arrays, master; last a checksum of
// everything before it. Little-endian, without gaps.

namespace {

struct Head {
  char magic[8] = {'o', 'u', 'r', 'o', '-', 'o', 'p', 't'};
  std::uint32_t version = 1, family = 0, accum_iter = 1, arrays = 0;
  double lr = 0;
  std::uint64_t parameters = 0;
};
struct Entry {
  std::uint32_t name_bytes = 0;
  std::uint8_t dtype = 0, master = 0;
  std::uint16_t unused = 0;
  std::uint64_t count = 0;
  std::int64_t step = 0;
};
static_assert(sizeof(Head) == 40 && sizeof(Entry) == 24);

void append(Bytes& out, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  out.insert(out.end(), at, at + bytes);
}
bool take(CBytes& in, void* to, std::size_t bytes) {
  if (in.size() < bytes) return false;
  std::memcpy(to, in.data(), bytes);
  in = in.subspan(bytes);
  return true;
}
constexpr auto kAccumAdam = static_cast<std::uint32_t>(gpu::Family::accum_adam);

}  // namespace

Result<Bytes> write_states(const OptimizerState::Kind& kind, double lr, const OptimizerState::Map& states) {
  Bytes out;
  Head head;
  head.family = kind.family, head.accum_iter = kind.accum_iter, head.arrays = kind.arrays;
  head.lr = lr;
  head.parameters = states.size();
  append(out, &head, sizeof head);
  for (const auto& [name, state] : states) {
    Bytes contents;
    Entry entry{.name_bytes = static_cast<std::uint32_t>(name.size()),
                .dtype = static_cast<std::uint8_t>(state->dtype),
                .master = state->master,
                .count = state->count};
    OURO_TRY(state->read(&entry.step, &contents));
    if (kind.family == kAccumAdam &&
        kernels::accumulator_is_zero(entry.step, static_cast<int>(kind.accum_iter)))
      std::fill_n(contents.begin() + static_cast<std::ptrdiff_t>(2 * state->array_bytes()),
                  state->array_bytes(), std::byte{0});
    append(out, &entry, sizeof entry);
    append(out, name.data(), name.size());
    append(out, contents.data(), contents.size());
  }
  const std::uint64_t sum = XXH3_64bits(out.data(), out.size());
  append(out, &sum, sizeof sum);
  return out;
}

Status read_states(CBytes in, const OptimizerState::Kind& kind, double* lr, OptimizerState::Map* states) {
  std::uint64_t sum = 0;
  Head head;
  const Head mine;
  if (in.size() < sizeof head + sizeof sum) return invalid("too short for the state of an optimiser");
  CBytes tail = in.last(sizeof sum);
  (void)take(tail, &sum, sizeof sum);
  in = in.first(in.size() - sizeof sum);
  if (std::memcmp(in.data(), mine.magic, sizeof mine.magic) != 0)
    return invalid("not the state of an optimiser");
  if (XXH3_64bits(in.data(), in.size()) != sum) return invalid("the state of an optimiser is damaged");
  (void)take(in, &head, sizeof head);
  if (head.version != mine.version)
    return invalid(fmt::format("optimiser state of version {}, expected {}", head.version, mine.version));
  if (!(OptimizerState::Kind{head.family, head.accum_iter, head.arrays} == kind))
    return invalid(
        fmt::format("state of another optimiser: family {}, window {}, {} arrays; expected {}, {}, {}",
                    head.family, head.accum_iter, head.arrays, kind.family, kind.accum_iter, kind.arrays));
  const Status damaged = invalid("the state of an optimiser contradicts itself");
  for (std::uint64_t i = 0; i < head.parameters; ++i) {
    Entry entry;
    if (!take(in, &entry, sizeof entry) || in.size() < entry.name_bytes) return damaged;
    std::string name(reinterpret_cast<const char*>(in.data()), entry.name_bytes);
    in = in.subspan(entry.name_bytes);
    const auto dtype = static_cast<DType>(entry.dtype);
    if (entry.dtype >= kDTypes || entry.step < 0) return damaged;
    if (kind.arrays + entry.master > 0 && entry.count > in.size()) return damaged;  // before it is multiplied
    OURO_ASSIGN(auto state, OptimizerState::make({nullptr, entry.count, dtype}, static_cast<int>(kind.arrays),
                                                 entry.master != 0));
    const std::size_t bytes = (kind.arrays + (entry.master ? 1u : 0u)) * state->array_bytes();
    if (in.size() < bytes) return damaged;
    OURO_TRY(state->write(entry.step, in.first(bytes)));
    in = in.subspan(bytes);
    (*states)[std::move(name)] = std::move(state);
  }
  if (!in.empty()) return damaged;
  *lr = head.lr;
  return {};
}

}  // namespace ouro::train

// The saved form of a decentralised trainer: magic number, then fields in a fixed order, last a checksum.
// Little-endian, without gaps. See gossip.hpp.
#include <fmt/format.h>

#include "api/train/common/caught.h"
#include "api/train/common/comparison.h"
#include "api/train/common/saved_form.h"
#include "api/train/gossip/gossip_state.h"
#include "api/train/optim/update.h"

namespace ouro::train {
namespace {

using State = GossipTrainer::State;
constexpr std::uint64_t kMagic = 0x31706f736f727565;  // version 1

Status write_contents(Writer& w, const CView& v) {
  Bytes b(v.bytes());
  OURO_TRY(read_view(v, b));
  w.bytes(b);
  return {};
}

void write_row(Writer& w, const Row& row) {
  w.number(row.self);
  w.number(static_cast<std::uint64_t>(row.in.size()));
  for (const auto& [from, weight] : row.in) w.number(from), w.number(weight);
  w.number(static_cast<std::uint64_t>(row.out.size()));
  for (const int to : row.out) w.number(to);
}
Row read_row(Reader& r) {
  Row row;
  row.self = r.number<double>();
  for (auto n = r.number<std::uint64_t>(); n > 0 && r.whole; --n) {
    const int from = r.number<int>();
    row.in.emplace_back(from, r.number<double>());
  }
  for (auto n = r.number<std::uint64_t>(); n > 0 && r.whole; --n) row.out.push_back(r.number<int>());
  return row;
}

Result<Bytes> write(State& s) {
  Writer w;
  w.number(kMagic);
  w.number(s.digest);
  w.number(s.control.rank());
  w.number(s.steps);
  w.number(s.adaptive);
  if (s.options.scaler) {
    w.number(s.options.scaler->scale);
    w.number(s.options.scaler->clean_steps);
  }
  w.number(static_cast<std::uint64_t>(s.buckets.empty() ? 0 : s.trainable.size()));
  for (const GossipBucket& b : s.buckets)  // the order in which load makes the buckets again
    for (const int p : b.layout.params) w.number(p);
  if (s.buckets.empty())
    for (const int p : s.trainable) OURO_TRY(write_contents(w, s.params[static_cast<std::size_t>(p)].value));
  for (GossipBucket& b : s.buckets) {
    for (const Param& p : b.params) OURO_TRY(write_contents(w, p.value));
    OURO_ASSIGN(auto optimizer, b.optimizer->save());
    w.bytes(optimizer);
    w.number(b.schedule ? b.schedule->position() : std::int64_t{0});
    w.number(static_cast<std::uint8_t>(b.pending));
    write_row(w, b.row);
    w.number(static_cast<std::uint8_t>(b.pair.send_x));
    for (const double x : {b.pair.x_self, b.pair.x_in, b.pair.y_self, b.pair.y_in}) w.number(x);
    OURO_TRY(write_contents(w, b.message.view()));
    if (b.second) OURO_TRY(write_contents(w, b.second.view()));
  }
  return w.take();
}

/// The contents of a saved state, read completely into a separate object before the trainer changes.
struct Loaded {
  explicit Loaded(const GossipOptions& o) : state(o) {}
  State state;
  std::vector<std::pair<View, CBytes>> contents;
};

Result<std::unique_ptr<Loaded>> read(State& s, CBytes in) {
  OURO_TRY(s.before_steps("load"));
  if (in.size() < 2 * sizeof(std::uint64_t)) return invalid("load: too short for the state of a trainer");
  std::optional<Reader> checked = Reader::checked(in);
  if (!checked) return invalid("load: not the state of a trainer, or damaged");
  Reader& r = *checked;
  if (r.number<std::uint64_t>() != kMagic) return invalid("load: not the state of a trainer");
  if (r.number<std::uint64_t>() != s.digest)
    return invalid("load: the state of a trainer with other parameters, topology or options");
  if (const int rank = r.number<int>(); rank != s.control.rank())
    return invalid(fmt::format("load: the state of rank {}; this is rank {}", rank, s.control.rank()));

  const Status contradicts = invalid("load: the state of the trainer contradicts itself");
  auto loaded = std::make_unique<Loaded>(s.options);
  State& made = loaded->state;
  made.params = s.params, made.trainable = s.trainable;
  made.expect(s.params.size());
  made.lanes.resize(s.lanes.size());  // only their number matters
  made.steps = r.number<std::int64_t>();
  made.adaptive = r.number<double>();
  if (made.options.scaler) {
    made.options.scaler->scale = r.number<double>();
    made.options.scaler->clean_steps = r.number<std::int64_t>();
  }
  std::vector<int> order;
  for (auto n = r.number<std::uint64_t>(); n > 0 && r.whole; --n) order.push_back(r.number<int>());
  if (!r.whole || (!order.empty() && order.size() != s.trainable.size())) return contradicts;
  const auto expect = [&](const View& v) {
    const CBytes b = r.bytes();
    loaded->contents.emplace_back(v, b);
    r.whole &= b.size() == v.bytes();
  };
  if (order.empty())
    for (const int p : s.trainable) expect(s.params[static_cast<std::size_t>(p)].value);
  else
    OURO_TRY(made.make_buckets(order));
  for (GossipBucket& b : made.buckets) {
    for (const Param& p : b.params) expect(p.value);
    const CBytes optimizer = r.bytes();
    if (!r.whole) return contradicts;
    OURO_TRY(b.optimizer->load(optimizer));
    const auto position = r.number<std::int64_t>();
    if (b.schedule) b.schedule->seek(position);
    b.pending = r.number<std::uint8_t>() != 0;
    b.row = read_row(r);
    b.pair.send_x = r.number<std::uint8_t>() != 0;
    for (double* x : {&b.pair.x_self, &b.pair.x_in, &b.pair.y_self, &b.pair.y_in}) *x = r.number<double>();
    expect(b.message.view());
    if (b.second) expect(b.second.view());
    b.unready = b.params.size();
  }
  if (!r.whole || !r.empty()) return contradicts;
  return loaded;
}

}  // namespace

Result<Bytes> GossipTrainer::save() {
  State& s = *state_;
  OURO_TRY(s.usable());
  OURO_TRY(s.between_steps("save"));
  if (Status done = s.settle(); !done.ok()) return s.fail(std::move(done));
  return caught([&] { return write(s); }, "save: no memory for the state of the trainer");
}

Status GossipTrainer::load(CBytes in) {
  State& s = *state_;
  OURO_TRY(s.usable());
  auto loaded = caught([&] { return read(s, in); }, "load: no memory for the state of the trainer");
  Claim claims[] = {{"the state of another step", 0, true}, {"a state with another order of buckets"}};
  if (loaded.ok()) {
    claims[0].value = static_cast<std::uint64_t>((*loaded)->state.steps);
    Digest order;
    for (const GossipBucket& b : (*loaded)->state.buckets)
      for (const int p : b.layout.params) order.add(p);
    claims[1].value = order.value();
  }
  OURO_TRY(compare(s.control, "load", claims, loaded.status()));
  for (const auto& [view, bytes] : (*loaded)->contents)
    if (Status written = write_view(view, bytes); !written.ok()) return s.fail(std::move(written));
  State& made = (*loaded)->state;
  s.steps = made.steps, s.adaptive = made.adaptive;
  s.options.scaler = made.options.scaler;
  s.params = std::move(made.params);
  s.buckets = std::move(made.buckets);
  s.bucket_of = std::move(made.bucket_of);
  s.layouts = std::move(made.layouts);
  s.pool = std::move(made.pool);
  return {};
}

}  // namespace ouro::train

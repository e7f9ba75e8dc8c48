// The C++ interface on top of the runtime: contexts, memory and groups. Joining a job is in init.cc, streams
// are in streams.cc, operations in operations.cc.
#include "ouro/ouro.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "api/src/not_in_batch.h"
#include "runtime/context/context.h"
#include "runtime/core/deadline.h"
#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"
#include "runtime/core/wait.h"
#include "runtime/group/group.h"

namespace ouro {

const char* version() { return "0.1.0"; }
void log_warning(std::string_view text) { OURO_WARN("{}", text); }

InterruptibleWaits::InterruptibleWaits(Status (*ask)(void*), void* data) {
  const Question before = ask_while_waiting({ask, data});
  before_ = before.ask;
  data_before_ = before.data;
}
InterruptibleWaits::~InterruptibleWaits() { ask_while_waiting({before_, data_before_}); }

// ---- memory ---------------------------------------------------------------------------------------

namespace {

Memory handle(std::shared_ptr<rt::Allocation> a) {
  std::byte* const data = a->data();
  const std::size_t bytes = a->bytes();
  const Device device = a->device();
  return Memory(std::move(a), data, bytes, device);
}

/// Collective. Ok if all ranks succeeded; otherwise this rank's own error, or an error that names the lowest
/// failed rank.
Status all_well(Group& g, const Status& mine) {
  const std::int32_t well = mine.ok() ? g.size() : g.rank();
  std::int32_t first = 0;
  OURO_TRY(
      all_reduce(g, std::span<const std::int32_t>(&well, 1), std::span(&first, 1), ReduceOp::min, kAuto));
  if (!mine.ok() || first == g.size()) return mine;
  return {Reason::resource,
          fmt::format("alloc_shared: rank {} could not have or map the memory; its own error says why",
                      g.ranks()[static_cast<std::size_t>(first)])};
}

}  // namespace

Result<std::vector<Memory>> Group::alloc_shared(std::size_t bytes) try {
  if (!impl_) return empty_group();
  OURO_TRY(not_in_batch("alloc_shared"));
  if (!impl_->one_host())
    return unsupported(fmt::format(
        "alloc_shared: the ranks of group '{}' are on several hosts, which share no memory", name()));
  rt::Context& context = *impl_->context();
  std::shared_ptr<rt::Allocation> mine;
  const Status allocated = [&]() -> Status {
    if (bytes == 0) return {};
    OURO_ASSIGN(mine, context.allocate(bytes));
    return {};
  }();
  OURO_TRY(all_well(*this, allocated));
  const MemoryRef ref = mine ? context.host_memory().reference_to(mine->data(), bytes) : MemoryRef{};
  const std::uint64_t words[] = {ref.id, ref.offset, bytes};
  std::vector<std::uint64_t> all(std::size(words) * static_cast<std::size_t>(size()));
  OURO_TRY(all_gather(*this, std::span<const std::uint64_t>(words), std::span(all), kAuto));
  std::vector<Memory> shared;
  const Status mapped = [&]() -> Status {
    for (std::size_t r = 0; r < ranks().size(); ++r) {
      const std::uint64_t* const of = &all[std::size(words) * r];
      if (static_cast<int>(r) == rank() || of[2] == 0) {
        // The allocation may be longer: whole pages.
        shared.push_back(of[2] == 0 ? Memory() : Memory(mine, mine->data(), bytes));
        continue;
      }
      OURO_ASSIGN(auto at, context.host_memory().resolve(ranks()[r], {of[0], of[1]}, of[2]));
      shared.emplace_back(std::move(at.keep), at.data, of[2]);
    }
    return {};
  }();
  OURO_TRY(all_well(*this, mapped));
  return shared;
} catch (const std::exception&) {  // fails the group: the other ranks wait for this one
  return impl_->out_of_memory();
}

// ---- contexts -------------------------------------------------------------------------------------

Context::Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&& o) noexcept {
  if (this != &o) {
    leave();
    impl_ = std::move(o.impl_);
    world_ = std::move(o.world_);
  }
  return *this;
}
Context::Context(std::shared_ptr<rt::Context> impl) : impl_(std::move(impl)) {}
Context::~Context() { leave(); }
void Context::leave() {
  if (world_ && world_->valid() && world_->impl()->would_wait_for_itself()) {
    world_->abort("its context was destroyed with operations in flight");
    rt::run_aside([world = std::shared_ptr<Group>(std::move(world_)), impl = std::move(impl_)]() mutable {
      world.reset();
      impl->leave();
    });
    return;
  }
  if (world_ && world_->valid() && !impl_->inherited()) world_->impl()->end_in_flight();
  world_.reset();
  if (impl_) impl_->leave();
}

int Context::rank() const { return impl_ ? impl_->rank() : 0; }
int Context::world_size() const { return impl_ ? impl_->size() : 1; }
int Context::local_rank() const { return impl_ ? impl_->spec().local_rank : 0; }
int Context::local_world_size() const { return impl_ ? impl_->spec().local_size : 1; }
Device Context::device() const {
  return impl_ && impl_->spec().gpu >= 0 ? Device{Device::Kind::cuda, impl_->spec().gpu} : Device{};
}
int Context::hosts() const {
  int hosts = 1;
  for (int r = 0; r < world_size(); ++r) hosts = std::max(hosts, host(r) + 1);
  return hosts;
}
int Context::host(int world_rank) const {
  if (world_rank < 0 || world_rank >= world_size()) return -1;
  return impl_ ? impl_->members().peer(world_rank).node : 0;
}
Milliseconds Context::deadline() const { return impl_ ? impl_->spec().deadline : InitOptions{}.deadline; }
bool Context::deadline_chosen() const { return impl_ && impl_->spec().deadline_chosen; }
Group& Context::world() {
  if (!world_) world_ = std::make_unique<Group>();  // empty: every call on it reports that
  return *world_;
}

namespace {
Status check(const GroupOptions& o) {
  if (o.deadline.count() < 0) return invalid("the deadline of a group is negative");
  if (o.numerics > Numerics::canonical)
    return invalid(
        fmt::format("numerics {} of a group; expected one of Numerics", static_cast<int>(o.numerics)));
  return {};
}
}  // namespace

Result<Group> Context::group(std::span<const int> ranks, std::string tag, const GroupOptions& o) try {
  if (!impl_) return invalid("an empty context has no groups");
  OURO_TRY(check(o));
  rt::GroupSpec spec;
  spec.ranks.assign(ranks.begin(), ranks.end());
  spec.name = std::move(tag);
  const std::uint64_t h = rt::group_key(impl_->spec().join.job, spec.ranks, spec.name, 0, 0);
  spec.key =
      rt::group_key(impl_->spec().join.job, spec.ranks, spec.name, 0, 1 + impl_->records().instance(h));
  spec.deadline = o.deadline.count() > 0 ? o.deadline : impl_->spec().deadline;
  spec.numerics = o.numerics == Numerics::inherit ? impl_->spec().numerics : o.numerics;
  OURO_ASSIGN(auto g, rt::Group::create(impl_, std::move(spec)));
  return Group(std::move(g));
} catch (const std::exception&) {
  return no_memory();
}

Result<Memory> Context::alloc(std::size_t bytes, Device device) try {
  if (!impl_) return invalid("an empty context has no memory");
  OURO_ASSIGN(auto a, impl_->allocate(bytes, device));
  return handle(std::move(a));
} catch (const std::exception&) {
  return no_memory();
}
Result<Registration> Context::register_memory(const void* data, std::size_t bytes, Device device) try {
  if (!impl_) return invalid("an empty context registers no memory");
  OURO_ASSIGN(auto r, impl_->register_memory(data, bytes, device));
  return Registration(std::move(r), data, bytes);
} catch (const std::exception&) {
  return no_memory();
}
Status Registration::release(Milliseconds wait) try {
  return impl_ ? impl_->release(bounded(wait)) : Status();
} catch (const std::exception&) {
  return no_memory();
}
bool Context::active() const { return impl_ && impl_->active(); }
Status Context::close() {
  if (world_ && world_->valid()) OURO_TRY(world_->close());
  if (impl_) impl_->close();
  return {};
}

// ---- groups ---------------------------------------------------------------------------------------

int Group::rank() const { return impl_ ? impl_->rank() : -1; }
int Group::size() const { return impl_ ? impl_->size() : 0; }
const std::string& Group::name() const {
  static const std::string none;
  return impl_ ? impl_->spec().name : none;
}
std::uint64_t Group::generation() const { return impl_ ? impl_->spec().generation : 0; }
std::span<const int> Group::ranks() const {
  return impl_ ? std::span<const int>(impl_->spec().ranks) : std::span<const int>();
}
std::optional<int> Group::from_global(int world_rank) const {
  return impl_ ? impl_->from_global(world_rank) : std::nullopt;
}
Milliseconds Group::deadline() const { return impl_ ? bounded(impl_->spec().deadline) : Milliseconds(0); }
bool Group::failed() const { return impl_ && (impl_->failed() || impl_->context()->inherited()); }
Status Group::status() const {
  if (!impl_) return empty_group();
  return impl_->context()->inherited() ? impl_->context()->usable() : impl_->status();
}
void Group::abort(std::string why) {
  if (impl_) impl_->abort(why);
}
Status Group::close() { return impl_ ? impl_->close() : empty_group(); }

Result<Group> Group::split(int color, int key, const GroupOptions& o) try {
  if (!impl_) return empty_group();
  OURO_TRY(not_in_batch("split"));
  OURO_TRY(check(o));
  if (color < -1) return invalid(fmt::format("color {}; expected 0 or more, or -1 for no group", color));
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(size()));
  const std::int32_t mine[] = {color, key};
  OURO_TRY(all_gather(*this, std::span<const std::int32_t>(mine), std::span<std::int32_t>(all), kAuto));
  if (color == -1) return Group();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r)
    if (all[2 * static_cast<std::size_t>(r)] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[2 * static_cast<std::size_t>(a) + 1] < all[2 * static_cast<std::size_t>(b) + 1];
  });
  const std::string child = fmt::format("{}/{}", name(), color);
  std::vector<int> world;
  for (int m : members) world.push_back(impl_->spec().ranks[static_cast<std::size_t>(m)]);
  const std::uint64_t h =
      rt::group_key(impl_->context()->spec().join.job, world, child, impl_->spec().key, 0);
  OURO_ASSIGN(auto g, impl_->derive(members, child, 1 + impl_->context()->records().instance(h),
                                    impl_->spec().generation, o.deadline, o.numerics));
  return Group(std::move(g));
} catch (const std::exception&) {  // fails the group: the other ranks wait for this one
  return impl_->out_of_memory();
}

Result<Group> Group::shrink(ShrinkReport* report) try {
  if (!impl_) return empty_group();
  rt::ShrinkOutcome outcome;
  OURO_ASSIGN(auto g, impl_->shrink(&outcome));
  if (report) *report = {std::move(outcome.dead), outcome.resume_seq};
  return Group(std::move(g));
} catch (const std::exception&) {
  return no_memory();
}

Result<std::string> Group::explain(Collective c, std::size_t count, DType t, ReduceOp op, Numerics numerics,
                                   Device device) const try {
  if (!impl_) return empty_group();
  if (c == Collective::none || static_cast<int>(c) >= kCollectives)
    return invalid(fmt::format("explain: there is no collective {}", static_cast<int>(c)));
  if (static_cast<int>(t) >= kDTypes)
    return invalid(fmt::format("explain: element type {} does not exist", static_cast<int>(t)));
  if (numerics > Numerics::canonical)
    return invalid(fmt::format("explain: numerics {} do not exist", static_cast<int>(numerics)));
  rt::Operation o;
  o.collective = c, o.op = op, o.numerics = numerics;
  // Two buffers that do not overlap, with the lengths that the collective needs; they are never accessed.
  static const char in = 0;
  std::size_t all = 0, bytes = 0;
  if (__builtin_mul_overflow(count, static_cast<std::size_t>(size()), &all) ||
      __builtin_mul_overflow(all, size_of(t), &bytes) || bytes > rt::kMaxBytes)
    return invalid(
        fmt::format("explain: {} elements for each of {} ranks overflow an address", count, size()));
  const CollectiveTraits traits = traits_of(c);
  const auto out = reinterpret_cast<std::uintptr_t>(&in) + std::max(bytes, std::size_t{1});
  o.in = {&in, traits.in.many() ? all : count, t, device};
  o.out = {reinterpret_cast<void*>(out), traits.out.many() ? all : count, t, device};
  OURO_TRY(rt::check(o, rank(), size()));
  return impl_->explain(o);
} catch (const std::exception&) {
  return no_memory();
}

}  // namespace ouro

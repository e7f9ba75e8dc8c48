// The C++ interface over the runtime: handles, contexts and groups. Operations are in operations.cc.
#include "ouro/ouro.hpp"

#include <fmt/format.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <thread>

#include "runtime/context.h"
#include "runtime/core/env.h"
#include "runtime/core/log.h"
#include "runtime/device/stream.h"
#include "runtime/group.h"
#include "runtime/launch.h"

namespace ouro {
namespace {

constexpr char kIdMagic[8] = {'o', 'u', 'r', 'o', '-', 'i', 'd', '1'};

Result<wire::Nonce> nonce_of(const UniqueId& id) {
  wire::Nonce n;
  if (std::memcmp(id.bytes, kIdMagic, sizeof kIdMagic) != 0)
    return invalid(
        "unique id made by another library, or not made at all (expected one from UniqueId::create)");
  std::memcpy(n.data(), id.bytes + sizeof kIdMagic, n.size());
  return n;
}

/// A launcher's words for the job become its nonce. Only processes of one user can meet under it (peer
/// credentials).
wire::Nonce nonce_of(const std::string& job_key) {
  const std::string text = fmt::format("ouro job {} of user {}", job_key, geteuid());
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  wire::Nonce n;
  std::copy_n(digest, n.size(), n.begin());
  return n;
}

Milliseconds seconds(double s) { return Milliseconds(static_cast<std::int64_t>(s * 1000)); }

/// What makes this host this one: ranks that see the same can share memory.
std::string own_host_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot;
  in >> boot;
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) net.st_ino = 0;
  return fmt::format("{}/{}", boot, net.st_ino);
}

/// For a job on several hosts; where it is on one, nothing of this is looked at.
Status network_of(const InitOptions& o, rt::ContextSpec* spec) {
  if (!o.world_size || o.local_size.value_or(*o.world_size) >= *o.world_size) return {};
  auto rendezvous = env::text("OURO_RENDEZVOUS"), host = env::text("OURO_HOSTID"), fabric = env::text("OURO_FABRIC"),
       security = env::text("OURO_SECURITY");
  auto connections = env::integer("OURO_TCP_CONNECTIONS");
  auto checks = env::flag("OURO_CHECKSUM");
  auto warn = env::real("OURO_SILENT_WARN"), fail = env::real("OURO_SILENT_FAIL");
  for (const Status& s : {rendezvous.status(), host.status(), fabric.status(), security.status(), connections.status(),
                          checks.status(), warn.status(), fail.status()})
    OURO_TRY(s);
  rt::NetworkOptions net;
  net.rendezvous = !o.rendezvous.empty() ? o.rendezvous : rendezvous->value_or("");
  if (net.rendezvous.empty())
    return invalid(fmt::format(
        "{} of {} ranks are on this host, and nothing says where the hosts meet: set OURO_RENDEZVOUS=HOST:PORT, "
        "an address of rank 0's host, on all of them",
        *o.local_size, *o.world_size));
  net.host_id = !o.host_id.empty() ? o.host_id : host->value_or("");
  if (net.host_id.empty()) net.host_id = own_host_id();
  net.generation = o.generation;
  net.fabric = **fabric == "tcp" ? "tcp" : "ucx";
  net.tls = **security == "tls";
  net.connections = static_cast<int>(**connections);
  net.checksums = **checks;
  net.silent_warn = seconds(**warn);
  net.silent_fail = seconds(**fail);
  spec->network = std::move(net);
  return {};
}

/// Options, with the environment's word where it has one.
Result<rt::ContextSpec> spec_of(const InitOptions& o) {
  env::warn_of_complaints();
  rt::ContextSpec spec;
  auto deadline = env::real("OURO_DEADLINE"), late = env::real("OURO_LATE"),
       joining = env::real("OURO_JOIN_DEADLINE");
  auto slot = env::integer("OURO_SLOT_BYTES"), page = env::integer("OURO_PAGE_BYTES"),
       spin = env::integer("OURO_SPIN_US");
  auto numerics = env::text("OURO_NUMERICS"), algorithm = env::text("OURO_ALGO"), way = env::text("OURO_GPU_WAY");
  for (const Status& s : {deadline.status(), late.status(), joining.status(), slot.status(), page.status(),
                          spin.status(), numerics.status(), algorithm.status(), way.status()})
    OURO_TRY(s);
  const InitOptions defaults;
  const auto pick = [](Milliseconds option, Milliseconds fallback, const std::optional<double>& value,
                       const char* name) {
    return value && (option == fallback || std::getenv(name)) ? seconds(*value) : option;
  };
  spec.deadline = pick(o.deadline, defaults.deadline, *deadline, "OURO_DEADLINE");
  spec.join.late_after = pick(o.late_after, defaults.late_after, *late, "OURO_LATE");
  spec.join.deadline = pick(o.join_deadline, defaults.join_deadline, *joining, "OURO_JOIN_DEADLINE");
  if (spec.deadline.count() <= 0 || spec.join.deadline.count() <= 0)
    return invalid("deadlines must be positive");
  spec.numerics = o.numerics != Numerics::inherit ? o.numerics
                  : **numerics == "canonical"     ? Numerics::canonical
                                                  : Numerics::fast;
  if (*slot) spec.slot_bytes = static_cast<std::uint32_t>(**slot);
  if (*page) spec.page_bytes = static_cast<std::size_t>(**page);
  auto rules = rt::rules_in_force();
  if (!rules.ok()) return rules.status();
  spec.rules = std::move(*rules);
  if (*spin) spec.spin = std::chrono::microseconds(**spin);
  spec.gpu_way = **way;
  OURO_TRY(network_of(o, &spec));
  // Each is part of what ranks must agree on before they can read what the others write.
  spec.join.settings = fmt::format(
      "OURO_SLOT_BYTES={} OURO_PAGE_BYTES={} OURO_NUMERICS={} OURO_ALGO={} OURO_GPU_WAY={} rules={:016x}",
      spec.slot_bytes, spec.page_bytes, name(spec.numerics), algorithm->value_or(""), spec.gpu_way,
      spec.rules.digest());
  if (spec.network)
    spec.join.settings += fmt::format(" OURO_FABRIC={} OURO_SECURITY={} OURO_TCP_CONNECTIONS={}", spec.network->fabric,
                                      spec.network->tls ? "tls" : "auth", spec.network->connections);
  return spec;
}

}  // namespace

const char* version() { return "0.1.0"; }

Result<UniqueId> UniqueId::create() {
  UniqueId id;
  std::memcpy(id.bytes, kIdMagic, sizeof kIdMagic);
  if (RAND_bytes(id.bytes + sizeof kIdMagic, 16) != 1)
    return Status(Reason::resource, "no random numbers to be had");
  return id;
}

// ---- work, streams, events ------------------------------------------------------------------------

Work::Work() = default;
bool Work::test() const { return !state_ || state_->done(); }
Status Work::status() const { return state_ ? state_->outcome() : Status{}; }
Status Work::wait(Milliseconds deadline) const {
  if (!state_) return {};
  if (deadline.count() < 0)
    state_->wait();
  else if (!state_->wait_until(Clock::now() + deadline))
    return {Reason::deadline,
            fmt::format("the operation has not ended within {} ms; it goes on", deadline.count())};
  return state_->outcome();
}
void Work::then(std::function<void(const Status&)> f) const {
  if (state_)
    state_->then(std::move(f));
  else
    f(Status{});
}

Result<Stream> Stream::create(Priority priority, std::string name) {
  const int nice = priority == Priority::low ? 10 : priority == Priority::high ? -5 : 0;
  try {
    return Stream(std::make_shared<rt::HostStream>(name.empty() ? "ouro-stream" : std::move(name), nice));
  } catch (const std::exception& e) {
    return Status(Reason::resource, fmt::format("no thread for a stream: {}", e.what()));
  }
}
Result<Stream> Stream::create(Device device, Priority priority, std::string name) {
  if (device.kind == Device::Kind::host) return create(priority, std::move(name));
  const int level = priority == Priority::low ? -1 : priority == Priority::high ? 1 : 0;
  auto made = rt::GpuStream::create(device.index, level);
  if (!made.ok()) return made.status();
  return Stream(std::move(*made));
}
Result<Stream> Stream::cuda(void* cuda_stream, int device) {
  auto wrapped = rt::GpuStream::wrap(device, cuda_stream);
  if (!wrapped.ok()) return wrapped.status();
  return Stream(std::move(*wrapped));
}
Device Stream::device() const {
  return impl_ && impl_->gpu() ? Device{Device::Kind::cuda, impl_->gpu()->device()} : Device{};
}
void* Stream::cuda_handle() const { return impl_ && impl_->gpu() ? impl_->gpu()->get().handle : nullptr; }
Work Stream::run(std::function<Status()> f) const {
  if (impl_) return Work(impl_->enqueue(std::move(f)));
  auto state = std::make_shared<rt::WorkState>();
  state->complete(f());
  return Work(std::move(state));
}
Status Stream::synchronize(Milliseconds deadline) const {
  const auto last = impl_ ? impl_->last() : nullptr;
  return last ? Work(last).wait(deadline) : Status{};
}

Event::Event() : state_(std::make_shared<rt::EventState>()) {}
void Event::record(const Stream& s) {
  std::lock_guard lock(state_->mutex);
  state_->mark = s.valid() ? s.impl()->last() : nullptr;
}
void Event::wait_on(const Stream& s) const {
  std::shared_ptr<rt::WorkState> mark;
  {
    std::lock_guard lock(state_->mutex);
    mark = state_->mark;
  }
  if (!mark) return;
  if (!s.valid()) return mark->wait();  // no stream: the caller is the queue
  s.impl()->after(std::move(mark));
}
Status Event::synchronize(Milliseconds deadline) const {
  std::shared_ptr<rt::WorkState> mark;
  {
    std::lock_guard lock(state_->mutex);
    mark = state_->mark;
  }
  return mark ? Work(mark).wait(deadline) : Status{};
}
bool Event::query() const {
  std::lock_guard lock(state_->mutex);
  return !state_->mark || state_->mark->done();
}

Result<StreamPool> StreamPool::create(int size, Priority priority, Device device) {
  if (size < 1 || size > 256) return invalid(fmt::format("a pool of {} streams; expected 1 to 256", size));
  StreamPool pool;
  for (int i = 0; i < size; ++i) {
    auto s = Stream::create(device, priority, fmt::format("ouro-pool-{}", i));
    if (!s.ok()) return s.status();
    pool.streams_.push_back(std::move(*s));
  }
  return pool;
}
Stream StreamPool::next() { return streams_[turn_++ % streams_.size()]; }
Stream StreamPool::by_key(std::uint64_t key) const { return streams_[key % streams_.size()]; }
void StreamPool::after(const Stream& s) const {
  Event mark;
  mark.record(s);
  for (const Stream& mine : streams_) mark.wait_on(mine);
}
void StreamPool::before(const Stream& s) const {
  for (const Stream& mine : streams_) {
    Event mark;
    mark.record(mine);
    mark.wait_on(s);
  }
}
Status StreamPool::synchronize() const {
  Status first;
  for (const Stream& s : streams_)
    if (Status one = s.synchronize(); first.ok()) first = one;
  return first;
}

// ---- memory ---------------------------------------------------------------------------------------

void* Memory::data() const { return impl_ ? impl_->data() : nullptr; }
std::size_t Memory::bytes() const { return impl_ ? impl_->bytes() : 0; }
Device Memory::device() const { return impl_ ? impl_->device() : Device{}; }

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
  world_.reset();  // ends what is in flight
  if (impl_) impl_->close();
}

Result<Context> Context::create(const InitOptions& o) {
  if (!o.rank || !o.world_size)
    return invalid("rank and world_size must be given both, or neither (then: from_env)");
  if (*o.world_size < 1 || *o.world_size > static_cast<int>(wire::kMaxWorld))
    return invalid(fmt::format("world size {}; expected 1 to {}", *o.world_size, wire::kMaxWorld));
  if (*o.rank < 0 || *o.rank >= *o.world_size)
    return invalid(fmt::format("rank {} of {}; expected 0 to {}", *o.rank, *o.world_size, *o.world_size - 1));
  auto spec = spec_of(o);
  if (!spec.ok()) return spec.status();
  spec->join.rank = *o.rank;
  spec->join.world = *o.world_size;
  spec->local_rank = o.local_rank.value_or(*o.rank);
  spec->local_size = o.local_size.value_or(*o.world_size);
  if (o.gpu)
    spec->gpu = *o.gpu;
  else if (const int gpus = gpu::gpu().devices(); gpus > 0)
    spec->gpu = spec->local_rank % gpus;
  if (spec->gpu < -1) return invalid(fmt::format("GPU {}; expected a device, or -1 for none", spec->gpu));
  if (spec->local_size < 1 || spec->local_rank < 0 || spec->local_rank >= spec->local_size)
    return invalid(fmt::format("local rank {} of {}", spec->local_rank, spec->local_size));
  if (o.id) {
    auto nonce = nonce_of(*o.id);
    if (!nonce.ok()) return nonce.status();
    spec->join.job = *nonce;
  } else if (spec->join.world == 1) {
    auto id = UniqueId::create();
    if (!id.ok()) return id.status();
    spec->join.job = *nonce_of(*id);
  } else {
    return invalid(
        "a job of several ranks needs an id (UniqueId::create on one rank, handed to all), or from_env");
  }
  try {
    auto impl = rt::Context::create(*spec);
    if (!impl.ok()) return impl.status();
    Context c(std::move(*impl));
    std::vector<int> all(static_cast<std::size_t>(c.world_size()));
    for (int r = 0; r < c.world_size(); ++r) all[static_cast<std::size_t>(r)] = r;
    auto world = c.group(all, "world");
    if (!world.ok()) return world.status();
    c.world_ = std::make_unique<Group>(std::move(*world));
    return c;
  } catch (const std::exception& e) {
    return Status(Reason::resource, fmt::format("joining failed: {}", e.what()));
  }
}

Result<Context> Context::from_env(const InitOptions& o) {
  if (o.rank || o.world_size) return create(o);
  auto launch = discover();
  if (!launch.ok()) return launch.status();
  InitOptions full = o;
  full.rank = launch->rank, full.world_size = launch->size;
  if (full.rendezvous.empty()) full.rendezvous = launch->rendezvous;
  if (full.generation == 0) full.generation = static_cast<std::uint32_t>(launch->generation);
  if (!full.local_rank) full.local_rank = launch->local_rank;
  if (!full.local_size) full.local_size = launch->local_size;
  if (!full.id && launch->size > 1) {
    full.id.emplace();
    const wire::Nonce n = nonce_of(launch->job_key);
    std::memcpy(full.id->bytes, kIdMagic, sizeof kIdMagic);
    std::memcpy(full.id->bytes + sizeof kIdMagic, n.data(), n.size());
  }
  return create(full);
}

Result<std::vector<Context>> Context::threads(int n, const InitOptions& o) {
  if (n < 1 || n > 256) return invalid(fmt::format("{} ranks as threads; expected 1 to 256", n));
  auto id = UniqueId::create();
  if (!id.ok()) return id.status();
  std::vector<Context> contexts(static_cast<std::size_t>(n));
  std::vector<Status> outcomes(static_cast<std::size_t>(n));
  {
    std::vector<std::thread> joiners;  // joining is collective: all at once
    for (int r = 0; r < n; ++r)
      joiners.emplace_back([&, r] {
        InitOptions mine = o;
        mine.rank = r, mine.world_size = n, mine.id = *id;
        mine.local_rank.reset(), mine.local_size.reset();
        auto c = create(mine);
        const auto i = static_cast<std::size_t>(r);
        if (c.ok())
          contexts[i] = std::move(*c);
        else
          outcomes[i] = c.status();
      });
    for (auto& t : joiners) t.join();
  }
  for (const Status& s : outcomes) OURO_TRY(s);
  return contexts;
}

int Context::rank() const { return impl_ ? impl_->rank() : 0; }
int Context::world_size() const { return impl_ ? impl_->size() : 1; }
int Context::local_rank() const { return impl_ ? impl_->spec().local_rank : 0; }
int Context::local_world_size() const { return impl_ ? impl_->spec().local_size : 1; }
Device Context::device() const {
  return impl_ && impl_->spec().gpu >= 0 ? Device{Device::Kind::cuda, impl_->spec().gpu} : Device{};
}
Group& Context::world() {
  if (!world_) world_ = std::make_unique<Group>();  // every call on it says that it is empty
  return *world_;
}

Result<Group> Context::group(std::span<const int> ranks, std::string tag, const GroupOptions& o) {
  if (!impl_) return invalid("an empty context has no groups");
  rt::GroupSpec spec;
  spec.ranks.assign(ranks.begin(), ranks.end());
  spec.name = std::move(tag);
  const std::uint64_t h = rt::group_key(impl_->spec().join.job, spec.ranks, spec.name, 0, 0);
  spec.key = rt::group_key(impl_->spec().join.job, spec.ranks, spec.name, 0, 1 + impl_->instance(h));
  spec.deadline = o.deadline.count() > 0 ? o.deadline : impl_->spec().deadline;
  spec.numerics = o.numerics == Numerics::inherit ? impl_->spec().numerics : o.numerics;
  auto g = rt::Group::create(impl_, std::move(spec));
  if (!g.ok()) return g.status();
  return Group(std::move(*g));
}

Result<Memory> Context::alloc(std::size_t bytes, Device device) {
  if (!impl_) return invalid("an empty context has no memory");
  auto a = impl_->allocate(bytes, device);
  if (!a.ok()) return a.status();
  return Memory(std::move(*a));
}
bool Context::active() const { return impl_ && impl_->active(); }
Status Context::close() {
  Status s;
  if (world_ && world_->valid()) s = world_->close();
  if (impl_) impl_->close();
  return s;
}

// ---- groups ---------------------------------------------------------------------------------------

Group::Group() = default;
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::Group(std::shared_ptr<rt::Group> impl) : impl_(std::move(impl)) {}
Group::~Group() = default;

namespace {
Status empty_group() { return invalid("the group is an empty handle"); }
}  // namespace

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
Status Group::status() const { return impl_ ? impl_->status() : empty_group(); }
void Group::abort(std::string why) {
  if (impl_) impl_->abort(why);
}
Status Group::close() { return impl_ ? impl_->close() : empty_group(); }

Result<Group> Group::split(int color, int key, const GroupOptions& o) {
  if (!impl_) return empty_group();
  if (color < -1) return invalid(fmt::format("color {}; expected 0 or more, or -1 for no group", color));
  std::vector<std::int32_t> all(2 * static_cast<std::size_t>(size()));
  const std::int32_t mine[] = {color, key};
  OURO_TRY(all_gather(*this, std::span<const std::int32_t>(mine), std::span<std::int32_t>(all)));
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
  auto g = impl_->derive(members, child, 1 + impl_->context()->instance(h), impl_->spec().generation,
                         o.deadline, o.numerics);
  if (!g.ok()) return g.status();
  return Group(std::move(*g));
}

Result<Group> Group::shrink(ShrinkReport* report) {
  if (!impl_) return empty_group();
  rt::ShrinkOutcome outcome;
  auto g = impl_->shrink(&outcome);
  if (!g.ok()) return g.status();
  if (report) *report = {std::move(outcome.dead), outcome.resume_seq};
  return Group(std::move(*g));
}

Result<std::string> Group::explain(Collective c, std::size_t count, DType t, ReduceOp op,
                                   Numerics numerics, Device device) const {
  if (!impl_) return empty_group();
  rt::Operation o;
  o.collective = c, o.op = op, o.numerics = numerics;
  // Two buffers that do not overlap, of the lengths that the collective wants; they are not touched.
  static const char in = 0, out = 0;
  const std::size_t all = count * static_cast<std::size_t>(size());
  const bool many_in =
      c == Collective::all_to_all || c == Collective::reduce_scatter || c == Collective::scatter;
  const bool many_out = c == Collective::all_to_all || c == Collective::all_gather || c == Collective::gather;
  o.in = {&in, many_in ? all : count, t, device};
  o.out = {const_cast<char*>(&out), many_out ? all : count, t, device};
  return impl_->explain(o);
}

}  // namespace ouro

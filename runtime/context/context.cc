// Contexts: joining, leaving, deaths and errors of peers. See context.h; context_memory.cc has the rest.
#include "runtime/context/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "runtime/context/machine.h"
#include "runtime/context/watch.h"
#include "runtime/core/deadline.h"
#include "runtime/core/log.h"
#include "runtime/join/local_socket.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

/// Whether every rank of a host can have that many hardware threads of its own. Judged by what all of them
/// wrote on their pages before they joined, so that all ranks of the job come to the same answer.
bool enough_cores(const std::vector<Peer>& peers, int node, std::size_t of_each) {
  std::vector<Cpus> masks;
  for (const Peer& p : peers) {
    if (p.node != node) continue;
    const auto& page = *reinterpret_cast<const ControlPage*>(p.control->data());
    Cpus mask;
    for (int cpu = 0; cpu < kMaxCpus; ++cpu)
      if (page.cpus[cpu / 64] >> (cpu % 64) & 1) mask.push_back(cpu);
    masks.insert(masks.end(), of_each, mask);
  }
  return room_for_each(masks);
}

// What a rank tells those of other hosts when it joins, before the address of its fabric: the processors that
// it may use (a count of words, u16, and so many words, little-endian), and its GPU.
wire::Bytes remarks(const ControlPage& page) {
  std::size_t words = std::size(page.cpus);
  while (words > 0 && page.cpus[words - 1] == 0) --words;
  const auto count = static_cast<std::uint16_t>(words);
  wire::Bytes all;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    all.insert(all.end(), from, from + bytes);
  };
  add(&count, sizeof count);
  add(page.cpus, words * sizeof page.cpus[0]);
  add(&page.gpu, sizeof page.gpu);
  return all;
}
/// How many bytes of `all` they were; nullopt: they are none.
std::optional<std::size_t> read_remarks(const wire::Bytes& all, ControlPage* page) {
  std::uint16_t count = 0;
  if (all.size() < sizeof count) return std::nullopt;
  std::memcpy(&count, all.data(), sizeof count);
  const std::size_t cpus = count * sizeof page->cpus[0], gpu_at = sizeof count + cpus;
  if (count > std::size(page->cpus) || all.size() < gpu_at + sizeof page->gpu) return std::nullopt;
  std::memcpy(page->cpus, all.data() + sizeof count, cpus);
  std::memcpy(&page->gpu, all.data() + gpu_at, sizeof page->gpu);
  page->gpu.reach_count = std::min<std::uint32_t>(page->gpu.reach_count, GpuRecord::kReach);
  return gpu_at + sizeof page->gpu;
}

std::atomic<unsigned> g_serial{0};

}  // namespace

Context::Context(ContextSpec spec)
    : spec_(std::move(spec)),
      dead_(new std::atomic<bool>[static_cast<std::size_t>(spec_.join.world)]),
      errors_seen_(static_cast<std::size_t>(spec_.join.world)),
      imported_(static_cast<std::size_t>(spec_.join.world)),
      gpu_exports_([this] { page(rank()).gpu_freed.set(page(rank()).gpu_freed.get() + 1); }) {
  for (int r = 0; r < size(); ++r) gpu_imported_.push_back(std::make_unique<GpuImported>());
  for (int r = 0; r < size(); ++r) dead_[static_cast<std::size_t>(r)] = false;
}

Result<std::shared_ptr<Context>> Context::create(const ContextSpec& spec) {
  if (spec.join.world > kMaxRanks)
    return unsupported(fmt::format("{} ranks; at most {}", spec.join.world, kMaxRanks));
  auto control = device::Segment::create((sizeof(ControlPage) + 4095) / 4096 * 4096, "control page");
  if (!control.ok()) return control.status();
  auto* page = new ((*control)->data()) ControlPage;  // fresh memory is zero and stays so: trivial type
  page->magic = kControlMagic;
  page->rank = static_cast<std::uint32_t>(spec.join.rank);
  page->pid = getpid();
  for (const int cpu : affinity_of(0))
    if (cpu < kMaxCpus) page->cpus[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
  page->self = reinterpret_cast<std::uint64_t>(page);
  if (spec.gpu >= 0) OURO_TRY(survey_gpu(spec.gpu, &page->gpu));
  page->state.set(static_cast<std::uint32_t>(ContextState::active));

  Fd server;
  const std::string name =
      fmt::format("ouro/{}/{}.{}.{}", wire::hex(spec.join.job), spec.join.rank, getpid(), g_serial++);
  if (spec.join.world > 1) {
    auto listening = listen_local(name);
    if (!listening.ok()) return listening.status();
    server = std::move(*listening);
  }
  JoinOptions joining = spec.join;
  std::unique_ptr<Network> network;
  if (spec.network && spec.join.world > 1) {
    NetworkOptions o = *spec.network;
    o.job = spec.join.job, o.rank = spec.join.rank, o.world = spec.join.world;
    o.join = spec.join.deadline;
    auto made = Network::create(std::move(o));
    if (!made.ok()) return made.status();
    network = std::move(*made);
    network->prepend(remarks(*page));
    joining.network = network.get();
    joining.leads_host = spec.local_rank == 0;
  }
  auto joined = join(joining, name, *control);
  if (!joined.ok()) return joined.status();
  auto context = std::shared_ptr<Context>(new Context(spec), [](Context* c) {
    if (!c->inherited()) delete c;  // what a child has of it cannot be taken apart there
  });
  context->network_ = std::move(network);
  context->peers_ = std::move(joined->peers);
  for (int r = 0; r < context->size(); ++r)
    if (context->page(r).magic != kControlMagic || context->page(r).rank != static_cast<std::uint32_t>(r))
      return Status(Reason::ring_corrupt, fmt::format("the control page of rank {} is not one", r));
  OURO_TRY(context->read_remarks());
  int nodes = 1;
  for (const Peer& p : context->peers_) nodes = std::max(nodes, p.node + 1);
  for (int node = 0; node < nodes; ++node)
    context->enough_cores_.push_back(ouro::rt::enough_cores(context->peers_, node, 1));
  context->crowded_ =
      !spec.spin && !ouro::rt::enough_cores(context->peers_, context->peer(context->rank()).node, 2);
  context->spin_ = spec.spin.value_or(std::chrono::microseconds(context->enough_cores() ? 50 : 0));
  if (context->size() > 1)
    context->watch_ = std::make_unique<Watch>(*context, std::move(server), std::move(joined->rendezvous));
  if (context->network_) context->start_network();
  context->be_neighbour(true);
  OURO_INFO(INIT, "rank {} of {} joined job {}", context->rank(), context->size(), wire::hex(spec.join.job));
  return context;
}

Status Context::read_remarks() {
  for (int r = 0; r < size(); ++r) {
    if (!is_remote(r)) continue;
    wire::Bytes& all = peers_[static_cast<std::size_t>(r)].address;
    const auto read = rt::read_remarks(all, &page(r));
    if (!read)
      return Status(Reason::ring_corrupt,
                    fmt::format("what rank {} of {} says of itself, {} bytes, makes no sense: is it another "
                                "build of this library?",
                                r, peer(r).host, all.size()));
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(*read));
  }
  return {};
}

bool Context::enough_cores(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](int r) { return enough_cores_[static_cast<std::size_t>(peer(r).node)]; });
}

void Context::start_network() {
  std::vector<RemoteRank> remotes;
  for (int r = 0; r < size(); ++r)
    if (is_remote(r)) remotes.push_back({r, peer(r).endpoint, peer(r).address, &page(r)});
  network_->start(page(rank()), std::move(remotes),
                  {.lost = [this](const std::vector<Loss>& losses) { on_losses(losses); },
                   .news = [this] { scan_errors(); },
                   .fenced =
                       [this](int by) {
                         std::lock_guard lock(mutex_);
                         for (MemberObserver* g : groups_) g->on_fenced(by);
                       }});
}

Context::~Context() { close(kFarewell); }

Status Context::usable() const {
  if (inherited())
    return {Reason::forked,
            "this process was forked after its parent joined; a child joins by itself or not at all"};
  if (!active()) return {Reason::revoked, "the context is closed"};
  return {};
}

void Context::close() { close(spec_.deadline); }

void Context::close(std::chrono::milliseconds linger) {
  if (closed_.exchange(true) || inherited()) return;
  OURO_INFO(DESTROY, "rank {} of {} closes its context", rank(), size());
  be_neighbour(false);
  if (network_) {  // what groups that have gone have sent still gets there
    page(rank()).state.set(static_cast<std::uint32_t>(ContextState::leaving));
    tell();
    const auto end = deadline_after(linger);
    while (network_->fabric().exchange().lingering() > 0 && Clock::now() < end)
      std::this_thread::sleep_for(200us);
  }
  page(rank()).state.set(static_cast<std::uint32_t>(ContextState::closed));
  if (network_) network_->close();
  watch_.reset();
}

// ---- groups ---------------------------------------------------------------------------------------

void Context::enrol(MemberObserver& g) {
  std::vector<Loss> gone;
  {
    std::lock_guard lock(mutex_);
    groups_.push_back(&g);
  }
  for (int r = 0; r < size(); ++r)
    if (is_dead(r)) gone.push_back({r, Reason::peer_dead, "it had gone before the group was made", "pidfd"});
  if (!gone.empty()) g.on_losses(gone);
}

void Context::enrol_gpu(MemberObserver& g) {
  std::lock_guard lock(gpu_groups_mutex_);
  gpu_groups_.push_back(&g);
}

void Context::scan_gpu() {
  std::lock_guard lock(gpu_groups_mutex_);
  for (MemberObserver* g : gpu_groups_) g->look_at_gpu();
}

void Context::dismiss(MemberObserver& g) {
  {
    std::lock_guard lock(gpu_groups_mutex_);
    std::erase(gpu_groups_, &g);
  }
  std::lock_guard lock(mutex_);
  std::erase(groups_, &g);
}

Result<GroupRecord*> Context::claim_record(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  ControlPage& mine = page(rank());
  for (int i = 0; i < kRecords; ++i) {
    GroupRecord& r = mine.groups[(next_record_ + static_cast<std::uint32_t>(i)) % kRecords];
    if (r.state.get() == static_cast<std::uint32_t>(GroupState::open)) continue;
    next_record_ = (next_record_ + static_cast<std::uint32_t>(i) + 1) % kRecords;
    r.key.set(0);
    r.error.set(0), r.entered.set(0), r.completed.set(0), r.shrinking.set(0), r.decided.set(0),
        r.resume.set(0), r.vote.set(0);
    for (auto& h : r.history) h.tag.set(0);
    for (auto& d : r.dead) d.set(0);
    r.state.set(static_cast<std::uint32_t>(GroupState::open));
    r.key.set(key);
    return &r;
  }
  return Status(Reason::resource,
                fmt::format("{} groups are open on this rank, which is the limit", kRecords));
}

GroupRecord* Context::find_record(int r, std::uint64_t key) const {
  for (GroupRecord& record : page(r).groups)
    if (record.key.get() == key) return &record;
  return nullptr;
}

void Context::publish(GroupRecord& record, const Failure& f, Collective op) {
  std::lock_guard lock(publish_mutex_);
  ControlPage& mine = page(rank());
  const std::uint32_t i = mine.errors_used.get();
  if (i >= kErrors) return;  // peers then find out by their own deadlines and detectors
  ErrorRecord& e = mine.errors[i];
  e.reason = f.reason, e.rank = f.rank, e.pid = f.pid, e.op = op, e.seq = f.seq, e.elapsed_s = f.elapsed_s;
  f.detector.copy(e.detector, sizeof e.detector - 1);
  f.text.copy(e.text, sizeof e.text - 1);
  record.error.set(i + 1);
  mine.errors_used.set(i + 1);
  tell();
}

std::uint64_t Context::instance(std::uint64_t name_hash) {
  std::lock_guard lock(mutex_);
  return instances_[name_hash]++;
}

std::vector<int> Context::dead() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (is_dead(r)) ranks.push_back(r);
  return ranks;
}

void Context::on_deaths(const std::vector<int>& ranks) {
  std::vector<Loss> losses;
  for (const int r : ranks)
    losses.push_back({r, Reason::peer_dead, "its process ended without close (cause unknown)", "pidfd"});
  on_losses(losses);
}

void Context::on_losses(const std::vector<Loss>& losses) {
  std::vector<Loss> fresh;
  for (const Loss& loss : losses) {
    // A rank that closed its context left in good order; whoever still waits for it finds that out by itself.
    if (page(loss.rank).state.get() == static_cast<std::uint32_t>(ContextState::closed)) continue;
    if (dead_[static_cast<std::size_t>(loss.rank)].exchange(true)) continue;
    OURO_INFO(RAS, "rank {} is lost: {} (detector {})", loss.rank, loss.text, loss.detector);
    fresh.push_back(loss);
  }
  if (fresh.empty()) return;
  std::lock_guard lock(mutex_);
  for (MemberObserver* g : groups_) g->on_losses(fresh);
}

void Context::scan_errors() {
  std::lock_guard scanning(errors_mutex_);
  for (int r = 0; r < size(); ++r) {
    auto& seen = errors_seen_[static_cast<std::size_t>(r)];
    const std::uint32_t used = page(r).errors_used.get();
    if (r == rank() || used == seen) continue;
    seen = used;
    std::lock_guard lock(mutex_);
    for (MemberObserver* g : groups_) g->adopt_errors();
  }
}

}  // namespace ouro::rt

// Contexts: joining and leaving. See context.h.
#include "runtime/context/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "kernels/gpu/collect.h"
#include "kernels/host/copy.h"
#include "runtime/calibration/choose.h"
#include "runtime/context/machine.h"
#include "runtime/context/watch.h"
#include "runtime/core/deadline.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/device_memory/peer_access.h"
#include "runtime/device_memory/peer_trial.h"
#include "runtime/device_memory/process_ranks.h"
#include "runtime/job/remarks.h"
#include "runtime/join/local_socket.h"
#include "runtime/network/network.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
/// The time that a destructor gives others to take what was sent to them. For data that has not even arrived
/// by then, it waits until the peers would be given up: a packet lost shortly before the end is retransmitted
/// only after seconds.
constexpr std::chrono::milliseconds kFarewell{2000};
std::atomic<unsigned> g_serial{0};

/// Makes this rank's control page, complete as others find it when they have joined.
Result<std::shared_ptr<SharedSegment>> make_page(const ContextSpec& spec) {
  auto control = SharedSegment::create((sizeof(ControlPage) + 4095) / 4096 * 4096, "control page");
  if (!control.ok()) return control.status();
  auto* page = new ((*control)->data())
      ControlPage;  // the type is trivial, so fresh memory, which is zero, stays zero
  page->magic = kControlMagic;
  page->rank = static_cast<std::uint32_t>(spec.join.rank);
  page->pid = getpid();
  page->process = process_number();
  page->pid_namespace = pid_namespace();
  for (const int cpu : affinity_of(0))
    if (cpu < kMaxCpus) page->cpus[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
  const Machine& mine = machine();
  if (mine.same_cache()) page->cache = mine.cores.front().domain + 1;
  page->self = reinterpret_cast<std::uint64_t>(page);
  if (spec.local_rank == 0 && spec.local_size > 1)
    page->calibration = host_calibration(spec.calibration).record;
  if (spec.gpu >= 0) OURO_TRY(DeviceMemory::survey(spec.gpu, &page->gpu));
  page->gpu.blocks = static_cast<std::uint32_t>(spec.gpu_blocks);
  page->state.set(static_cast<std::uint32_t>(ContextState::active));
  return control;
}

/// Returns nullptr if all ranks are on one host.
Result<std::unique_ptr<Network>> make_network(const ContextSpec& spec, const ControlPage& page) {
  if (!spec.network || spec.join.world == 1) return std::unique_ptr<Network>();
  NetworkOptions o = *spec.network;
  o.job = spec.join.job, o.rank = spec.join.rank, o.world = spec.join.world;
  o.join = spec.join.deadline;
  o.gpu = spec.gpu;
  auto network = Network::create(std::move(o));
  if (network.ok()) (*network)->prepend(remarks(page));
  return network;
}

}  // namespace

Allocation::~Allocation() {
  if (owner_->inherited()) return;  // after a fork the page is the parent's, and not mapped here
  if (block_)
    owner_->device_memory().exports().withdraw_when_idle(id_);
  else
    owner_->host_memory().forget(id_);
}

Registration::~Registration() {
  try {
    (void)end().ok();
  } catch (const std::bad_alloc&) {
    // The registration stays until the context ends, or until a check of the memory finds it freed.
  }
}

Status Registration::end() {
  if (owner_->inherited() || number_ == 0) return {};
  OURO_ASSIGN(open_, owner_->device_memory().deregister(number_));
  number_ = 0;  // not before it has ended: a call that has failed can be repeated
  return {};
}

Status Registration::release(std::chrono::milliseconds patience) {
  OURO_TRY(end());
  if (owner_->inherited() || open_.empty()) return {};
  return owner_->device_memory().await_closed(&open_, patience);
}

Context::Context(ContextSpec spec, std::vector<Peer> peers, std::unique_ptr<Network> network,
                 std::unique_ptr<Faults> faults)
    : spec_(std::move(spec)),
      members_(spec_.join.rank, std::move(peers)),
      observers_(members_),
      records_(members_.own_page()),
      requests_(members_, spec_.join.job),
      host_memory_(members_, requests_),
      device_memory_(members_, requests_, spec_.gpu),
      faults_(std::move(faults)),
      probes_(members_.own_page()),
      network_(std::move(network)) {
  if (faults_ && network_) faults_->when_cut([this] { network_->cut(); });
  if (spec_.gpu >= 0) observers_.enrol(static_cast<DeviceObserver&>(device_memory_));
}

Status Context::load_gpu(int device) { return gpu::load_kernels(device); }

Result<std::shared_ptr<Context>> Context::create(const ContextSpec& spec) {
  if (spec.join.world > kMaxRanks)
    return unsupported(fmt::format("{} ranks; at most {}", spec.join.world, kMaxRanks));
  OURO_TRY(check_faults(spec.faults, spec.join.world, spec.network && spec.join.world > 1));
  auto faults = Faults::of(spec.faults, spec.join.rank);
  if (faults) OURO_TRY(faults->strike(Fault::At::join));
  auto control = make_page(spec);
  if (!control.ok()) return control.status();
  if (spec.gpu >= 0) OURO_TRY(load_gpu(spec.gpu));  // before any rank can wait for this one
  Fd server;
  const std::string name = fmt::format("ouro/{}/{}.{:x}.{}", wire::hex(spec.join.job), spec.join.rank,
                                       process_number(), g_serial++);
  if (spec.join.world > 1) {
    auto listening = listen_local(name);
    if (!listening.ok()) return listening.status();
    server = std::move(*listening);
  }
  auto network = make_network(spec, *reinterpret_cast<const ControlPage*>((*control)->data()));
  if (!network.ok()) return network.status();
  JoinOptions joining = spec.join;
  joining.network = network->get();
  if (joining.network) joining.leads_host = spec.local_rank == 0;
  const JoiningRank joining_rank(spec.join.job, spec.join.rank, spec.gpu);
  auto joined = join(joining, name, *control);
  if (!joined.ok()) return joined.status();
  auto context = std::shared_ptr<Context>(
      new Context(spec, std::move(joined->peers), std::move(*network), std::move(faults)), [](Context* c) {
        if (c->inherited()) return;  // a child cannot dismantle its copy
        delete c;
        free_if_idle();
      });
  OURO_TRY(context->members_.read_pages());
  if (spec.gpu >= 0) enable_peer_access(context->members_);  // before any rank can wait for another
  if (context->size() > 1) context->calibration_ = calibration_of_host(context->members_);
  context->cores_.emplace(context->members_, context->calibration_, spec.spin);
  if (context->size() > 1) {
    use_copy_kinds(context->calibration_);
    const auto serve = [c = context.get()](int line, const wire::Fetch& f, std::span<const Fd> given) {
      return c->serve(line, f, given);
    };
    context->watch_ = std::make_unique<Watch>(context->members_, context->observers_, serve,
                                              std::move(server), std::move(joined->rendezvous));
  }
  if (context->network_) context->start_network();
  context->device_memory_.publish_in_process();
  if (spec.gpu >= 0 && spec.gpu_path != "staged")
    OURO_TRY(try_peer_access(context->device_memory_, spec.gpu, spec.join.deadline));
  OURO_INFO(INIT, "rank {} of {} joined job {}", context->rank(), context->size(), wire::hex(spec.join.job));
  return context;
}

void Context::start_network() {
  std::vector<RemoteRank> remotes;
  for (int r = 0; r < size(); ++r)
    if (const Peer& p = members_.peer(r); p.remote())
      remotes.push_back({r, p.endpoint, p.address, &members_.page(r)});
  network_->start(members_.own_page(), std::move(remotes),
                  {.lost = [this](const std::vector<LostRank>& losses) { observers_.report_losses(losses); },
                   .news = [this] { observers_.scan_errors(); },
                   .fenced = [this](int by) { observers_.report_fence(by); }});
}

Status Context::serve(int line, const wire::Fetch& request, std::span<const Fd> given) {
  using Kind = wire::Fetch::Kind;
  if (request.job != spec_.join.job) return {Reason::refused, "wrong-job"};
  if (request.kind == Kind::group || request.kind == Kind::allocation)
    return host_memory_.serve(line, request);
  return device_memory_.serve(line, request, given);
}

Result<std::shared_ptr<Allocation>> Context::allocate(std::size_t bytes, Device device) {
  OURO_TRY(usable());
  if (bytes == 0 || bytes > std::size_t{1} << 46)
    return invalid(fmt::format("an allocation of {} bytes; expected 1 to 2^46", bytes));
  if (device.kind == Device::Kind::cuda) {
    if (device.index != spec_.gpu)
      return invalid(fmt::format("an allocation on GPU {}; this rank {}", device.index,
                                 spec_.gpu < 0 ? "has none" : fmt::format("has GPU {}", spec_.gpu)));
    auto block = device_memory_.make_block(bytes);
    if (!block.ok()) return block.status();
    const std::uint64_t id = device_memory_.exports().add(*block);
    return std::make_shared<Allocation>(shared_from_this(), id, std::move(*block));
  }
  auto memory = host_memory_.allocate(bytes);
  if (!memory.ok()) return memory.status();
  return std::make_shared<Allocation>(shared_from_this(), std::move(*memory));
}

Result<std::shared_ptr<Registration>> Context::register_memory(const void* data, std::size_t bytes,
                                                               Device device) {
  OURO_TRY(usable());
  if (data == nullptr || bytes == 0 || bytes > std::size_t{1} << 46)
    return invalid(fmt::format("a registration of {} bytes at {}; expected 1 to 2^46 bytes", bytes, data));
  if (device.kind != Device::Kind::cuda)
    return unsupported("memory of the host is not registered: Context::alloc gives memory that ranks share");
  if (device.index != spec_.gpu)
    return invalid(fmt::format("memory of GPU {} cannot be registered; this rank {}", device.index,
                               spec_.gpu < 0 ? "has none" : fmt::format("has GPU {}", spec_.gpu)));
  OURO_ASSIGN(const std::uint64_t number, device_memory_.register_range(data, bytes));
  return std::make_shared<Registration>(shared_from_this(), number);
}

Context::~Context() { leave(); }

Status Context::usable() const {
  if (inherited())
    return {Reason::forked,
            "this process was forked after its parent joined; a child joins by itself or not at all"};
  if (!active()) return {Reason::revoked, "the context is closed"};
  return {};
}

void Context::notify_other_hosts() {
  if (network_) network_->kick();
}

void Context::close() { close(spec_.deadline); }
void Context::leave() { close(kFarewell); }

void Context::close(std::chrono::milliseconds linger) {
  if (closed_.exchange(true) || inherited()) return;
  if (faults_) (void)faults_->strike(Fault::At::close);
  OURO_INFO(DESTROY, "rank {} of {} closes its context", rank(), size());
  device_memory_.withdraw_in_process();
  ControlPage& page = members_.own_page();
  if (network_) {  // data that closed groups have sent is still delivered
    page.state.set(static_cast<std::uint32_t>(ContextState::leaving));
    notify_other_hosts();
    transport::Exchange& sent = network_->fabric().exchange();
    const auto end = deadline_after(linger);
    const auto last = std::max(end, deadline_after(network_->options().silent_fail));
    for (auto now = Clock::now(); now < last && (now < end ? sent.lingering() : sent.undelivered()) > 0;
         now = Clock::now())
      std::this_thread::sleep_for(200us);
  }
  device_memory_.close();  // before the page says that nothing is asked of this rank any more
  page.state.set(static_cast<std::uint32_t>(ContextState::closed));
  if (network_) network_->close();
  watch_.reset();
  if (spec_.gpu >= 0) observers_.dismiss(static_cast<DeviceObserver&>(device_memory_));
}

}  // namespace ouro::rt

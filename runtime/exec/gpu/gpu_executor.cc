// From an operation to its path. See gpu_executor.h.
#include "runtime/exec/gpu/gpu_executor.h"

#include <exception>
#include <utility>

#include "runtime/core/no_memory.h"

namespace ouro::rt {

namespace {

std::unique_ptr<const Members> of_this_host(const Members& all) {
  if (all.one_host()) return nullptr;
  std::vector<int> world;
  for (int r = 0; r < all.size(); ++r)
    if (all.local(r) >= 0) world.push_back(all.world_rank(r));
  return std::make_unique<const Members>(all.local(all.rank()), world, std::vector<int>(world.size()));
}

}  // namespace

GpuExecutor::GpuExecutor(Context& context, const Members& members, Waiter& waiter, std::uint64_t key,
                         std::chrono::milliseconds deadline)
    : team_{context, members, waiter, members.rank(), members.size(), key, deadline},
      host_members_(of_this_host(members)),
      here_{context,        host_members_ ? *host_members_ : members,
            waiter,         host_members_ ? host_members_->rank() : members.rank(),
            members.here(), key,
            deadline},
      chooser_(gpu_topology(context, members.world_ranks()), context.spec().gpu_path,
               context.spec().gpu_copy_bytes, members.rank()),
      here_chooser_(gpu_topology(context, here_.members.world_ranks()), "auto", SIZE_MAX, here_.rank,
                    /*packets=*/false),
      arrivals_(here_),
      resident_(here_, arrivals_, here_chooser_.topology()),
      pending_(team_, arrivals_, resident_),
      leader_(here_, arrivals_, here_chooser_.topology()),
      stream_(here_, arrivals_),
      staged_(team_, pending_),
      hierarchy_(team_, here_, here_chooser_, leader_, resident_, staged_) {
  if (host_members_) here_.of_group = &members;
  team_.find_neighbours();
  here_.find_neighbours();
  here_.device_words = here_chooser_.topology().words;
  here_.one_gpu = here_chooser_.topology().one;
}

Status GpuExecutor::check_buffers(const Operation& op, std::uint64_t plan) {
  if (plan != 0 && plan == checked_plan_) return {};
  const std::size_t in = op.read_bytes(team_.rank), out = op.written_bytes(team_.rank);
  GpuExports& exports = team_.context.device_memory().exports();
  if (in > 0) OURO_TRY(exports.find(op.in.data, in, team_.device).status());
  if (out > 0) OURO_TRY(exports.find(op.out.data, out, team_.device).status());
  checked_plan_ = plan;
  return {};
}

std::optional<Failure> GpuExecutor::kernels_fault() {
  if (auto fault = resident_.fault()) return fault;
  if (!pending_.late()) return std::nullopt;
  return Failure{.reason = Reason::deadline,
                 .text = "a kernel has waited for the streams of other ranks beyond the deadline",
                 .detector = "kernel that meets others"};
}

Status GpuExecutor::run(const Plan& plan, GpuPath path, std::uint64_t seq,
                        const std::shared_ptr<GpuStream>& stream, bool in_call,
                        std::shared_ptr<WorkState>* work) {
  const auto capture = gpu::gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  const bool capturing = *capture != 0;
  if (path != GpuPath::leader)
    OURO_TRY(check_buffers(plan.op, plan.id));  // the leader's path finds them anyway
  free_if_idle();
  OURO_ASSIGN(auto ahead, pending_.prepare(&plan, seq, stream, capturing));
  OURO_TRY(pending_.order(*stream, capturing));
  in_call = in_call && !capturing && chooser_.topology().one && pending_.clear();
  const auto on_path = [&]() -> Status {
    bool led = false;
    const bool offered = in_call && path == GpuPath::resident && !chooser_.forced();
    if (offered) OURO_TRY(leader_.offer_call(plan, seq, *stream, &ahead.end, &led));
    if (led) return {};
    switch (path) {
      case GpuPath::alone:
        return leader_.run_alone(plan, *stream);
      case GpuPath::leader:
        return leader_.run(plan, seq, *stream, capturing, in_call, &ahead.end);
      case GpuPath::resident:
        return resident_.run(plan, seq, *stream, capturing, offered, &ahead.end);
      case GpuPath::copies:
      case GpuPath::stream:
      case GpuPath::hierarchy:
      case GpuPath::staged:
        break;
    }
    return stream_.run(plan, seq, *stream, capturing, path == GpuPath::copies);
  };
  const std::uint64_t announced = arrivals_.announced();
  Status ran;
  try {
    ran = on_path();
  } catch (const std::exception&) {
    ran = no_memory();
  }
  // What was enqueued before an error has to be waited for as well.
  const Status marked = pending_.mark(std::move(ahead), work);
  count(path);
  const Status all = ran.ok() ? marked : ran;
  return arrivals_.announced() != announced ? team_.in_part(all) : all;
}

Status GpuExecutor::run_with_host_part(const Plan& plan, GpuPath path, std::uint64_t seq,
                                       const std::shared_ptr<GpuStream>& stream,
                                       StagedPath::RunOnHost on_host, std::shared_ptr<WorkState>* work) {
  const auto capture = gpu::gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  if (*capture != 0)
    return unsupported("an operation that is staged through the host cannot be captured in a graph");
  OURO_TRY(check_buffers(plan.op, 0));
  free_if_idle();
  OURO_TRY(pending_.order(*stream, false));
  count(path);
  if (path == GpuPath::hierarchy) return hierarchy_.run(plan, seq, stream, std::move(on_host), work);
  // The others are or will be in the host's operation, whatever a driver refuses here.
  return team_.in_part(staged_.run(plan.op, stream, std::move(on_host), work));
}

}  // namespace ouro::rt

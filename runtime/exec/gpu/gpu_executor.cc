// From an operation to its path. See gpu_executor.h.
#include "runtime/exec/gpu/gpu_executor.h"

#include <exception>
#include <utility>

#include "runtime/core/no_memory.h"

namespace ouro::rt {

GpuExecutor::GpuExecutor(Context& context, const Members& members, Waiter& waiter, std::uint64_t key,
                         std::chrono::milliseconds deadline)
    : team_{context, members, waiter, members.rank(), members.size(), key, deadline},
      chooser_(gpu_topology(context, members.world_ranks()), context.spec().gpu_path,
               context.spec().gpu_copy_bytes, members.rank()),
      arrivals_(team_),
      resident_(team_, arrivals_, chooser_.topology()),
      pending_(team_, arrivals_, resident_),
      leader_(team_, arrivals_),
      stream_(team_, arrivals_),
      staged_(team_, pending_) {
  team_.find_neighbours();
}

Status GpuExecutor::check_buffers(const Operation& op, std::uint64_t plan) {
  if (plan != 0 && plan == checked_plan_) return {};
  const std::size_t in = op.read_bytes(team_.rank), out = op.written_bytes(team_.rank);
  transport::GpuExports& exports = team_.context.device_memory().exports();
  if (in > 0) OURO_TRY(exports.find(op.in.data, in, team_.device).status());
  if (out > 0) OURO_TRY(exports.find(op.out.data, out, team_.device).status());
  checked_plan_ = plan;
  return {};
}

Status GpuExecutor::run(const Plan& plan, GpuPath path, std::uint64_t seq,
                        const std::shared_ptr<GpuStream>& stream, std::shared_ptr<WorkState>* work) {
  const auto capture = gpu::gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  const bool capturing = *capture != 0;
  if (path != GpuPath::leader)
    OURO_TRY(check_buffers(plan.op, plan.id));  // the leader's path finds them anyway
  transport::release_if_quiet();
  OURO_ASSIGN(auto ahead, pending_.prepare(&plan, seq, stream, capturing));
  OURO_TRY(pending_.order(*stream, capturing));
  const auto on_path = [&]() -> Status {
    switch (path) {
      case GpuPath::alone:
        return leader_.run_alone(plan, *stream);
      case GpuPath::leader:
        return leader_.run(plan, seq, *stream, capturing);
      case GpuPath::resident:
        return resident_.run(plan, seq, *stream, capturing);
      case GpuPath::copies:
      case GpuPath::stream:
      case GpuPath::staged:
        break;
    }
    return stream_.run(plan, seq, *stream, capturing, path == GpuPath::copies);
  };
  Status ran;
  try {
    ran = on_path();
  } catch (const std::exception&) {
    ran = no_memory();
  }
  // What was enqueued before an error has to be waited for as well.
  const Status marked = pending_.mark(std::move(ahead), work);
  count(path);
  return ran.ok() ? marked : ran;
}

Status GpuExecutor::run_staged(const Operation& op, const std::shared_ptr<GpuStream>& stream,
                               StagedPath::RunOnHost on_host, std::shared_ptr<WorkState>* work) {
  const auto capture = gpu::gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  if (*capture != 0)
    return unsupported("an operation that is staged through the host cannot be captured in a graph");
  OURO_TRY(check_buffers(op, 0));
  transport::release_if_quiet();
  OURO_TRY(pending_.order(*stream, false));
  count(GpuPath::staged);
  return staged_.run(op, stream, std::move(on_host), work);
}

}  // namespace ouro::rt

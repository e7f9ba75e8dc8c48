// Operations on GPU memory. See gpu_calls.h.
#include "api/nccl/gpu_calls.h"

#include <algorithm>

#include "api/nccl/arguments.h"
#include "kernels/device/gpu.h"

namespace ouro::nccl {
namespace {

/// The streams of the calls on one communicator; the first one executes all of them.
struct Share {
  ncclComm_t comm;
  std::vector<Stream> streams;
  const Stream& lead() const { return streams.front(); }
};

Result<std::vector<Share>> shares_of(std::vector<Call>& calls) {
  std::vector<Share> shares;
  for (Call& c : calls) {
    OURO_ASSIGN(const Stream s, c.comm->streams.find(c.stream, c.comm->place.index));
    auto share = std::find_if(shares.begin(), shares.end(), [&](const Share& x) { return x.comm == c.comm; });
    if (share == shares.end()) share = shares.insert(share, {c.comm, {}});
    if (std::find(share->streams.begin(), share->streams.end(), s) == share->streams.end())
      share->streams.push_back(s);
    c.on = share->lead();
  }
  return shares;
}

/// Checks that all streams are captured (those of a communicator in one capture) or none is, and that no
/// stream would wait for itself.
Status check(const std::vector<Share>& shares) {
  std::optional<bool> all;
  for (const Share& share : shares) {
    OURO_ASSIGN(const std::uint64_t capture, capture_of(share.lead()));
    for (const Stream& s : share.streams) {
      OURO_ASSIGN(const std::uint64_t other, capture_of(s));
      if (other != capture)
        return unsupported(
            "the streams of a communicator in one group are in different captures, or some in none; expected "
            "all in the same, or none in any");
    }
    if (all.value_or(capture != 0) != (capture != 0))
      return unsupported("of the communicators in one group some are captured; expected all, or none");
    all = capture != 0;
    for (const Share& before : shares) {
      if (&before == &share) break;
      for (const Stream& s : share.streams)
        for (const Stream& t : before.streams)
          if (s.cuda_handle() == t.cuda_handle() && s.device() == t.device() && before.comm->size > 1)
            return unsupported(
                "two communicators of one group are on one stream, where the first would wait for the "
                "second; expected a stream for each");
    }
  }
  return {};
}

/// Makes later work on `later` start after everything enqueued on `first` so far.
void follow(const Stream& first, const Stream& later) {
  Event here;
  here.record(first);
  here.wait_on(later);
}

}  // namespace

namespace {

/// Before the calls: makes each communicator's lead stream wait for earlier calls and for the work on its
/// other streams.
Status prepare(const std::vector<Share>& shares) {
  OURO_TRY(check(shares));
  for (const Share& share : shares) {
    OURO_TRY(share.comm->streams.follow(share.lead()));
    for (const Stream& other : share.streams)
      if (other != share.lead()) follow(other, share.lead());
  }
  return {};
}

}  // namespace

std::vector<Status> enqueue_on_gpus(std::vector<Call>& calls) {
  std::vector<Status> outcomes(calls.size());
  const auto shares = shares_of(calls);
  if (Status s = shares.ok() ? prepare(*shares) : shares.status(); !s.ok()) {
    outcomes.front() = std::move(s);
    return outcomes;
  }
  if (calls.size() == 1) {
    const auto work = enqueue_or_defer(calls.front());
    outcomes.front() =
        work.ok() ? shares->front().comm->streams.ran(shares->front().lead(), *work) : work.status();
    return outcomes;
  }
  group_start();
  bool refused = false;
  for (std::size_t k = 0; k < calls.size(); ++k)
    if (const auto work = enqueue_or_defer(calls[k]); !work.ok()) outcomes[k] = work.status(), refused = true;
  const Status end = group_end();
  if (refused) return outcomes;
  outcomes.front() = end;
  for (const Share& share : *shares) {
    const Status s = share.comm->streams.ran(share.lead());
    if (!s.ok() && outcomes.front().ok()) outcomes.front() = s;
    for (const Stream& other : share.streams)
      if (other != share.lead()) follow(share.lead(), other);
  }
  return outcomes;
}

Result<ReduceOp> read_factor(const void* from, DType type, const Stream& on) {
  OURO_ASSIGN(const std::uint64_t capture, capture_of(on));
  if (capture != 0)
    return unsupported(
        "a factor that lies on the device cannot be read while its stream is captured; expected one of "
        "residence ncclScalarHostImmediate");
  std::byte value[8] = {};
  const gpu::Stream stream{on.device().index, on.cuda_handle()};
  OURO_TRY(gpu::gpu().copy(value, from, size_of(type), stream));
  OURO_TRY(gpu::gpu().synchronize(stream));
  return premultiplied(value, type);
}

}  // namespace ouro::nccl

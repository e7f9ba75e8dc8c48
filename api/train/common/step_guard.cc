// The order of calls in a training step, and how a failure reaches the other ranks. See step_guard.h.
#include "api/train/common/step_guard.h"

#include <fmt/format.h>

#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"

namespace ouro::train {
namespace {

// One rank's misuse reaches the others as an abort of their groups with this text; so does the loss of a
// peer, which in a mesh only the peer's own groups can detect.
constexpr std::string_view kMisuse = "misuse in training: ", kLost = "a peer of another rank was lost: ";

/// Converts an abort by another rank into its cause.
Status as_told(const Status& s) {
  if (s.reason() != Reason::revoked) return s;
  for (const bool lost : {false, true}) {
    const std::string_view mark = lost ? kLost : kMisuse;
    const std::size_t at = s.failure()->text.find(mark);
    if (at == std::string::npos) continue;
    Failure f = *s.failure();
    f.reason = lost ? Reason::peer_dead : Reason::mismatch;
    f.text = f.text.substr(lost ? at : at + mark.size());
    if (lost) f.rank = -1, f.pid = 0, f.host.clear();  // they describe the rank that passed the failure on
    return Status(std::move(f));
  }
  return s;
}

}  // namespace

Status StepGuard::usable() const {
  OURO_TRY(not_in_batch(trainer));
  OURO_TRY(failure);
  return closed ? invalid("the trainer is closed") : Status{};
}

Status StepGuard::begin_step(bool training) {
  OURO_TRY(usable());
  if (open && ready_count > 0)
    return invalid("begin_step: gradients of this step are ready already; expected end_backward");
  const bool opens = training && !accumulating;
  if (opens && averaged) return invalid("begin_step: an average is in force; expected Average::revert first");
  open = opens;
  return {};
}

Status StepGuard::in_step(std::string_view call) const {
  if (averaged)
    return invalid(fmt::format("{}: an average is in force; expected Average::revert first", call));
  if (!open)
    return invalid(fmt::format("{}: no training step; expected begin_step before the forward pass", call));
  return {};
}

Result<bool> StepGuard::grad_ready(std::span<const Param> params, int param, const Stream& stream) {
  OURO_TRY(usable());
  const auto i = static_cast<std::size_t>(param);
  if (param < 0 || i >= params.size())
    return invalid(fmt::format("grad_ready: parameter {} of {}", param, params.size()));
  if (frozen(params[i])) return invalid(fmt::format("grad_ready: parameter '{}' is frozen", params[i].name));
  if (accumulating) return false;
  OURO_TRY(in_step("grad_ready"));
  if (ready[i])
    return invalid(
        fmt::format("grad_ready: the gradient of '{}' was ready in this step already", params[i].name));
  ready[i] = true;
  events[i].record(stream);
  ++ready_count;
  return true;
}

Result<bool> StepGuard::end_backward() const {
  OURO_TRY(usable());
  if (accumulating) return false;
  OURO_TRY(in_step("end_backward"));
  return true;
}

void StepGuard::end_step() {
  ++steps;
  open = false;
  ready_count = 0;
  ready.assign(ready.size(), false);
}

Status StepGuard::between_steps(std::string_view call) const {
  if (open && ready_count > 0)
    return invalid(fmt::format("{}: a step is under way; expected end_backward first", call));
  if (averaged)
    return invalid(fmt::format("{}: an average is in force; expected Average::revert first", call));
  return {};
}

Status StepGuard::before_steps(std::string_view call) const {
  if (steps > 0 || open) return invalid(fmt::format("{}: this trainer has begun; expected a new one", call));
  return between_steps(call);
}

std::string StepGuard::keep(const Status& s) {
  failure = as_told(s);
  const std::string& what = failure.failure()->text;
  switch (failure.code()) {
    case Code::peer_lost:
      return what.starts_with(kLost) ? what : fmt::format("{}{}", kLost, failure.message());
    case Code::invalid:
      if (s.code() == Code::invalid) return fmt::format("{}rank {}: {}", kMisuse, world_rank, what);
      // Another rank's misuse, passed on to groups that it is not in.
      return fmt::format("{}{}", kMisuse, what);
    default:
      return what;
  }
}

}  // namespace ouro::train

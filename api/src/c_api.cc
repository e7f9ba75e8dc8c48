// The C interface on top of the C++ one: errors, contexts, memory, groups. Used by C programs and other
// languages through ouro.h.
#include "api/src/c_api.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "kernels/device/gpu.h"
#include "runtime/core/thread_owned.h"

namespace ouro::c {
namespace {

/// A thread's last error, and the texts that returned pointers refer to: built on the first query and kept
/// until another call fails.
struct LastError {
  Status status;
  std::string text, json;
};
constinit thread_local LastError* t_last = nullptr;
LastError& last_error() {
  if (t_last) return *t_last;
  // The main thread's entry is never freed, because atexit handlers may still query it.
  return gettid() == getpid() ? *(t_last = new LastError) : *make_for_thread(t_last);
}

Result<InitOptions> init_options(const ouro_init_options_t* given, const char* call) {
  const Result<ouro_init_options_t> c = options_of<ouro_init_options_t>(given, OURO_INIT_OPTIONS, call);
  if (!c) return c.status();
  const Result<Numerics> numerics = numerics_of(c->numerics, call);
  if (!numerics) return numerics.status();
  InitOptions o;
  const auto place = [](int value, std::optional<int>& to) {
    if (value != -1) to = value;
  };
  place(c->rank, o.rank);
  place(c->world_size, o.world_size);
  place(c->local_rank, o.local_rank);
  place(c->local_size, o.local_size);
  if (c->id) std::memcpy(o.id.emplace().bytes, c->id->bytes, sizeof(UniqueId::bytes));
  if (c->join_deadline_ms < 0 || c->deadline_ms < 0 || c->late_after_ms < 0)
    return invalid(fmt::format("{}: a deadline in options is negative", call));
  if (c->join_deadline_ms) o.join_deadline = Milliseconds(c->join_deadline_ms);
  if (c->deadline_ms) o.deadline = Milliseconds(c->deadline_ms);
  if (c->late_after_ms) o.late_after = Milliseconds(c->late_after_ms);
  o.numerics = *numerics;
  if (c->device < OURO_DEVICE_NONE)
    return invalid(
        fmt::format("{}: options->device is {}; expected a GPU or one of OURO_DEVICE_LOCAL and "
                    "OURO_DEVICE_NONE",
                    call, c->device));
  if (c->device != OURO_DEVICE_LOCAL) o.gpu = c->device == OURO_DEVICE_NONE ? -1 : c->device;
  return o;
}

Result<GroupOptions> group_options(const ouro_group_options_t* given, const char* call) {
  const Result<ouro_group_options_t> c = options_of<ouro_group_options_t>(given, OURO_GROUP_OPTIONS, call);
  if (!c) return c.status();
  const Result<Numerics> numerics = numerics_of(c->numerics, call);
  if (!numerics) return numerics.status();
  if (c->deadline_ms < 0) return invalid(fmt::format("{}: the deadline in options is negative", call));
  return GroupOptions{.deadline = Milliseconds(c->deadline_ms), .numerics = *numerics};
}

/// Moves a new group into a new handle; a group that is not valid becomes null.
Status hand_out(Result<Group> made, ouro_group_t* out) {
  if (!made) return made.status();
  *out = nullptr;
  if (made->valid()) {
    *out = new ouro_group;
    (*out)->owned = std::move(*made);
  }
  return {};
}

}  // namespace

int finish(const Status& outcome) noexcept {
  if (!outcome.ok()) {
    LastError& last = last_error();
    last.status = outcome;
    last.text.clear();
    last.json.clear();
  }
  return static_cast<int>(outcome.code());
}

Result<DType> dtype_of(int value, const char* call) {
  if (value >= 0 && value < kDTypes) return static_cast<DType>(value);
  return invalid(fmt::format("{}: dtype {} is not one of the {} of ouro_dtype_t", call, value, kDTypes));
}

Result<Numerics> numerics_of(int value, const char* call) {
  if (value >= 0 && value <= static_cast<int>(Numerics::canonical)) return static_cast<Numerics>(value);
  return invalid(fmt::format("{}: numerics {} is not one of ouro_numerics_t", call, value));
}

Result<Priority> priority_of(int value, const char* call) {
  if (value >= 0 && value <= static_cast<int>(Priority::high)) return static_cast<Priority>(value);
  return invalid(fmt::format("{}: {} is not one of ouro_priority_t", call, value));
}

Result<ReduceOp> reduction_of(ouro_op_t op, const char* call) {
  const int kind = static_cast<int>(op.kind);
  if (kind >= 0 && kind < kOps) return ReduceOp{static_cast<OpKind>(kind), {op.real, op.integer}};
  return invalid(fmt::format("{}: reduction {} is not one of the {} of ouro_op_kind_t", call, kind, kOps));
}

}  // namespace ouro::c

using namespace ouro;
using namespace ouro::c;

// ---- library and errors -------------------------------------------------------------------------

const char* ouro_version(void) { return version(); }

const char* ouro_code_name(int code) {
  const bool known = code >= 0 && code <= static_cast<int>(Code::aborted);
  return known ? name(static_cast<Code>(code)) : "unknown";
}

const char* ouro_last_error(void) try {
  LastError& last = last_error();
  if (last.text.empty() && !last.status.ok()) last.text = last.status.message();
  return last.text.c_str();
} catch (const std::exception&) {
  return "out of memory while describing an error";
}

const char* ouro_last_error_json(void) try {
  LastError& last = last_error();
  if (last.json.empty() && !last.status.ok()) last.json = last.status.json();
  return last.json.c_str();
} catch (const std::exception&) {
  return "{}";
}

int ouro_device_count(void) try { return gpu::gpu().devices(); } catch (const std::exception&) {
  return 0;
}

// ---- contexts -----------------------------------------------------------------------------------

int ouro_unique_id_create(ouro_unique_id_t* id) {
  return guarded([&]() -> Status {
    OURO_TRY(need(id, "unique_id_create", "id"));
    const Result<UniqueId> made = UniqueId::create();
    if (!made) return made.status();
    std::memcpy(id->bytes, made->bytes, sizeof(id->bytes));
    return {};
  });
}

namespace {

int make_context(const char* call, const ouro_init_options_t* options, ouro_context_t* context,
                 Result<Context> (*make)(const InitOptions&)) {
  return guarded([&]() -> Status {
    OURO_TRY(need(context, call, "context"));
    const Result<InitOptions> o = init_options(options, call);
    if (!o) return o.status();
    Result<Context> made = make(*o);
    if (!made) return made.status();
    *context = new ouro_context(std::move(*made));
    return {};
  });
}

}  // namespace

int ouro_context_from_env(const ouro_init_options_t* options, ouro_context_t* context) {
  return make_context("context_from_env", options, context, Context::from_env);
}

int ouro_context_create(const ouro_init_options_t* options, ouro_context_t* context) {
  if (!options) return finish(need(options, "context_create", "options"));
  return make_context("context_create", options, context, Context::create);
}

int ouro_context_threads(int n, const ouro_init_options_t* options, ouro_context_t* contexts) {
  return guarded([&]() -> Status {
    OURO_TRY(need(contexts, "context_threads", "contexts"));
    const Result<InitOptions> o = init_options(options, "context_threads");
    if (!o) return o.status();
    Result<std::vector<Context>> made = Context::threads(n, *o);
    if (!made) return made.status();
    std::vector<std::unique_ptr<ouro_context>> handles;  // all or none
    for (Context& c : *made) handles.push_back(std::make_unique<ouro_context>(std::move(c)));
    for (std::size_t i = 0; i < handles.size(); ++i) contexts[i] = handles[i].release();
    return {};
  });
}

int ouro_context_close(ouro_context_t context) {
  return guarded([&]() -> Status {
    OURO_TRY(need(context, "context_close", "context"));
    return context->context.close();
  });
}

void ouro_context_destroy(ouro_context_t context) { delete context; }

int ouro_context_rank(ouro_context_t c) {
  return number(c, "context_rank", [&] { return c->context.rank(); });
}
int ouro_context_size(ouro_context_t c) {
  return number(c, "context_size", [&] { return c->context.world_size(); });
}
int ouro_context_local_rank(ouro_context_t c) {
  return number(c, "context_local_rank", [&] { return c->context.local_rank(); });
}
int ouro_context_local_size(ouro_context_t c) {
  return number(c, "context_local_size", [&] { return c->context.local_world_size(); });
}

int ouro_context_device(ouro_context_t c) {
  return number(c, "context_device", [&] {
    const Device d = c->context.device();
    return d.kind == Device::Kind::cuda ? d.index : -1;
  });
}

namespace {

/// Allocates memory of the host or of the rank's GPU, and keeps it under its address until it is freed.
Status allocate(ouro_context_t context, size_t bytes, void** data, bool on_device, const char* call) {
  OURO_TRY(need(context, call, "context"));
  OURO_TRY(need(data, call, "data"));
  const Device device = on_device ? context->context.device() : Device{};
  if (on_device && device.kind == Device::Kind::host)
    return invalid(fmt::format("{}: this rank has no GPU", call));
  Result<Memory> memory = context->context.alloc(bytes, device);
  if (!memory) return memory.status();
  void* address = memory->data();
  if (address) {
    const std::lock_guard lock(context->mutex);
    context->memory.insert_or_assign(address, std::move(*memory));
  }
  *data = address;
  return {};
}

}  // namespace

int ouro_alloc(ouro_context_t context, size_t bytes, void** data) {
  return guarded([&] { return allocate(context, bytes, data, false, "alloc"); });
}

int ouro_alloc_device(ouro_context_t context, size_t bytes, void** data) {
  return guarded([&] { return allocate(context, bytes, data, true, "alloc_device"); });
}

int ouro_free(ouro_context_t context, void* data) {
  return guarded([&]() -> Status {
    if (!data) return {};
    OURO_TRY(need(context, "free", "context"));
    Memory freed;  // destroyed after the lock is released
    const std::lock_guard lock(context->mutex);
    const auto found = context->memory.find(data);
    if (found == context->memory.end())
      return invalid(fmt::format("free: {} was not allocated by ouro_alloc of this context", data));
    freed = std::move(found->second);
    context->memory.erase(found);
    return {};
  });
}

int ouro_register(ouro_context_t context, const void* data, size_t bytes, ouro_registration_t* registration) {
  return guarded([&]() -> Status {
    OURO_TRY(need(context, "register", "context"));
    OURO_TRY(need(registration, "register", "registration"));
    const Device device = context->context.device();
    if (device.kind == Device::Kind::host) return invalid("register: this rank has no GPU");
    OURO_ASSIGN(auto made, context->context.register_memory(data, bytes, device));
    *registration = new ouro_registration{std::move(made)};
    return {};
  });
}

int ouro_deregister(ouro_registration_t registration, int64_t wait_ms) {
  return guarded([&]() -> Status {
    if (!registration) return {};
    const Status ended = wait_ms < 0 ? registration->registration.release()
                                     : registration->registration.release(Milliseconds(wait_ms));
    if (ended.ok() || wait_ms == 0) delete registration;
    return ended;
  });
}

// ---- groups -------------------------------------------------------------------------------------

int ouro_context_world(ouro_context_t context, ouro_group_t* group) {
  return guarded([&]() -> Status {
    OURO_TRY(need(context, "context_world", "context"));
    OURO_TRY(need(group, "context_world", "group"));
    *group = &context->world;
    return {};
  });
}

int ouro_context_group(ouro_context_t context, const int* ranks, int count, const char* tag,
                       const ouro_group_options_t* options, ouro_group_t* group) {
  return guarded([&]() -> Status {
    OURO_TRY(need(context, "context_group", "context"));
    OURO_TRY(need(ranks, "context_group", "ranks"));
    OURO_TRY(need(group, "context_group", "group"));
    if (count < 1) return invalid(fmt::format("context_group: count must be at least 1, found {}", count));
    const Result<GroupOptions> o = group_options(options, "context_group");
    if (!o) return o.status();
    return hand_out(context->context.group({ranks, static_cast<std::size_t>(count)}, tag ? tag : "", *o),
                    group);
  });
}

int ouro_group_split(ouro_group_t group, int color, int key, const ouro_group_options_t* options,
                     ouro_group_t* out) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_split", "group"));
    OURO_TRY(need(out, "group_split", "out"));
    const Result<GroupOptions> o = group_options(options, "group_split");
    if (!o) return o.status();
    return hand_out(group->get().split(color, key, *o), out);
  });
}

int ouro_group_shrink(ouro_group_t group, ouro_shrink_report_t* report, ouro_group_t* out) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_shrink", "group"));
    OURO_TRY(need(out, "group_shrink", "out"));
    if (report && report->capacity > 0) OURO_TRY(need(report->dead, "group_shrink", "report->dead"));
    ShrinkReport full;
    OURO_TRY(hand_out(group->get().shrink(&full), out));
    if (!report) return {};
    report->dead_count = static_cast<int>(full.dead.size());
    report->resume_seq = full.resume_seq;
    for (int i = 0; i < std::min(report->capacity, report->dead_count); ++i)
      report->dead[i] = full.dead[static_cast<std::size_t>(i)];
    return {};
  });
}

int ouro_group_rank(ouro_group_t g) {
  return number(g, "group_rank", [&] { return g->get().rank(); });
}
int ouro_group_size(ouro_group_t g) {
  return number(g, "group_size", [&] { return g->get().size(); });
}

int ouro_group_ranks(ouro_group_t group, int* ranks) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_ranks", "group"));
    OURO_TRY(need(ranks, "group_ranks", "ranks"));
    const std::span<const int> all = group->get().ranks();
    std::copy(all.begin(), all.end(), ranks);
    return {};
  });
}

const char* ouro_group_name(ouro_group_t group) {
  if (group) return group->get().name().c_str();
  finish(need(group, "group_name", "group"));
  return nullptr;
}

int ouro_group_status(ouro_group_t group) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_status", "group"));
    return group->get().status();
  });
}

int ouro_group_abort(ouro_group_t group, const char* why) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_abort", "group"));
    group->get().abort(why ? why : "");
    return {};
  });
}

int ouro_group_close(ouro_group_t group) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_close", "group"));
    return group->get().close();
  });
}

int ouro_group_destroy(ouro_group_t group) {
  return guarded([&]() -> Status {
    if (group && group->borrowed)
      return invalid("group_destroy: the world group belongs to its context; destroy that");
    delete group;
    return {};
  });
}

int ouro_group_explain(ouro_group_t group, ouro_collective_t collective, size_t count, ouro_dtype_t dtype,
                       ouro_op_t op, char* text, size_t capacity) {
  return guarded([&]() -> Status {
    OURO_TRY(need(group, "group_explain", "group"));
    OURO_TRY(need(text, "group_explain", "text"));
    const int which = static_cast<int>(collective);
    if (which <= 0 || which > static_cast<int>(Collective::barrier))
      return invalid(fmt::format("group_explain: {} is not one of ouro_collective_t", which));
    const Result<DType> type = dtype_of(dtype, "group_explain");
    if (!type) return type.status();
    const Result<ReduceOp> reduction = reduction_of(op, "group_explain");
    if (!reduction) return reduction.status();
    const Result<std::string> why =
        group->get().explain(static_cast<Collective>(which), count, *type, *reduction);
    if (!why) return why.status();
    if (capacity <= why->size())
      return invalid(
          fmt::format("group_explain: the text needs {} bytes, capacity is {}", why->size() + 1, capacity));
    std::memcpy(text, why->c_str(), why->size() + 1);
    return {};
  });
}

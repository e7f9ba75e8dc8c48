// Contexts and groups.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "api/python/src/binding.h"
#include "api/python/src/waiting.h"

namespace ouro::python {
namespace {

using namespace nb::literals;
using namespace std::chrono_literals;

constexpr auto kInit =
    "Joins the job and returns its Context: from now on, this process holds one rank of the job.\n\n"
    "Collective over the job. Without arguments, the rank, the size and the way the ranks meet\n"
    "come from the launcher's variables (ouro-run, torchrun, SLURM, Open MPI, MPICH, Intel MPI);\n"
    "without a launcher, the job consists of this one rank.\n\n"
    "address, port: where rank 0 can be reached.\n"
    "id: 128 bytes from unique_id() that name the job instead.\n"
    "rendezvous: where the hosts of a job meet, \"HOST:PORT\" or \"file:PATH\".\n"
    "host_id: ranks with the same host_id share memory.\n"
    "join_deadline, deadline, late_after: in seconds, the time for all ranks to join (default\n"
    "  300), the deadline of each operation (default 600), and the time after which late ranks\n"
    "  are reported (default 10).\n"
    "numerics: 'fast', or 'canonical' for the same bits whatever the algorithm.\n"
    "gpu: index of this rank's GPU, -1 for none; None: local rank modulo the number of GPUs.\n"
    "one_gpu_each: InvalidError if this process sees fewer GPUs than its host has ranks.\n"
    "generation: number of restarts of the job; ranks of another generation are refused.\n\n"
    "Releases the GIL while it waits. In the main thread, signal handlers run meanwhile, and an\n"
    "exception from one cancels joining on all ranks.\n\n"
    "Raises InvalidError, MismatchError (settings), JoinError, PeerLostError, CorruptError,\n"
    "ResourceError, DeviceError, or ValueError (the length of `id`, `numerics`, a time that is\n"
    "negative or, for a deadline, 0).";

/// Joins on a separate stream, so that signal handlers run meanwhile; an exception from one cancels joining
/// on all ranks.
Result<Context> join(InitOptions options) {
  if (!in_main_thread()) return without_gil([&] { return Context::from_env(options); });
  const auto cancel = std::make_shared<std::atomic<bool>>(false);
  options.cancel = cancel;
  Result<Context> joined = invalid("not joined");
  const Stream stream = value_of(Stream::create(Priority::normal, "join"));
  const Work joining = stream.run([&] {
    joined = Context::from_env(options);
    return Status();
  });
  try {
    check(wait_for(joining, Milliseconds(-1)));
  } catch (const nb::python_error&) {
    cancel->store(true);
    check(without_gil([&] { return joining.wait(); }));
    throw;
  }
  return joined;
}

Context init(std::optional<int> rank, std::optional<int> world_size, std::optional<int> local_rank,
             std::optional<int> local_size, std::optional<nb::bytes> id, std::string address, int port,
             std::string rendezvous, std::string host_id, std::optional<double> join_deadline,
             std::optional<double> deadline, std::optional<double> late_after,
             std::optional<std::string> numerics_name, std::optional<int> gpu, bool one_gpu_each,
             std::uint32_t generation) {
  InitOptions o;
  o.rank = rank;
  o.world_size = world_size;
  o.local_rank = local_rank;
  o.local_size = local_size;
  if (id) {
    o.id.emplace();
    if (id->size() != sizeof o.id->bytes)
      throw nb::value_error("id: 128 bytes are expected, of ouro.unique_id()");
    std::copy_n(id->c_str(), sizeof o.id->bytes, o.id->bytes);
  }
  o.address = std::move(address);
  o.port = port;
  o.rendezvous = std::move(rendezvous);
  o.host_id = std::move(host_id);
  o.join_deadline = deadline_of("join_deadline", join_deadline, o.join_deadline);
  o.deadline = deadline_of("deadline", deadline, o.deadline);
  o.late_after = milliseconds("late_after", late_after, o.late_after);
  o.numerics = numerics(std::move(numerics_name));
  o.gpu = gpu;
  o.one_gpu_each = one_gpu_each;
  o.generation = generation;
  return value_of(join(std::move(o)));
}

GroupOptions group_options(std::optional<double> deadline, std::optional<std::string> numerics_name) {
  return {deadline_of("deadline", deadline, 0ms), numerics(std::move(numerics_name))};
}

/// Memory shared within the host, as an array that supports DLPack and the buffer protocol.
nb::ndarray<nb::array_api> array_of(const Memory& memory, const std::vector<std::size_t>& shape, DType t) {
  const nb::capsule owner(new Memory(memory), [](void* m) noexcept { delete static_cast<Memory*>(m); });
  return array_over({memory.data(), 0, t, memory.device()}, shape, owner);
}
std::size_t bytes_of(const std::vector<std::size_t>& shape, DType t) {
  std::size_t bytes = size_of(t);
  for (const std::size_t n : shape)
    if (__builtin_mul_overflow(bytes, n, &bytes))
      throw nb::value_error("shape: more bytes than an address counts");
  return bytes;
}
nb::ndarray<nb::array_api> alloc(Context& c, const std::vector<std::size_t>& shape, const std::string& dtype,
                                 bool gpu) {
  const DType t = dtype_of(dtype);
  return array_of(value_of(c.alloc(bytes_of(shape, t), gpu ? c.device() : Device{})), shape, t);
}

void leave(Context& c, nb::handle type) {
  if (!type.is_none() && c.active()) {
    const auto what = nb::cast<std::string>(type.attr("__name__"));
    without_gil(
        [&] { c.world().abort("rank " + std::to_string(c.rank()) + " leaves the job because of " + what); });
  }
  const Status s = without_gil([&] { return c.close(); });
  if (type.is_none()) check(s);
}

}  // namespace

void bind_contexts(nb::module_& m) {
  m.def(
      "unique_id",
      [] {
        const UniqueId id = value_of(UniqueId::create());
        return nb::bytes(id.bytes, sizeof id.bytes);
      },
      "Returns 128 bytes that name a job. One rank creates them and passes them to all others over\n"
      "any channel.");
  nb::class_<Context>(m, "Context",
                      "One rank's membership in a job, as init() returns it.\n\n"
                      "It is also a context manager: `with ouro.init() as job`.")
      .def_prop_ro("rank", &Context::rank, "Rank of this process in the job.")
      .def_prop_ro("world_size", &Context::world_size, "Number of ranks in the job.")
      .def_prop_ro("local_rank", &Context::local_rank, "Rank among the ranks of this host.")
      .def_prop_ro("local_world_size", &Context::local_world_size, "Number of ranks on this host.")
      .def_prop_ro("hosts", &Context::hosts, "Number of hosts in the job.")
      .def("host", &Context::host, "rank"_a,
           "Returns the index of the host of world rank `rank`: the host of rank 0 is 0, the others\n"
           "follow in the order of their first ranks. -1: there is no such rank.")
      .def_prop_ro(
          "gpu",
          [](const Context& c) {
            return c.device().kind == Device::Kind::cuda ? nb::cast(c.device().index) : nb::none();
          },
          "Index of this rank's GPU as seen by its process, or None.")
      .def_prop_ro("active", &Context::active, "Whether this rank has joined and has not closed the context.")
      .def_prop_ro(
          "world", [](Context& c) { return Group(c.world()); }, nb::keep_alive<0, 1>(),
          "The group of all ranks.")
      .def(
          "group",
          [](Context& c, const std::vector<int>& ranks, const std::string& tag,
             std::optional<double> deadline, std::optional<std::string> numerics_name) {
            return value_of(c.group(ranks, tag, group_options(deadline, std::move(numerics_name))));
          },
          "ranks"_a, "tag"_a = "", nb::kw_only(), "deadline"_a = nb::none(), "numerics"_a = nb::none(),
          nb::keep_alive<0, 1>(),
          "Returns a group of the given world ranks, in that order. Only the members call this; it does\n"
          "not communicate. Members match groups of equal ranks and tag by creation order. deadline:\n"
          "deadline of each operation in seconds, None for the job's. numerics: 'fast' or 'canonical',\n"
          "None for the job's. Raises InvalidError (no ranks, a rank twice or not in the job, the\n"
          "caller not among them) or ResourceError.")
      .def("alloc", &alloc, "shape"_a, "dtype"_a = "float32", nb::kw_only(), "gpu"_a = false,
           "Returns zero-filled memory of this rank that all ranks of its host can map, as an array that\n"
           "NumPy (numpy.asarray) and other libraries use without a copy. Operations on it read and\n"
           "write it in place, without staging. gpu: on this rank's GPU, or on the host if it has none.\n"
           "Raises ValueError (dtype, shape), InvalidError (no bytes, or more than 2^46), ResourceError\n"
           "or DeviceError.")
      .def(
          "close", [](Context& c) { check(without_gil([&] { return c.close(); })); },
          "Leaves the job cleanly: drains the world group, then notifies the peers. Idempotent.\n"
          "Releases the GIL.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def(
          "__exit__", [](Context& c, nb::handle type, nb::handle, nb::handle) { leave(c, type); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          "Closes the context. If the block raised, first aborts the world group, so that operations of\n"
          "the other ranks end at once with an error that names this rank.")
      .def("__repr__", [](const Context& c) {
        return c.active() ? "<ouro.Context: rank " + std::to_string(c.rank()) + " of " +
                                std::to_string(c.world_size()) + ">"
                          : std::string("<ouro.Context: closed>");
      });
  m.def("init", &init, "rank"_a = nb::none(), "world_size"_a = nb::none(), nb::kw_only(),
        "local_rank"_a = nb::none(), "local_size"_a = nb::none(), "id"_a = nb::none(), "address"_a = "",
        "port"_a = 0, "rendezvous"_a = "", "host_id"_a = "", "join_deadline"_a = nb::none(),
        "deadline"_a = nb::none(), "late_after"_a = nb::none(), "numerics"_a = nb::none(),
        "gpu"_a = nb::none(), "one_gpu_each"_a = false, "generation"_a = 0, kInit);
  m.def(
      "threads",
      [](int n, std::optional<double> deadline) {
        InitOptions o;
        o.deadline = deadline_of("deadline", deadline, o.deadline);
        auto made = value_of(without_gil([&] { return Context::threads(n, o); }));
        nb::list out;
        for (Context& c : made) out.append(nb::cast(std::move(c)));
        return out;
      },
      "n"_a, nb::kw_only(), "deadline"_a = nb::none(),
      "Creates n ranks in this process, 1 to 256, and returns a list with a Context for each. Drive\n"
      "them from n threads. deadline: deadline of each operation in seconds. Raises as init().");
}

void bind_groups(nb::module_& m) {
  nb::class_<Group> group(
      m, "Group",
      "An ordered set of ranks that communicate.\n\n"
      "A group runs one operation at a time, in the order of the calls, which must be the same on\n"
      "all ranks. Without `stream`, an operation blocks, without the GIL, and returns its result;\n"
      "GPU arrays then go through the legacy default stream of their GPU. With `stream`, it is\n"
      "enqueued there and returns a Work at once. Inside batch(), an operation without a stream is\n"
      "deferred to the end of the block. In the main thread, signal handlers run while an\n"
      "operation waits; if a handler raises, an operation on host arrays ends and the group fails\n"
      "on all ranks.\n\n"
      "Arrays are objects that support the buffer protocol or DLPack. TypeError: another object, or\n"
      "an element type that ouro lacks. ValueError: an array that is not in C order without gaps,\n"
      "or that is read-only and would be written.\n\n"
      "numerics: 'fast' or 'canonical'; None: the group's.\n"
      "algorithm: a name such as 'ring'; 'auto': selected by the library; None: OURO_ALGO if set,\n"
      "  else selected.\n\n"
      "InvalidError and UnsupportedError leave the group usable; all other errors of ouro are\n"
      "sticky in it.");
  group.def_prop_ro("rank", &Group::rank, "The caller's rank in this group.")
      .def_prop_ro("size", &Group::size, "Number of members.")
      .def_prop_ro("name", &Group::name, "The name of the group in messages and errors.")
      .def_prop_ro("generation", &Group::generation, "0 at first, increased by one by each shrink().")
      .def_prop_ro(
          "ranks", [](const Group& g) { return std::vector<int>(g.ranks().begin(), g.ranks().end()); },
          "List of the members' world ranks, in the order of their ranks in this group.")
      .def("from_global", &Group::from_global, "world_rank"_a,
           "Returns the rank in this group of a world rank, or None if it is not a member.")
      .def_prop_ro("valid", &Group::valid,
                   "False for the group that split() returns to a rank with color -1.")
      .def_prop_ro("failed", &Group::failed, "Whether the group has an error, which check() raises.")
      .def(
          "check", [](const Group& g) { check(g.status()); },
          "Raises the first error of the group, if it has one. Never blocks.")
      .def(
          "split",
          [](Group& g, int color, int key, std::optional<double> deadline,
             std::optional<std::string> numerics_name) {
            const GroupOptions o = group_options(deadline, std::move(numerics_name));
            Result<Group> made = [&] {
              Waiting waiting;
              return g.split(color, key, o);
            }();
            check_interrupted(made.status());
            return value_of(std::move(made));
          },
          "color"_a, "key"_a = 0, nb::kw_only(), "deadline"_a = nb::none(), "numerics"_a = nb::none(),
          nb::keep_alive<0, 1>(),
          "Collective: members with the same color form a group, ordered by key, then by rank.\n"
          "Returns the caller's group; with color -1, one whose `valid` is False. deadline, numerics:\n"
          "of the new group, as in Context.group. InvalidError: another negative color, or a call\n"
          "inside batch().")
      .def(
          "shrink",
          [](Group& g) {
            ShrinkReport report;
            Group made = value_of(without_gil([&] { return g.shrink(&report); }));
            return nb::make_tuple(std::move(made), report.dead, report.resume_seq);
          },
          "Collective over the survivors after a failure. Returns a tuple: the group without the dead\n"
          "ranks, the list of ranks of this group that are dead, and the lowest sequence number that\n"
          "some survivor did not complete. If this group has not failed, the call revokes it. Raises\n"
          "DeadlineError if some survivors do not call it, AbortedError (fenced, no quorum),\n"
          "InvalidError (this group has already been shrunk) or ResourceError.")
      .def(
          "abort", [](Group& g, const std::string& why) { without_gil([&] { g.abort(why); }); }, "why"_a = "",
          "Ends all pending and later operations of this group on every rank within a second; `why` is\n"
          "the reason in their errors. May be called from any thread.")
      .def(
          "close", [](Group& g) { check(without_gil([&] { return g.close(); })); },
          "Drains submitted operations and leaves the group. Idempotent. Releases the GIL.")
      .def(
          "alloc_shared",
          [](Group& g, const std::vector<std::size_t>& shape, const std::string& dtype) {
            const DType t = dtype_of(dtype);
            const std::size_t bytes = bytes_of(shape, t);
            Result<std::vector<Memory>> made = [&] {
              Waiting waiting;
              return g.alloc_shared(bytes);
            }();
            check_interrupted(made.status());
            nb::list out;
            for (const Memory& memory : *made) out.append(array_of(memory, shape, t));
            return out;
          },
          "shape"_a, "dtype"_a = "float32",
          "Collective over ranks of one host: allocates a zero-filled host array for each rank and\n"
          "maps all of them in every rank. Returns a list whose element r is rank r's array. All\n"
          "ranks pass the same shape and dtype. Raises ValueError (dtype, shape), UnsupportedError\n"
          "(ranks of several hosts), InvalidError (more than 2^46 bytes, or a call inside batch())\n"
          "or ResourceError.")
      .def(
          "explain",
          [](const Group& g, const std::string& collective, std::size_t count, const std::string& dtype,
             nb::handle op) {
            const auto c = parse_collective(collective);
            if (!c) throw nb::value_error(("collective: '" + collective + "' is not one of ouro's").c_str());
            return value_of(g.explain(*c, count, dtype_of(dtype), reduction(op)));
          },
          "collective"_a, "count"_a, "dtype"_a = "float32", "op"_a = "sum",
          "Returns a text that says which algorithm would run, over which transport, and why. count:\n"
          "elements of the whole array or, for collectives with blocks, of one block. Raises ValueError\n"
          "(an unknown name) or UnsupportedError (no algorithm serves the call).")
      .def("__repr__", [](const Group& g) {
        return g.valid() ? "<ouro.Group " + g.name() + ": rank " + std::to_string(g.rank()) + " of " +
                               std::to_string(g.size()) + ">"
                         : std::string("<ouro.Group: none>");
      });
  bind_operations(group);
  bind_messages(m, group);
  bind_training(m, group);
}

}  // namespace ouro::python

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
    "Joins the job: one rank of it is in this process from now on.\n\n"
    "Without arguments rank, size and how the ranks meet come from the launcher's variables (ouro-run, "
    "torchrun, SLURM,\n"
    "Open MPI, MPICH, Intel MPI); without a launcher the job is this one rank. Collective over the job. "
    "Times are in\n"
    "seconds. `address` and `port` are where rank 0 can be reached; `id` (128 bytes of unique_id()) names "
    "the job instead.\n"
    "`numerics`: 'fast' or 'canonical', the same bits whatever the algorithm. `gpu`: this rank's GPU, -1 for "
    "none.\n\n"
    "Raises JoinError, MismatchError (settings), InvalidError, PeerLostError.";

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
      "128 bytes that name a job: made by one rank, handed to all others by any channel.");
  nb::class_<Context>(
      m, "Context",
      "One rank's membership in a job, of init(). As a context manager: `with ouro.init() as job`.")
      .def_prop_ro("rank", &Context::rank, "Of this process in the job.")
      .def_prop_ro("world_size", &Context::world_size, "Ranks of the job.")
      .def_prop_ro("local_rank", &Context::local_rank, "Among the ranks of this host.")
      .def_prop_ro("local_world_size", &Context::local_world_size, "Ranks of this host.")
      .def_prop_ro("hosts", &Context::hosts, "How many hosts the job is on.")
      .def("host", &Context::host, "rank"_a,
           "On which of them a rank is: the one of rank 0 is 0; -1: no such rank.")
      .def_prop_ro(
          "gpu",
          [](const Context& c) {
            return c.device().kind == Device::Kind::cuda ? nb::cast(c.device().index) : nb::none();
          },
          "This rank's GPU, as its process counts them, or None.")
      .def_prop_ro("active", &Context::active, "Joined, and not closed.")
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
          "A group over the given world ranks, in that order. Members only call this; it does not "
          "communicate.")
      .def("alloc", &alloc, "shape"_a, "dtype"_a = "float32", nb::kw_only(), "gpu"_a = false,
           "Node-shared memory of this rank, filled with zeros, as an array that NumPy (numpy.asarray) and "
           "all others take\n"
           "over without a copy. Operations on it read and write it in place, without staging.")
      .def(
          "close", [](Context& c) { check(without_gil([&] { return c.close(); })); },
          "Leaves the job in good order: drains the world group, then tells the peers. May be called again.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def(
          "__exit__", [](Context& c, nb::handle type, nb::handle, nb::handle) { leave(c, type); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none(),
          "Closes it. With an exception, operations of the others end now, and name this rank.")
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
      "n ranks in this process, a Context each, to be driven by n threads.");
}

void bind_groups(nb::module_& m) {
  nb::class_<Group> group(
      m, "Group",
      "An ordered set of ranks that communicate. Its operations run one after the other, in the order\n"
      "in which they were called, which must be the same on all ranks.");
  group.def_prop_ro("rank", &Group::rank, "Of the caller in this group.")
      .def_prop_ro("size", &Group::size, "Number of members.")
      .def_prop_ro("name", &Group::name, "As it appears in messages.")
      .def_prop_ro("generation", &Group::generation, "0, and one more after each shrink().")
      .def_prop_ro(
          "ranks", [](const Group& g) { return std::vector<int>(g.ranks().begin(), g.ranks().end()); },
          "World rank of each member.")
      .def("from_global", &Group::from_global, "world_rank"_a,
           "The rank here of a rank of the job; None: no member.")
      .def_prop_ro("valid", &Group::valid, "False for the group of a rank that took no part in a split.")
      .def_prop_ro("failed", &Group::failed, "Whether an error has struck the group.")
      .def(
          "check", [](const Group& g) { check(g.status()); },
          "Raises the first error that has struck the group, if any.")
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
          "Collective: members with the same color form a group, ordered by key, then rank. Color -1: none "
          "(`valid` is False).")
      .def(
          "shrink",
          [](Group& g) {
            ShrinkReport report;
            Group made = value_of(without_gil([&] { return g.shrink(&report); }));
            return nb::make_tuple(std::move(made), report.dead, report.resume_seq);
          },
          "Collective over the survivors after a failure. Returns (group without the dead, ranks of this "
          "group that are\n"
          "gone, lowest sequence number that some survivor did not complete).")
      .def(
          "abort", [](Group& g, const std::string& why) { without_gil([&] { g.abort(why); }); }, "why"_a = "",
          "Ends all pending and later operations of this group on every rank within a second. From any "
          "thread.")
      .def(
          "close", [](Group& g) { check(without_gil([&] { return g.close(); })); },
          "Drains what was submitted and leaves. May be called again.")
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
          "Collective over ranks of one host: an array of each rank, filled with zeros, mapped by all of "
          "them. Element r of\n"
          "the list is rank r's. All ranks pass the same shape and dtype.")
      .def(
          "explain",
          [](const Group& g, const std::string& collective, std::size_t count, const std::string& dtype,
             nb::handle op) {
            const auto c = parse_collective(collective);
            if (!c) throw nb::value_error(("collective: '" + collective + "' is not one of ouro's").c_str());
            return value_of(g.explain(*c, count, dtype_of(dtype), reduction(op)));
          },
          "collective"_a, "count"_a, "dtype"_a = "float32", "op"_a = "sum",
          "What would run, over what, and why. `count` is of the array or, where the collective has blocks, "
          "of one.")
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

// The Python module: makes backends for ouro.torch, which registers them.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>

#include "backend.h"
#include "signals.h"

namespace ouro::adapter {
namespace {

/// Throws a failure while a group is made as PyTorch's exception.
template <class T>
T value_of(Result<T> r) {
  if (!r.ok()) std::rethrow_exception(exception_of(r.status()));
  return *std::move(r);
}

pybind11::bytes new_id() {
  const UniqueId id = value_of(UniqueId::create());
  return {reinterpret_cast<const char*>(id.bytes), sizeof id.bytes};
}

/// Joins on a separate stream, so that Python's signal handlers and `check` run meanwhile; an exception from
/// one cancels joining, on all ranks.
Result<Context> interruptibly(InitOptions o, const pybind11::function& check) {
  const auto cancel = std::make_shared<std::atomic<bool>>(false);
  o.cancel = cancel;
  Result<Context> joined = Status(Reason::invalid, "not joined");
  const Stream stream = value_of(Stream::create(Priority::normal, "join"));
  const ouro::Work joining = stream.run([&] {
    joined = Context::create(o);
    return Status();
  });
  const auto stop = [&] {
    cancel->store(true);
    (void)joining.wait();
  };
  for (; !joining.test(); (void)joining.wait(kSignalsEvery)) {
    try {
      take_signals();
    } catch (...) {
      stop();
      throw;
    }
    try {
      const pybind11::gil_scoped_acquire held;
      check();
    } catch (...) {
      stop();
      if (!joined.ok()) throw;
      break;  // all had joined, and the missing one has left again
    }
  }
  return joined;
}

c10::intrusive_ptr<c10d::Backend> join(const std::string& id, int rank, int size, int local_rank,
                                       int local_size, std::optional<int> gpu, const std::string& host,
                                       const std::string& rendezvous, std::int64_t timeout_ms,
                                       std::int64_t join_ms, const pybind11::function& check,
                                       const std::string& group, const std::string& name) {
  InitOptions o;
  TORCH_CHECK_VALUE(id.size() == sizeof(UniqueId::bytes), "ouro: an id of ", id.size(), " bytes");
  o.id.emplace();
  std::copy(id.begin(), id.end(), o.id->bytes);
  o.rank = rank, o.world_size = size, o.local_rank = local_rank, o.local_size = local_size;
  o.gpu = gpu;
  o.host_id = host, o.rendezvous = rendezvous;
  o.join_deadline = Milliseconds(join_ms), o.deadline = Milliseconds(timeout_ms);
  auto options = c10::make_intrusive<OptionsAsGloo>(Milliseconds(timeout_ms), group);
  const pybind11::gil_scoped_release unlocked;
  auto job = std::make_shared<Job>(value_of(interruptibly(std::move(o), check)));
  Group world = job->context.world();
  return c10::make_intrusive<Backend>(std::move(job), std::move(world), std::move(options), name);
}

}  // namespace
}  // namespace ouro::adapter

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "ouro's backend for torch.distributed. ouro.torch registers it.";
  using ouro::adapter::Backend;
  pybind11::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
#ifndef C10D_BACKEND_HAS_HOOKS  // before 2.15, only PyTorch's own backends have these
      .def_property_readonly("options", &Backend::getBackendOptions)
      .def("_set_default_timeout", &Backend::setTimeout)
#endif
      .def_property_readonly("registered_bytes", &Backend::registered,
                             "Bytes of PyTorch's caching allocator that collectives use in place.")
      .def(
          "perform_nocolor_split", [](const Backend&, const pybind11::object&) {},
          "No-op. PyTorch calls it on ranks that are not members of a new group, which only its\n"
          "members create.");
  pybind11::class_<ouro::Registration>(m, "Registration",
                                       "Memory of a GPU that is registered; released with the object.")
      .def(
          "release",
          [](ouro::Registration& r, double wait) {
            const double seconds = wait > 0 ? std::min(wait, 1e9) : 0.0;  // 0 for NaN, too
            const ouro::Status s = r.release(ouro::Milliseconds(static_cast<std::int64_t>(seconds * 1000)));
            if (!s.ok()) std::rethrow_exception(ouro::adapter::exception_of(s));
          },
          pybind11::arg("wait") = 2.0, pybind11::call_guard<pybind11::gil_scoped_release>(),
          "Ends the registration; waits so many seconds for other processes that have memory of cudaMalloc "
          "open, with 0 asks them once. Raises DistBackendError where one still has, or does not answer.");
  m.def(
      "register_memory",
      [](const c10::intrusive_ptr<c10d::Backend>& b, const at::Tensor& t) {
        auto* const backend = dynamic_cast<Backend*>(b.get());
        TORCH_CHECK_VALUE(backend, "ouro: the group is carried by ", b->getBackendName(), ", not by ouro");
        return ouro::adapter::value_of(backend->register_memory(t));
      },
      "Registers the storage of a CUDA tensor, which must live until the registration is released.");
  m.def("version", &ouro::version, "Returns the version of the loaded library.");
  m.def("new_id", &ouro::adapter::new_id,
        "Returns 128 new bytes that are the name and the secret of one job.");
  m.def("end_all", &ouro::adapter::Backend::end_all, pybind11::call_guard<pybind11::gil_scoped_release>(),
        "Aborts the operations in flight in all groups, and ends the threads of the groups, before\n"
        "the interpreter ends. Releases the GIL.");
  m.def("join", &ouro::adapter::join,
        "Joins the job that `id`, the same on all ranks, names, within join_ms, and returns a c10d\n"
        "Backend. Releases the GIL while it waits, and calls check() ten times a second, whose exception\n"
        "ends joining. Raises DistBackendError; ValueError if id is not 128 bytes.",
        pybind11::kw_only(), pybind11::arg("id"), pybind11::arg("rank"), pybind11::arg("size"),
        pybind11::arg("local_rank"), pybind11::arg("local_size"), pybind11::arg("gpu"), pybind11::arg("host"),
        pybind11::arg("rendezvous"), pybind11::arg("timeout_ms"), pybind11::arg("join_ms"),
        pybind11::arg("check"), pybind11::arg("group"), pybind11::arg("name"));
  m.def(
      "lost",
      [](const c10::intrusive_ptr<c10d::Backend>& b) {
        auto* const backend = dynamic_cast<const Backend*>(b.get());
        return backend ? backend->lost() : std::pair<std::string, std::vector<int>>();
      },
      "Returns the text of the failure of a c10d Backend that ouro carries, and the ranks that it has lost.");
  m.def(
      "carries",
      [](const c10::intrusive_ptr<c10d::Backend>& b) {
        return dynamic_cast<const ouro::adapter::Backend*>(b.get()) != nullptr;
      },
      "Returns whether a c10d Backend is one of ouro's.");
}

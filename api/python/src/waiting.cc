// Waiting without the GIL, and running signal handlers meanwhile.
#include "api/python/src/waiting.h"

#include <pthread.h>

namespace ouro::python {
namespace {

using namespace std::chrono_literals;

// Taking the GIL may last 5 ms while other threads compute; a tenth of a second is fast enough for a user.
constexpr auto kSignalsEvery = 100ms;
pthread_t main_thread;

thread_local bool handling = false;  // a signal handler is running inside a call that waits

}  // namespace

void remember_main_thread() {
  const nb::object main = nb::module_::import_("threading").attr("main_thread")();
  main_thread = static_cast<pthread_t>(nb::cast<unsigned long>(main.attr("ident")));
}
bool in_main_thread() { return pthread_equal(pthread_self(), main_thread) != 0; }

Waiting::Waiting() {
  if (!in_main_thread() || handling) return;
  next_ = std::chrono::steady_clock::now() + kSignalsEvery;
  interruptible_.emplace(&Waiting::ask, this);
}
Waiting::~Waiting() = default;

Status Waiting::ask(void* self) {
  auto& waiting = *static_cast<Waiting*>(self);
  const auto now = std::chrono::steady_clock::now();
  if (now < waiting.next_) return {};
  waiting.next_ = now + kSignalsEvery;
  nb::gil_scoped_acquire held;
  handling = true;
  const int raised = PyErr_CheckSignals();
  handling = false;
  if (raised == 0) return {};
  return {Reason::revoked, "a signal handler of its Python program raised an exception while it waited"};
}

void check_interrupted(const Status& s) {
  if (PyErr_Occurred()) throw nb::python_error();
  check(s);
}

Status wait_for(const Work& work, Milliseconds deadline) {
  // A wait for a stream can be cut into pieces, because ending the wait does not end the operation.
  if (work.test() || !in_main_thread()) return without_gil([&] { return work.wait(deadline); });
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const auto gone = std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin);
    Milliseconds piece = kSignalsEvery;
    const bool last = deadline.count() >= 0 && deadline - gone <= piece;
    if (last) piece = std::max(deadline - gone, 0ms);
    const Status s = without_gil([&] { return work.wait(piece); });
    if (work.test() || last) return work.test() ? work.status() : s;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace ouro::python

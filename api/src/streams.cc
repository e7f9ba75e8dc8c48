// Work, streams, events and pools of streams: handles to the runtime's objects. See ouro/ouro.hpp.
#include <fmt/format.h>

#include "ouro/ouro.hpp"
#include "runtime/core/deadline.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro {

Work::Work() = default;
bool Work::test() const { return !state_ || state_->done(); }
Status Work::status() const { return state_ ? state_->outcome() : Status{}; }
Status Work::wait(Milliseconds deadline) const {
  if (!state_) return {};
  if (deadline.count() < 0)
    state_->wait();
  else if (!state_->wait_until(deadline_after(deadline)))
    return {Reason::deadline,
            fmt::format("the operation has not ended within {} ms; it continues", deadline.count())};
  return state_->outcome();
}
void Work::then(std::function<void(const Status&)> f) const {
  if (state_)
    state_->then(std::move(f));
  else
    f(Status{});
}

namespace {
Status check(Priority p) {
  if (p >= Priority::low && p <= Priority::high) return {};
  return invalid(fmt::format("priority {} of a stream; expected one of Priority", static_cast<int>(p)));
}
}  // namespace

Result<Stream> Stream::create(Priority priority, std::string name) {
  OURO_TRY(check(priority));
  const int nice = priority == Priority::low ? 10 : priority == Priority::high ? -5 : 0;
  try {
    return Stream(std::make_shared<rt::HostStream>(name.empty() ? "ouro-stream" : std::move(name), nice));
  } catch (const std::exception& e) {
    return Status(Reason::resource, fmt::format("no thread for a stream: {}", e.what()));
  }
}
Result<Stream> Stream::create(Device device, Priority priority, std::string name) {
  if (device.kind == Device::Kind::host) return create(priority, std::move(name));
  OURO_TRY(check(priority));
  const int level = priority == Priority::low ? -1 : priority == Priority::high ? 1 : 0;
  OURO_ASSIGN(auto made, rt::GpuStream::create(device.index, level));
  return Stream(std::move(made));
}
Result<Stream> Stream::cuda(void* cuda_stream, int device) {
  OURO_ASSIGN(auto wrapped, rt::GpuStream::wrap(device, cuda_stream));
  return Stream(std::move(wrapped));
}
Device Stream::device() const {
  return impl_ && impl_->gpu() ? Device{Device::Kind::cuda, impl_->gpu()->device()} : Device{};
}
void* Stream::cuda_handle() const { return impl_ && impl_->gpu() ? impl_->gpu()->lend().handle : nullptr; }
Work Stream::run(std::function<Status()> f) const {
  if (impl_) return Work(impl_->enqueue(std::move(f)));
  auto state = std::make_shared<rt::WorkState>();
  state->complete(f());
  return Work(std::move(state));
}
Status Stream::synchronize(Milliseconds deadline) const {
  if (!impl_) return {};
  OURO_TRY(impl_->usable());
  if (const auto last = impl_->drained()) {
    const Status waited = Work(last).wait(deadline);
    if (!last->done()) return waited;
    impl_->note(waited);  // for a GPU operation; failures of host operations have already been noted
  }
  return impl_->take_failure();
}

Event::Event() : state_(std::make_shared<rt::EventState>()) {}
void Event::record(const Stream& s) { state_->set(s.valid() ? s.impl()->last() : nullptr); }
void Event::record(const Work& w) { state_->set(w.impl()); }
void Event::wait_on(const Stream& s) const {
  std::shared_ptr<rt::WorkState> mark = state_->get();
  if (!mark) return;
  if (!s.valid()) return mark->wait();  // "no stream": the caller is the queue
  s.impl()->after(std::move(mark));
}
Status Event::synchronize(Milliseconds deadline) const {
  const auto mark = state_->get();
  return mark ? Work(mark).wait(deadline) : Status{};
}
bool Event::query() const {
  const auto mark = state_->get();
  return !mark || mark->done();
}

Result<StreamPool> StreamPool::create(int size, Priority priority, Device device) {
  if (size < 1 || size > 256) return invalid(fmt::format("a pool of {} streams; expected 1 to 256", size));
  StreamPool pool;
  for (int i = 0; i < size; ++i) {
    OURO_ASSIGN(auto s, Stream::create(device, priority, fmt::format("ouro-pool-{}", i)));
    pool.streams_.push_back(std::move(s));
  }
  return pool;
}
Stream StreamPool::next() { return streams_.empty() ? Stream() : streams_[turn_++ % streams_.size()]; }
Stream StreamPool::by_key(std::uint64_t key) const {
  return streams_.empty() ? Stream() : streams_[key % streams_.size()];
}
void StreamPool::after(const Stream& s) const {
  Event mark;
  mark.record(s);
  for (const Stream& mine : streams_) mark.wait_on(mine);
}
void StreamPool::before(const Stream& s) const {
  for (const Stream& mine : streams_) {
    Event mark;
    mark.record(mine);
    mark.wait_on(s);
  }
}
Status StreamPool::synchronize() const {
  Status first;
  for (const Stream& s : streams_)
    if (Status one = s.synchronize(); first.ok()) first = one;
  return first;
}

}  // namespace ouro

// The table of host functions enqueued on device streams. See host_calls.h.
#include "runtime/stream/host_calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

struct Kept {
  int device = 0;
  std::shared_ptr<HostCall> call;
};

struct Table {
  std::mutex mutex;
  std::uint64_t last = 0;  // the last number assigned; numbers are never reused
  std::map<std::uint64_t, Kept> calls;
};

constinit PerProcess<Table> g_table;
Table& table() { return *g_table; }  // never destroyed: the driver may call at any time

std::uint64_t keep(int device, std::shared_ptr<HostCall> call) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  t.calls.emplace_hint(t.calls.end(), ++t.last, Kept{device, std::move(call)});
  return t.last;
}

/// Removes a call from the table. nullptr: it has been removed already.
std::shared_ptr<HostCall> take(std::uint64_t number) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  auto taken = t.calls.extract(number);
  return taken ? std::move(taken.mapped().call) : nullptr;
}

void called(void* number) {
  if (const auto call = take(reinterpret_cast<std::uintptr_t>(number))) call->begin();
}

}  // namespace

Status call_later(const gpu::Stream& stream, std::shared_ptr<HostCall> call) {
  const std::uint64_t number = keep(stream.device, std::move(call));
  Status s = gpu::gpu().call_host(stream, &called, reinterpret_cast<void*>(number));
  if (!s.ok()) (void)take(number);  // if the driver has queued the call nevertheless, it finds no entry
  return s;
}

void give_up_calls(int device, const Status& why) {
  std::vector<std::shared_ptr<HostCall>> given_up;
  {
    Table& t = table();
    std::lock_guard lock(t.mutex);
    for (const auto& [number, kept] : t.calls)
      if (kept.device == device) given_up.push_back(kept.call);
    std::erase_if(t.calls, [&](const auto& entry) { return entry.second.device == device; });
  }
  for (auto& call : given_up) {
    call->give_up(why);
    call = nullptr;  // releases what it holds, which may be the stream
  }
}

std::size_t calls_kept(int device) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  return static_cast<std::size_t>(
      std::ranges::count_if(t.calls, [&](const auto& entry) { return entry.second.device == device; }));
}

}  // namespace ouro::rt

// Who shares the streams that set words. See setter_streams.h.
#include "runtime/exec/gpu/setter_streams.h"

#include <map>
#include <mutex>
#include <utility>

#include "runtime/core/per_process.h"

namespace ouro::rt {
namespace {

struct Setters {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::weak_ptr<GpuStream>> streams;  // by device and priority
  /// The memory that a pass in a stream writes, of groups that were destroyed meanwhile.
  struct Left {
    std::shared_ptr<GpuStream> stream;
    std::vector<std::shared_ptr<void>> memory;
  };
  std::vector<Left> left;
};
constinit PerProcess<Setters> g_setters;

}  // namespace

Result<std::shared_ptr<GpuStream>> setter_stream(int device, int priority) {
  Setters& setters = *g_setters;
  std::vector<Setters::Left> gone;  // destroyed without the lock
  std::lock_guard lock(setters.mutex);
  for (auto it = setters.left.begin(); it != setters.left.end();)
    if (idle(*it->stream))
      gone.push_back(std::move(*it)), it = setters.left.erase(it);
    else
      ++it;
  auto stream = setters.streams[{device, priority}].lock();
  if (!stream) {
    OURO_ASSIGN(stream, GpuStream::create(device, priority));
    setters.streams[{device, priority}] = stream;
  }
  return stream;
}

void keep_until_written(const std::shared_ptr<GpuStream>& stream, std::vector<std::shared_ptr<void>> memory) {
  if (!stream || idle(*stream)) return;
  Setters& setters = *g_setters;
  std::lock_guard lock(setters.mutex);
  setters.left.push_back({stream, std::move(memory)});
}

}  // namespace ouro::rt

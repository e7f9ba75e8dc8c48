// See no_memory.h.
#include "runtime/core/no_memory.h"

namespace ouro {
namespace {

const Status& made() {
  // Never destroyed: programs may call operations while they end.
  static const Status& status =
      *new Status(Reason::resource, "no memory, or no thread, for an operation of this rank");
  return status;
}
[[maybe_unused]] const bool g_made = made().ok();  // makes it when the library is loaded

}  // namespace

Status no_memory() noexcept { return made(); }

}  // namespace ouro

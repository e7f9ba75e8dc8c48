// Export handles as frames on local sockets. Used by DeviceMemory and MulticastObjects.
#pragma once
#include "runtime/core/status.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/job/memory_requests.h"
#include "transport/wire/frames.h"

namespace ouro::rt {

/// Sends the handles as the answer to a request.
Status send_handles(int line, const ExportHandles&);
/// Sends a request to rank r and returns the handles that it answers. Errors: those of MemoryRequests::ask,
/// refused (the answer has no handles).
Result<ExportHandles> request_handles(const MemoryRequests&, int r, const wire::Fetch&);

}  // namespace ouro::rt

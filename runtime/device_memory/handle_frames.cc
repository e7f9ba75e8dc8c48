// Encoding and decoding of export handles. See handle_frames.h.
#include "runtime/device_memory/handle_frames.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/join/local_socket.h"

namespace ouro::rt {

Status send_handles(int line, const ExportHandles& handles) {
  if (!handles.pieces.empty()) {
    wire::Pieces pieces{.bytes = handles.bytes, .sizes = {}};
    std::vector<int> fds;
    for (const auto& piece : handles.pieces) {
      pieces.sizes.push_back(piece.bytes);
      fds.push_back(piece.fd.get());
    }
    return send_frame(line, pieces, fds);
  }
  if (handles.fd) return send_frame(line, wire::Grant{handles.bytes}, {handles.fd.get()});
  wire::Loan loan{.bytes = handles.bytes};
  std::memcpy(loan.handle.data(), handles.ipc_handle.data(), loan.handle.size());
  return send_frame(line, loan);
}

Result<ExportHandles> request_handles(const MemoryRequests& requests, int r, const wire::Fetch& request) {
  std::vector<Fd> fds;
  OURO_ASSIGN(const wire::Frame answer, requests.ask(r, request, &fds));
  ExportHandles handles;
  if (const auto* grant = std::get_if<wire::Grant>(&answer); grant && fds.size() == 1) {
    handles.bytes = grant->bytes;
    handles.fd = std::move(fds[0]);
  } else if (const auto* loan = std::get_if<wire::Loan>(&answer); loan && fds.empty()) {
    handles.bytes = loan->bytes;
    std::memcpy(handles.ipc_handle.data(), loan->handle.data(), loan->handle.size());
  } else if (const auto* some = std::get_if<wire::Pieces>(&answer);
             some && fds.size() == some->sizes.size()) {
    handles.bytes = some->bytes;
    for (std::size_t i = 0; i < fds.size(); ++i)
      handles.pieces.push_back({some->sizes[i], std::move(fds[i])});
  } else {
    return Status(Reason::refused, fmt::format("rank {} answered with something else than device memory", r));
  }
  return handles;
}

}  // namespace ouro::rt

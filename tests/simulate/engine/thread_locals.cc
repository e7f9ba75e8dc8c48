// Thread-local variables of this program. See thread_locals.h.
#include "tests/simulate/engine/thread_locals.h"

#include <cxxabi.h>
#include <link.h>

#include <cstring>

namespace simulate {
namespace {

struct Block {
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  const std::byte* image = nullptr;
  std::size_t image_bytes = 0;
};

/// The first object listed is the program itself.
int find(dl_phdr_info* object, std::size_t, void* found) {
  auto* const block = static_cast<Block*>(found);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& h = object->dlpi_phdr[i];
    if (h.p_type != PT_TLS) continue;
    *block = {static_cast<std::byte*>(object->dlpi_tls_data), h.p_memsz,
              reinterpret_cast<const std::byte*>(object->dlpi_addr + h.p_vaddr), h.p_filesz};
  }
  return 1;
}

const Block& block() {
  static const Block found = [] {
    Block b;
    dl_iterate_phdr(find, &b);
    return b;
  }();
  return found;
}

}  // namespace

std::span<std::byte> thread_locals() { return {block().at, block().bytes}; }

std::vector<std::byte> fresh_thread_locals() {
  std::vector<std::byte> fresh(block().bytes);
  if (block().image_bytes > 0) std::memcpy(fresh.data(), block().image, block().image_bytes);
  return fresh;
}

void** exception_words() { return reinterpret_cast<void**>(abi::__cxa_get_globals()); }

}  // namespace simulate

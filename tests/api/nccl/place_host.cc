// Buffers on the host. See place.h.
#include <algorithm>

#include "place.h"

namespace ouro::test {

int enter_device(int) { return 0; }
cudaStream_t stream_of(int) { return nullptr; }
std::shared_ptr<std::uint8_t> place(const std::vector<std::uint8_t>& bytes, int) {
  std::shared_ptr<std::uint8_t> copy(new std::uint8_t[bytes.size() + 1], [](std::uint8_t* p) { delete[] p; });
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return copy;
}
std::vector<std::uint8_t> fetch(const std::shared_ptr<std::uint8_t>& from, std::size_t bytes, int) {
  return {from.get(), from.get() + bytes};
}

}  // namespace ouro::test

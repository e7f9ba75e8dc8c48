// Messages of an exchange in device memory, with contents that say which message they are. Used by the tests
// of exchanges.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/runtime/exec/gpu/device_arena.h"

namespace ouro::test {

/// Bytes that say which message they are of.
inline std::byte letter_byte(int from, int to, int k, std::size_t i) {
  return static_cast<std::byte>(31 * from + 7 * to + 3 * k + static_cast<int>(i % 251));
}

/// The messages of one rank, in one arena, and whether they have arrived.
class Letters {
 public:
  explicit Letters(Group& g) : group_(g) {}
  void send(int to, std::size_t bytes, std::size_t skew = 0) { add(true, to, bytes, skew); }
  void receive(int from, std::size_t bytes, std::size_t skew = 0) { add(false, from, bytes, skew); }
  /// Allocates the buffers and fills those that are sent; others are cleared.
  Status make(Context& c) {
    device_ = c.device();
    OURO_TRY(arena_.make(c, std::max<std::size_t>(bytes_, 1), From::ouro));
    return fill();
  }
  Status fill() {
    std::vector<std::byte> all(std::max<std::size_t>(bytes_, 1), std::byte{0xee});
    for (const Letter& l : letters_)
      for (std::size_t i = 0; i < l.bytes && l.sends; ++i)
        all[l.at + i] = letter_byte(group_.rank(), l.peer, l.k, i);
    return arena_.write(all);
  }
  std::vector<Transfer> transfers() const {
    std::vector<Transfer> all;
    for (const Letter& l : letters_) {
      const View buffer(arena_.data() + l.at, l.bytes, DType::u8, device_);
      all.push_back(l.sends ? Transfer::send_to(l.peer, buffer) : Transfer::receive_from(l.peer, buffer));
    }
    return all;
  }
  /// "" if every message has arrived, and nothing else was written.
  std::string check() {
    auto all = arena_.read();
    if (!all.ok()) return all.status().message();
    std::vector<bool> mine(all->size());
    for (const Letter& l : letters_)
      for (std::size_t i = 0; i < l.bytes; ++i) {
        mine[l.at + i] = true;
        const std::byte expected =
            l.sends ? letter_byte(group_.rank(), l.peer, l.k, i) : letter_byte(l.peer, group_.rank(), l.k, i);
        if ((*all)[l.at + i] != expected)
          return fmt::format("rank {}: byte {} of message {} {} rank {}", group_.rank(), i, l.k,
                             l.sends ? "to" : "from", l.peer);
      }
    for (std::size_t i = 0; i < bytes_; ++i)
      if (!mine[i] && (*all)[i] != std::byte{0xee}) return fmt::format("byte {} between buffers", i);
    return "";
  }

 private:
  struct Letter {
    bool sends;
    int peer, k;
    std::size_t at, bytes;
  };
  void add(bool sends, int peer, std::size_t bytes, std::size_t skew) {
    const int k = static_cast<int>(
        std::ranges::count_if(letters_, [&](const Letter& l) { return l.sends == sends && l.peer == peer; }));
    letters_.push_back({sends, peer, k, bytes_ + skew, bytes});
    bytes_ += (skew + bytes + 255) / 256 * 256 + 256;
  }
  Group& group_;
  std::vector<Letter> letters_;
  std::size_t bytes_ = 0;
  Device device_;
  DeviceArena arena_;
};
#define OURO_EXPECT_LETTERS(letters)                             \
  do {                                                           \
    if (std::string said = (letters).check(); !said.empty())     \
      return fmt::format("{}:{}: {}", __FILE__, __LINE__, said); \
  } while (0)

}  // namespace ouro::test

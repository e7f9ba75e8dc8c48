// Encoding of numbers and texts as bytes: little-endian, bounded, no padding. Used by all that is sent in
// frames, by the handshake and by the seals.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "transport/wire/keys.h"

namespace ouro::wire {

template <class T>
void put_number(std::uint8_t* at, T v) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    at[i] = static_cast<std::uint8_t>(static_cast<std::uint64_t>(v) >> (8 * i));
}
template <class T>
T get_number(const std::uint8_t* at) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) v |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(v);
}

class Writer {
 public:
  template <class T>
  void number(T v) {
    bytes.resize(bytes.size() + sizeof(T));
    put_number(bytes.data() + bytes.size() - sizeof(T), v);
  }
  /// Appends a text, cut at `limit`, which is below 64 Ki.
  void text(std::string_view s, std::size_t limit) {
    const std::size_t n = std::min(s.size(), limit);
    number(static_cast<std::uint16_t>(n));
    bytes.insert(bytes.end(), s.begin(), s.begin() + static_cast<std::ptrdiff_t>(n));
  }
  void raw(View a) { bytes.insert(bytes.end(), a.begin(), a.end()); }
  Bytes bytes;
};

/// After the first error every read returns zeros, and finish() returns the error.
class Reader {
 public:
  explicit Reader(View b) : rest_(b) {}
  template <class T>
  T number() {
    const View v = bytes(sizeof(T));
    return v.empty() ? T{} : get_number<T>(v.data());
  }
  View bytes(std::size_t n) {
    if (rest_.size() < n) return fail("it is too short"), View{};
    const View v = rest_.first(n);
    rest_ = rest_.subspan(n);
    return v;
  }
  View counted(std::size_t limit) {
    const std::size_t n = number<std::uint16_t>();
    if (n > limit) return fail("a text is too long"), View{};
    return bytes(n);
  }
  std::string text(std::size_t limit) {
    const View v = counted(limit);
    return {v.begin(), v.end()};
  }
  template <std::size_t n>
  std::array<std::uint8_t, n> raw() {
    std::array<std::uint8_t, n> a{};
    const View v = bytes(n);
    std::copy(v.begin(), v.end(), a.begin());
    return a;
  }
  void expect(bool ok, const char* why) {
    if (!ok) fail(why);
  }
  std::size_t left() const { return rest_.size(); }
  bool good() const { return error_ == nullptr; }
  /// Returns the error, or nullptr if everything was read without one.
  const char* finish() {
    if (!rest_.empty()) fail("bytes are left over");
    return error_;
  }

 private:
  void fail(const char* why) {
    if (!error_) error_ = why;
    rest_ = {};
  }
  View rest_;
  const char* error_ = nullptr;
};

inline View view(std::string_view s) { return {reinterpret_cast<const std::uint8_t*>(s.data()), s.size()}; }

}  // namespace ouro::wire

// Small messages as numbers. Used by the tests of mailboxes and roles.
#pragma once
#include <initializer_list>
#include <vector>

#include "ouro/train/param.hpp"

namespace ouro::test {

inline Bytes bytes_of(std::initializer_list<int> values) {
  Bytes b;
  for (const int v : values) b.push_back(static_cast<std::byte>(v));
  return b;
}

inline std::vector<int> ints(CBytes bytes) {
  std::vector<int> v;
  for (const std::byte b : bytes) v.push_back(static_cast<int>(b));
  return v;
}

}  // namespace ouro::test

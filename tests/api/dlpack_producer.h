// Tensors as another library creates them. Used by the tests of DLPack.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ouro/dlpack_abi.h"

namespace ouro::test {

using Numbers = std::vector<std::int64_t>;

inline constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// A tensor that counts the calls of its deleter. `Form` is one of the two structs. It has room for 64
/// dimensions, so that any accepted number of them really exists.
template <class Form>
struct Producer {
  std::array<std::int64_t, 64> shape = {}, strides = {};
  std::vector<float> data;
  int freed = 0;
  Form tensor = {};

  Producer(const Numbers& s, const Numbers& st = {}) : data(64) {
    std::iota(data.begin(), data.end(), 0.0f);
    std::copy(s.begin(), s.end(), shape.begin());
    std::copy(st.begin(), st.end(), strides.begin());
    tensor.dl_tensor = {data.data(),
                        {kDLCPU, 0},
                        static_cast<std::int32_t>(s.size()),
                        {kDLFloat, 32, 1},
                        shape.data(),
                        st.empty() ? nullptr : strides.data(),
                        0};
    tensor.manager_ctx = &freed;
    tensor.deleter = [](Form* self) { ++*static_cast<int*>(self->manager_ctx); };
    if constexpr (requires { tensor.version; }) tensor.version = {1, 0};
  }
  Producer(const Producer&) = delete;
  DLTensor* operator->() { return &tensor.dl_tensor; }
};

}  // namespace ouro::test

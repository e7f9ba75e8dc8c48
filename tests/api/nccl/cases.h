// One operation of nccl.h with data whose result is exact in every type, and the result of a serial loop.
// Used by the tests of libnccl.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ranks.h"

namespace ouro::test {

enum class Op {
  all_reduce,
  reduce,
  broadcast,
  bcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter
};

struct Case {
  Op op = Op::all_reduce;
  ncclDataType_t type = ncclFloat32;
  int redop = ncclSum;  ///< ncclNumOps: inputs are multiplied by 2, on odd ranks by 1, before they are summed
  std::size_t count = 1;
  bool in_place = false;
  int root = 0;
  std::string name() const;
};

std::size_t bytes_of(ncclDataType_t);
/// The bits of a small integer in a type.
std::uint64_t encode(ncclDataType_t, int value);
/// Elements made from small integers.
std::vector<std::uint8_t> encode(ncclDataType_t, const std::vector<int>& values);

/// The step that runs a case on `size` ranks and compares all of every output with the serial result; the
/// margins around buffers must not change.
Step step_of(const Case&, int size);

}  // namespace ouro::test

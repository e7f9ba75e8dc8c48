// Operations with exact results. See cases.h.
#include "cases.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ouro::test {
namespace {

constexpr std::size_t kMargin = 64;
constexpr std::uint8_t kUntouched = 0xa5;
constexpr const char* kNames[] = {"all_reduce",     "reduce",     "broadcast", "bcast",  "all_gather",
                                  "reduce_scatter", "all_to_all", "gather",    "scatter"};

bool blocks_in(Op op) { return op == Op::reduce_scatter || op == Op::all_to_all || op == Op::scatter; }
bool blocks_out(Op op) { return op == Op::all_gather || op == Op::all_to_all || op == Op::gather; }
bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

/// Input element i of a rank. Reductions stay so small that float8 holds them, whatever is summed or
/// multiplied: a few ranks differ from the others, and averages divide.
int input(const Case& c, int size, int rank, std::size_t i) {
  if (!reduces(c.op)) return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % 8);
  const int wave = static_cast<int>(i % 2);
  if (c.redop == ncclProd) return rank == static_cast<int>(i % static_cast<std::size_t>(size)) ? 2 : 1;
  if (c.redop == ncclMax || c.redop == ncclMin)
    return static_cast<int>((i + static_cast<std::size_t>(rank) * 5) % 8);
  if (c.redop == ncclAvg) return 1 + wave;  // of equal numbers, the number
  return rank < 2 ? wave + 1 : 0;           // sums of at most 4, doubled 8
}

int reduced(const Case& c, int size, std::size_t i) {
  int sum = 0, product = 1, most = 0, least = 8;
  for (int r = 0; r < size; ++r) {
    const int x = input(c, size, r, i);
    sum += x, product *= x, most = std::max(most, x), least = std::min(least, x);
  }
  switch (c.redop) {
    case ncclSum:
      return sum;
    case ncclProd:
      return product;
    case ncclMax:
      return most;
    case ncclMin:
      return least;
    case ncclAvg:
      return sum / size;
    default:
      return 2 * sum;
  }
}

/// What the output of a rank must hold; empty: it is not written.
std::vector<int> expected(const Case& c, int size, int rank) {
  const auto n = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  std::vector<int> out;
  switch (c.op) {
    case Op::all_reduce:
    case Op::reduce:
      if (c.op == Op::reduce && rank != c.root) return {};
      for (std::size_t i = 0; i < c.count; ++i) out.push_back(reduced(c, size, i));
      break;
    case Op::broadcast:
    case Op::bcast:
      for (std::size_t i = 0; i < c.count; ++i) out.push_back(input(c, size, c.root, i));
      break;
    case Op::all_gather:
    case Op::gather:
      if (c.op == Op::gather && rank != c.root) return {};
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t i = 0; i < c.count; ++i) out.push_back(input(c, size, static_cast<int>(r), i));
      break;
    case Op::reduce_scatter:
      for (std::size_t i = 0; i < c.count; ++i) out.push_back(reduced(c, size, me * c.count + i));
      break;
    case Op::all_to_all:
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t i = 0; i < c.count; ++i)
          out.push_back(input(c, size, static_cast<int>(r), me * c.count + i));
      break;
    case Op::scatter:
      for (std::size_t i = 0; i < c.count; ++i) out.push_back(input(c, size, c.root, me * c.count + i));
      break;
  }
  return out;
}

struct Buffers {
  std::vector<std::uint8_t> in, out;
  std::uint8_t *send = nullptr, *recv = nullptr;
};

void prepare(const Case& c, int size, int rank, Buffers* b) {
  const std::size_t n = static_cast<std::size_t>(size), bytes = c.count * bytes_of(c.type);
  const std::size_t in = bytes * (blocks_in(c.op) ? n : 1), out = bytes * (blocks_out(c.op) ? n : 1);
  std::vector<int> values;
  for (std::size_t i = 0; i < c.count * (blocks_in(c.op) ? n : 1); ++i)
    values.push_back(input(c, size, rank, i));
  const std::vector<std::uint8_t> data = encode(c.type, values);
  b->in = data;
  b->out.assign(std::max(in, out) + 2 * kMargin, kUntouched);
  b->send = b->in.data(), b->recv = b->out.data() + kMargin;
  if (!c.in_place && c.op != Op::bcast) return;
  // Both are one buffer: the smaller of the two is the rank's part of the larger.
  const auto me = static_cast<std::size_t>(rank);
  std::uint8_t* const whole = b->recv;
  const bool part_is_in = blocks_out(c.op), part_is_out = blocks_in(c.op);
  b->send = whole + (part_is_in ? me * bytes : 0);
  b->recv = whole + (part_is_out ? me * bytes : 0);
  std::copy(data.begin(), data.end(), b->send);
}

void verify(const Case& c, int size, int rank, const Buffers& b) {
  const std::vector<int> values = expected(c, size, rank);
  if (values.empty()) return;
  const std::vector<std::uint8_t> wanted = encode(c.type, values);
  for (std::size_t k = 0; k < wanted.size(); ++k)
    ASSERT_EQ(int{b.recv[k]}, int{wanted[k]}) << "byte " << k << " of " << wanted.size();
  for (std::size_t k = 0; k < kMargin; ++k)
    ASSERT_TRUE(b.out[k] == kUntouched && b.out[b.out.size() - 1 - k] == kUntouched) << "margin";
}

ncclResult_t call(const Case& c, int rank, ncclComm_t comm, const Buffers& b) {
  auto redop = static_cast<ncclRedOp_t>(c.redop);
  const bool made = reduces(c.op) && c.redop == ncclNumOps;
  std::uint64_t two = encode(c.type, 2);
  if (made)
    if (const auto s = ncclRedOpCreatePreMulSum(&redop, &two, c.type, ncclScalarHostImmediate, comm);
        s != ncclSuccess)
      return s;
  // Who need not have a buffer has none.
  const bool root = rank == c.root;
  const void* const send = (c.op == Op::scatter || c.op == Op::broadcast) && !root ? nullptr : b.send;
  void* const recv = (c.op == Op::gather || c.op == Op::reduce) && !root ? nullptr : b.recv;
  ncclResult_t result = ncclInternalError;
  switch (c.op) {
    case Op::all_reduce:
      result = ncclAllReduce(send, recv, c.count, c.type, redop, comm, nullptr);
      break;
    case Op::reduce:
      result = ncclReduce(send, recv, c.count, c.type, redop, c.root, comm, nullptr);
      break;
    case Op::broadcast:
      result = ncclBroadcast(send, recv, c.count, c.type, c.root, comm, nullptr);
      break;
    case Op::bcast:
      result = ncclBcast(recv, c.count, c.type, c.root, comm, nullptr);
      break;
    case Op::all_gather:
      result = ncclAllGather(send, recv, c.count, c.type, comm, nullptr);
      break;
    case Op::reduce_scatter:
      result = ncclReduceScatter(send, recv, c.count, c.type, redop, comm, nullptr);
      break;
    case Op::all_to_all:
      result = ncclAlltoAll(send, recv, c.count, c.type, comm, nullptr);
      break;
    case Op::gather:
      result = ncclGather(send, recv, c.count, c.type, c.root, comm, nullptr);
      break;
    case Op::scatter:
      result = ncclScatter(send, recv, c.count, c.type, c.root, comm, nullptr);
      break;
  }
  if (made && ncclRedOpDestroy(redop, comm) != ncclSuccess)
    return ncclInternalError;  // also before ncclGroupEnd
  return result;
}

}  // namespace

std::string Case::name() const {
  return std::string(kNames[static_cast<int>(op)]) + " type " + std::to_string(type) + " op " +
         std::to_string(redop) + " count " + std::to_string(count) + (in_place ? " in place" : "") +
         " root " + std::to_string(root);
}

std::size_t bytes_of(ncclDataType_t type) {
  static constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes[type];
}

std::uint64_t encode(ncclDataType_t type, int value) {
  const auto small = [&](int mantissa,
                         int bias) -> std::uint64_t {  // of a whole number that the format holds
    if (value == 0) return 0;
    const int exponent = std::bit_width(static_cast<unsigned>(value)) - 1;
    const unsigned fraction = (static_cast<unsigned>(value) << mantissa >> exponent) & ((1u << mantissa) - 1);
    return static_cast<std::uint64_t>(exponent + bias) << mantissa | fraction;
  };
  switch (type) {
    case ncclFloat16:
      return small(10, 15);
    case ncclBfloat16:
      return small(7, 127);
    case ncclFloat8e4m3:
      return small(3, 7);
    case ncclFloat8e5m2:
      return small(2, 15);
    case ncclFloat32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case ncclFloat64:
      return std::bit_cast<std::uint64_t>(static_cast<double>(value));
    default:
      return static_cast<std::uint64_t>(value);
  }
}

std::vector<std::uint8_t> encode(ncclDataType_t type, const std::vector<int>& values) {
  const std::size_t bytes = bytes_of(type);
  std::vector<std::uint8_t> data(values.size() * bytes);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = encode(type, values[i]);
    std::memcpy(data.data() + i * bytes, &bits, bytes);
  }
  return data;
}

Step step_of(const Case& c, int size) {
  auto buffers = std::make_shared<std::vector<Buffers>>(static_cast<std::size_t>(size));
  const auto at = [buffers](int rank) -> Buffers& { return (*buffers)[static_cast<std::size_t>(rank)]; };
  return {c.name(), [=](int rank) { prepare(c, size, rank, &at(rank)); },
          [=](int rank, ncclComm_t comm) { return call(c, rank, comm, at(rank)); },
          [=](int rank) {
            verify(c, size, rank, at(rank));
            at(rank) = {};
          }};
}

}  // namespace ouro::test

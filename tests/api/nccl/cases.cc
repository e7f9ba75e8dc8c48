// Operations with exact results. See cases.h.
#include "cases.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "place.h"

namespace ouro::test {
namespace {

constexpr std::size_t kMargin = 64;
constexpr std::uint8_t kUntouched = 0xa5;
constexpr const char* kNames[] = {"all_reduce",     "reduce",     "broadcast", "bcast",  "all_gather",
                                  "reduce_scatter", "all_to_all", "gather",    "scatter"};

bool blocks_in(Op op) { return op == Op::reduce_scatter || op == Op::all_to_all || op == Op::scatter; }
bool blocks_out(Op op) { return op == Op::all_gather || op == Op::all_to_all || op == Op::gather; }
bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

bool is_signed(ncclDataType_t t) { return t != ncclUint8 && t != ncclUint32 && t != ncclUint64; }
bool is_integer(ncclDataType_t t) { return t <= ncclUint64; }

/// The limit up to which every integer is exact in the type.
int exact_up_to(ncclDataType_t t) {
  switch (t) {
    case ncclInt8:
      return 127;
    case ncclUint8:
      return 255;
    case ncclBfloat16:
      return 256;
    case ncclFloat8e4m3:
      return 16;
    case ncclFloat8e5m2:
      return 8;
    default:
      return 2000;  // float16: 2048
  }
}

/// A different number for each rank and element, without a period.
unsigned mixed(std::size_t i, int rank) {
  std::uint64_t x = i * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank + 1) * 0xc2b2ae3d27d4eb4fu;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return static_cast<unsigned>(x >> 33);
}

int factor_of(const Case& c, int rank) { return c.redop == ncclNumOps ? 2 - rank % 2 : 1; }

/// Input element i of a rank, chosen so that the result of the operation depends on every rank and is exact.
int input(const Case& c, int size, int rank, std::size_t i) {
  const int most = exact_up_to(c.type);
  const int some = static_cast<int>(mixed(i, rank)), of_all = static_cast<int>(mixed(i, -1));
  const int sign = is_signed(c.type) && (some & 1) != 0 ? -1 : 1;
  // True on `many` ranks, which differ for each element.
  const auto is_among = [&](int many) { return (rank + of_all) % size < many; };
  if (!reduces(c.op) || c.redop == ncclMax || c.redop == ncclMin) return sign * (some / 2 % (most + 1));
  if (c.redop == ncclProd) return sign * (is_among(6) ? 2 : 1);  // at most 64, with the product of all signs
  if (c.redop == ncclAvg) {
    // Of each pair of ranks, one is above the average by as much as the other is below it; for integers there
    // is a remainder.
    const int average = (3 + of_all % 3) * (is_signed(c.type) && of_all % 2 == 0 ? -1 : 1);
    const int other = rank ^ 1, pair = std::min(rank, other);
    const int more = other < size ? static_cast<int>(mixed(i, pair) % 3) * (rank == pair ? 1 : -1) : 0;
    return average + more + (is_integer(c.type) && is_among(1) ? of_all / 8 % size : 0);
  }
  const int sum = most / 2;  // the factors double it
  if (sum < size) return is_among(sum) ? 1 : 0;
  return sign * (some / 2 % (sum / size + 1));
}

int reduced(const Case& c, int size, std::size_t i) {
  int sum = 0, product = 1, most = INT_MIN, least = INT_MAX;
  for (int r = 0; r < size; ++r) {
    const int x = input(c, size, r, i);
    if (c.redop == ncclProd) product *= x;  // the products of other types may be too large
    sum += factor_of(c, r) * x, most = std::max(most, x), least = std::min(least, x);
  }
  switch (c.redop) {
    case ncclProd:
      return product;
    case ncclMax:
      return most;
    case ncclMin:
      return least;
    case ncclAvg:
      return sum / size;
    default:
      return sum;
  }
}

/// The expected output of a rank; empty: it is not written.
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
  std::vector<std::uint8_t> sent;
  std::shared_ptr<std::uint8_t> in, out;
  std::size_t out_bytes = 0;
  std::uint8_t *send = nullptr, *recv = nullptr;
};

void prepare(const Case& c, int size, int rank, Buffers* b) {
  const std::size_t n = static_cast<std::size_t>(size), bytes = c.count * bytes_of(c.type);
  const std::size_t in = bytes * (blocks_in(c.op) ? n : 1), out = bytes * (blocks_out(c.op) ? n : 1);
  std::vector<int> values;
  for (std::size_t i = 0; i < c.count * (blocks_in(c.op) ? n : 1); ++i)
    values.push_back(input(c, size, rank, i));
  const std::vector<std::uint8_t> data = encode(c.type, values);
  std::vector<std::uint8_t> whole(std::max(in, out) + 2 * kMargin, kUntouched);
  // In place both are one buffer: the smaller one is the rank's part of the larger one.
  const std::size_t mine = static_cast<std::size_t>(rank) * bytes;
  const bool together = c.in_place || c.op == Op::bcast;
  const std::size_t send = kMargin + (blocks_out(c.op) ? mine : 0),
                    recv = kMargin + (blocks_in(c.op) ? mine : 0);
  if (together) std::copy(data.begin(), data.end(), whole.begin() + static_cast<std::ptrdiff_t>(send));
  b->out = place(whole, rank), b->out_bytes = whole.size();
  if (!together) b->in = place(data, rank), b->sent = data;
  b->send = together ? b->out.get() + send : b->in.get();
  b->recv = b->out.get() + (together ? recv : kMargin);
}

void verify(const Case& c, int size, int rank, const Buffers& b) {
  const std::vector<std::uint8_t> whole = fetch(b.out, b.out_bytes, rank);
  for (std::size_t k = 0; k < kMargin; ++k)
    ASSERT_TRUE(whole[k] == kUntouched && whole[whole.size() - 1 - k] == kUntouched) << "margin";
  if (b.in) {
    ASSERT_TRUE(fetch(b.in, b.sent.size(), rank) == b.sent) << "the input has changed";
  }
  const std::vector<int> values = expected(c, size, rank);
  if (values.empty() && b.in) {
    for (const std::uint8_t byte : whole) ASSERT_EQ(byte, kUntouched) << "of who gets nothing";
  }
  const std::vector<std::uint8_t> wanted = encode(c.type, values);
  const std::uint8_t* const got = whole.data() + (b.recv - b.out.get());
  for (std::size_t k = 0; k < wanted.size(); ++k)
    ASSERT_EQ(int{got[k]}, int{wanted[k]}) << "byte " << k << " of " << wanted.size();
}

ncclResult_t call(const Case& c, int rank, ncclComm_t comm, const Buffers& b) {
  auto redop = static_cast<ncclRedOp_t>(c.redop);
  const bool made = reduces(c.op) && c.redop == ncclNumOps;
  std::uint8_t factor[16];  // only the type's bytes are read
  std::fill(std::begin(factor), std::end(factor), kUntouched);
  const std::uint64_t bits = encode(c.type, factor_of(c, rank));
  std::memcpy(factor, &bits, bytes_of(c.type));
  if (made)
    if (const auto s = ncclRedOpCreatePreMulSum(&redop, factor, c.type, ncclScalarHostImmediate, comm);
        s != ncclSuccess)
      return s;
  // A rank that does not need a buffer passes none.
  const bool root = rank == c.root;
  const void* const send = (c.op == Op::scatter || c.op == Op::broadcast) && !root ? nullptr : b.send;
  void* const recv = (c.op == Op::gather || c.op == Op::reduce) && !root ? nullptr : b.recv;
  ncclResult_t result = ncclInternalError;
  switch (c.op) {
    case Op::all_reduce:
      result = ncclAllReduce(send, recv, c.count, c.type, redop, comm, stream_of(rank));
      break;
    case Op::reduce:
      result = ncclReduce(send, recv, c.count, c.type, redop, c.root, comm, stream_of(rank));
      break;
    case Op::broadcast:
      result = ncclBroadcast(send, recv, c.count, c.type, c.root, comm, stream_of(rank));
      break;
    case Op::bcast:
      result = ncclBcast(recv, c.count, c.type, c.root, comm, stream_of(rank));
      break;
    case Op::all_gather:
      result = ncclAllGather(send, recv, c.count, c.type, comm, stream_of(rank));
      break;
    case Op::reduce_scatter:
      result = ncclReduceScatter(send, recv, c.count, c.type, redop, comm, stream_of(rank));
      break;
    case Op::all_to_all:
      result = ncclAlltoAll(send, recv, c.count, c.type, comm, stream_of(rank));
      break;
    case Op::gather:
      result = ncclGather(send, recv, c.count, c.type, c.root, comm, stream_of(rank));
      break;
    case Op::scatter:
      result = ncclScatter(send, recv, c.count, c.type, c.root, comm, stream_of(rank));
      break;
  }
  if (made && ncclRedOpDestroy(redop, comm) != ncclSuccess)
    return ncclInternalError;  // even before ncclGroupEnd
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
  // The bits of an integer that the format can represent.
  const auto small = [&](int mantissa, int bias) -> std::uint64_t {
    if (value == 0) return 0;
    const auto size = static_cast<unsigned>(std::abs(value));
    const int exponent = std::bit_width(size) - 1;
    const unsigned fraction = (size << mantissa >> exponent) & ((1u << mantissa) - 1);
    const std::uint64_t sign = std::uint64_t{value < 0} << (8 * bytes_of(type) - 1);
    return sign | static_cast<std::uint64_t>(exponent + bias) << mantissa | fraction;
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
      return static_cast<std::uint64_t>(std::int64_t{value});
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

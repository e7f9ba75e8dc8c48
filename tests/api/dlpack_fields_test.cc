// Tensors of another library with arbitrary values in their fields, and tensors in the collectives of
// two ranks.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>

#include "ouro/dlpack.hpp"
#include "tests/api/dlpack_producer.h"
#include "tests/runtime/group/ranks.h"

namespace ouro {
namespace {

using test::kMost;
using test::Producer;

template <class Form>
struct DlpackFields : ::testing::Test {};
using Forms = ::testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DlpackFields, Forms);

/// A possible value of a field: a number at the limits of its type, or any number.
std::int64_t odd_number(std::mt19937_64& random) {
  constexpr std::int64_t kEdges[] = {0,  1,  -1,  2,   3,       4,     8,         16,        32,
                                     64, 65, 127, 255, 1 << 16, kMost, kMost / 2, -kMost - 1};
  return random() % 4 == 0 ? static_cast<std::int64_t>(random()) : kEdges[random() % std::size(kEdges)];
}

TYPED_TEST(DlpackFields, AnyFieldsAreReadWithoutHarm) {
  std::mt19937_64 random(7);
  int taken = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Producer<TypeParam> p({2, 1, 4, 2}, {8, 1, 2, 1});
    for (int changes = static_cast<int>(random() % 3); changes >= 0; --changes) {
      const std::int64_t x = odd_number(random);
      switch (random() % 10) {
        case 0:
          p->ndim = static_cast<std::int32_t>(x);
          break;
        case 1:
          p->dtype.code = static_cast<std::uint8_t>(x);
          break;
        case 2:
          p->dtype.bits = static_cast<std::uint8_t>(x);
          break;
        case 3:
          p->dtype.lanes = static_cast<std::uint16_t>(x);
          break;
        case 4:
          p->device = {static_cast<DLDeviceType>(x), static_cast<std::int32_t>(random())};
          break;
        case 5:
          p.shape[random() % 4] = x;
          break;
        case 6:
          p.strides[random() % 4] = x;
          break;
        case 7:
          p->byte_offset = static_cast<std::uint64_t>(x);
          break;
        case 8:
          if constexpr (requires { p.tensor.version; })
            p.tensor.version.major = static_cast<std::uint32_t>(x);
          break;
        default:
          if (random() % 2 == 0)
            p->data = nullptr;
          else
            p->strides = nullptr;
      }
    }
    {
      auto in = from_dlpack(&p.tensor);
      (in.ok() ? taken : refused) += 1;
      if (in.ok()) {
        const CView v = in->cview();
        ASSERT_TRUE(in->space() == Space::cpu || in->space() == Space::cuda_host ||
                    v.device.kind == Device::Kind::cuda);
        ASSERT_TRUE(v.data != nullptr || v.count == 0);
        ASSERT_EQ(in->shape().size(), in->strides().size());
        std::size_t count = 1;
        for (const std::int64_t d : in->shape()) count *= static_cast<std::size_t>(d);
        ASSERT_EQ(v.count, count);
        auto again = to_dlpack(*in->view(), in->shape(), nullptr, {.order = in->order()});
        ASSERT_TRUE(again.ok()) << again.status().message();
        (*again)->deleter(*again);
      }
      ASSERT_EQ(p.freed, 0);
      ASSERT_TRUE(in.ok() || in.status().code() == Code::invalid || in.status().code() == Code::unsupported);
      if (!in.ok()) continue;
    }
    ASSERT_EQ(p.freed, 1);
  }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 5000);
}

TEST(DlpackRanks, TwoRanksReduceArraysOfAnotherLibrary) {
  EXPECT_EQ(test::run_threads(2,
                              [](Context& c) -> std::string {
                                Producer<DLManagedTensorVersioned> a({2, 8});
                                Producer<DLManagedTensor> b({16});
                                {
                                  auto in = from_dlpack(&a.tensor, Access::read);
                                  auto to = from_dlpack(&b.tensor);
                                  OURO_RANK_OK(in);
                                  OURO_RANK_OK(to);
                                  OURO_RANK_OK(all_reduce(c.world(), in->cview(), *to->view()));
                                  auto stream = Stream::create();
                                  OURO_RANK_OK(stream);
                                  auto work =
                                      all_reduce(c.world(), *to->view(), *to->view(), ReduceOp::sum, *stream);
                                  OURO_RANK_OK(work);
                                  OURO_RANK_OK(work->wait());
                                }
                                for (std::size_t i = 0; i < 16; ++i)
                                  OURO_RANK_CHECK(b.data[i] == 4 * a.data[i], "element {}: {}", i, b.data[i]);
                                OURO_RANK_CHECK(a.freed == 1 && b.freed == 1,
                                                "{} and {} calls of the deleters", a.freed, b.freed);
                                return "";
                              }),
            "");
}

}  // namespace
}  // namespace ouro

// Arrays of other libraries: values are passed unchanged, who frees an array and when, and everything that
// is refused.
#include "ouro/dlpack.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ouro/dlpack_abi.h"
#include "ouro/train/average.hpp"
#include "tests/api/dlpack_layout.h"
#include "tests/api/dlpack_producer.h"

namespace ouro {
namespace {

using test::kMost;
using test::Numbers;
using test::Producer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::Order;

template <class Form>
struct Dlpack : ::testing::Test {};
using Forms = ::testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(Dlpack, Forms);

Result<DLManagedTensor*> out(View v, const Numbers& shape, std::shared_ptr<const void> owner, Order order,
                             DLManagedTensor*) {
  return to_dlpack_unversioned(v, shape, std::move(owner), {.order = order});
}
Result<DLManagedTensorVersioned*> out(View v, const Numbers& shape, std::shared_ptr<const void> owner,
                                      Order order, DLManagedTensorVersioned*) {
  return to_dlpack(v, shape, std::move(owner), {.order = order});
}

/// The tensor is refused for this reason with this text, and still belongs to the caller.
template <class Form>
void expect_refused(Producer<Form>& p, Reason reason, const std::string& words,
                    Access access = Access::write) {
  SCOPED_TRACE(words);
  {
    auto in = from_dlpack(&p.tensor, access);
    ASSERT_FALSE(in.ok());
    EXPECT_EQ(in.status().reason(), reason) << in.status().message();
    EXPECT_THAT(in.status().message(), HasSubstr(words));
  }
  EXPECT_EQ(p.freed, 0);
}

TYPED_TEST(Dlpack, TheDeleterIsCalledOnceWithTheLastCopy) {
  Producer<TypeParam> p({2, 3});
  {
    std::optional<Imported> first;
    {
      auto in = from_dlpack(&p.tensor);
      ASSERT_TRUE(in.ok()) << in.status().message();
      first = *in;
      EXPECT_EQ(in->view()->data, p.data.data());
      EXPECT_EQ(in->view()->count, 6u);
      EXPECT_THAT(in->shape(), ElementsAre(2, 3));
      EXPECT_THAT(in->strides(), ElementsAre(3, 1));
      EXPECT_EQ(in->order(), Order::row_major);
      EXPECT_EQ(in->space(), Space::cpu);
      EXPECT_EQ(in->device(), Device{});
      EXPECT_FALSE(in->read_only());
    }
    EXPECT_EQ(p.freed, 0);
    std::thread([last = std::move(*first)] { EXPECT_EQ(last.cview().count, 6u); }).join();
  }
  EXPECT_EQ(p.freed, 1);
}

TYPED_TEST(Dlpack, WithoutADeleterNothingIsCalled) {
  Producer<TypeParam> p({4});
  p.tensor.deleter = nullptr;
  EXPECT_TRUE(from_dlpack(&p.tensor).ok());
  EXPECT_EQ(p.freed, 0);
}

TYPED_TEST(Dlpack, EveryTypeIsExportedAndImportedUnchanged) {
  struct Code {
    DType dtype;
    int code, bits;
  };
  constexpr Code kCodes[] = {{DType::i8, 0, 8},      {DType::u8, 1, 8},      {DType::i16, 0, 16},
                             {DType::u16, 1, 16},    {DType::i32, 0, 32},    {DType::u32, 1, 32},
                             {DType::i64, 0, 64},    {DType::u64, 1, 64},    {DType::f16, 2, 16},
                             {DType::f32, 2, 32},    {DType::f64, 2, 64},    {DType::bf16, 4, 16},
                             {DType::f8e4m3, 10, 8}, {DType::f8e5m2, 12, 8}, {DType::boolean, 6, 8}};
  static_assert(std::size(kCodes) == kDTypes);
  for (const Code& c : kCodes) {
    SCOPED_TRACE(name(c.dtype));
    auto memory = std::make_shared<std::vector<std::byte>>(64);
    auto* const at = memory->data();
    auto made = out(View(at, 6, c.dtype), {3, 2}, memory, Order::row_major, static_cast<TypeParam*>(nullptr));
    ASSERT_TRUE(made.ok()) << made.status().message();
    TypeParam* t = *made;
    EXPECT_EQ(t->dl_tensor.dtype.code, c.code);
    EXPECT_EQ(t->dl_tensor.dtype.bits, c.bits);
    EXPECT_EQ(t->dl_tensor.dtype.lanes, 1);
    EXPECT_EQ(t->dl_tensor.device.device_type, kDLCPU);
    EXPECT_EQ(memory.use_count(), 2);
    {
      auto in = from_dlpack(t);
      ASSERT_TRUE(in.ok()) << in.status().message();
      EXPECT_EQ(in->dtype(), c.dtype);
      EXPECT_EQ(in->cview().data, at);
      EXPECT_EQ(in->cview().bytes(), 6 * size_of(c.dtype));
      EXPECT_THAT(in->shape(), ElementsAre(3, 2));
      EXPECT_EQ(memory.use_count(), 2);
    }
    EXPECT_EQ(memory.use_count(), 1);
  }
}

TYPED_TEST(Dlpack, OrderAndShapeSurviveExportAndImport) {
  std::vector<float> data(120);
  struct Case {
    Numbers shape;
    Order order;
    Numbers strides;
  };
  const Case kCases[] = {{{}, Order::row_major, {}},
                         {{120}, Order::row_major, {1}},
                         {{2, 3, 4, 5}, Order::row_major, {60, 20, 5, 1}},
                         {{2, 3, 4, 5}, Order::channels_last, {60, 1, 15, 3}},
                         {{5, 0, 3}, Order::row_major, {1, 1, 1}},
                         {{0, kMost, kMost}, Order::row_major, {1, 1, 1}}};
  for (const Case& c : kCases) {
    const bool none = std::count(c.shape.begin(), c.shape.end(), 0) > 0;
    const std::size_t count = none ? 0 : c.shape.empty() ? 1 : 120;
    auto made = out(View(none ? nullptr : data.data(), count, DType::f32), c.shape, nullptr, c.order,
                    static_cast<TypeParam*>(nullptr));
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_EQ((*made)->dl_tensor.ndim, static_cast<int>(c.shape.size()));
    for (std::size_t i = 0; i < c.shape.size(); ++i) {
      EXPECT_EQ((*made)->dl_tensor.shape[i], c.shape[i]);
      EXPECT_EQ((*made)->dl_tensor.strides[i], c.strides[i]);
    }
    auto in = from_dlpack(*made);
    ASSERT_TRUE(in.ok()) << in.status().message();
    EXPECT_EQ(in->order(), c.order);
    EXPECT_EQ(in->cview().count, count);
    EXPECT_EQ(in->cview().data, none ? nullptr : data.data());
    EXPECT_TRUE(std::ranges::equal(in->strides(), c.strides));
  }
}

TYPED_TEST(Dlpack, UnalignedOffsetsAndStridesOfLengthOneAxesAreAccepted) {
  Producer<TypeParam> p({1, 3, 1}, {77, 1, -5});
  p->byte_offset = 6;
  auto in = from_dlpack(&p.tensor);
  ASSERT_TRUE(in.ok()) << in.status().message();
  EXPECT_EQ(in->cview().data, reinterpret_cast<std::byte*>(p.data.data()) + 6);
  EXPECT_THAT(in->strides(), ElementsAre(3, 1, 1));
}

TYPED_TEST(Dlpack, EachDeviceTypeIsImportedAsItsSpaceAndDevice) {
  struct Case {
    DLDeviceType type;
    int id;
    Space space;
    Device device;
  };
  constexpr Device kGpu2{Device::Kind::cuda, 2};
  for (const Case& c :
       {Case{kDLCPU, 7, Space::cpu, {}}, Case{kDLCUDAHost, 0, Space::cuda_host, {}},
        Case{kDLCUDA, 2, Space::cuda, kGpu2}, Case{kDLCUDAManaged, 2, Space::cuda_managed, kGpu2}}) {
    Producer<TypeParam> p({4});
    p->device = {c.type, c.id};
    auto in = from_dlpack(&p.tensor);
    ASSERT_TRUE(in.ok()) << in.status().message();
    EXPECT_EQ(in->space(), c.space);
    EXPECT_EQ(in->device(), c.device);
    EXPECT_EQ(in->cview().device, c.device);
  }
  float x = 0;
  auto made =
      out(View(&x, 1, DType::f32, kGpu2), {1}, nullptr, Order::row_major, static_cast<TypeParam*>(nullptr));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ((*made)->dl_tensor.device.device_id, 2);
  (*made)->deleter(*made);
}

TYPED_TEST(Dlpack, RefusedTensorRemainsOwnedByTheCaller) {
  using P = Producer<TypeParam>;
  const auto refused = [](Numbers shape, Numbers strides, Reason reason, const std::string& words,
                          auto change) {
    P p(shape, strides);
    change(p);
    expect_refused(p, reason, words);
  };
  const auto as_is = [](P&) {};
  refused({2, 3}, {1, 2}, Reason::unsupported, "neither row-major", as_is);  // transposed
  refused({2, 3}, {4, 1}, Reason::unsupported, "neither row-major", as_is);  // gaps
  refused({4}, {-1}, Reason::unsupported, "neither row-major", as_is);       // backwards
  refused({2, 3}, {0, 1}, Reason::unsupported, "neither row-major", as_is);  // broadcast
  // channels_last needs 4 dimensions.
  refused({2, 3, 4}, {12, 1, 3}, Reason::unsupported, "neither row-major", as_is);
  refused({2, -3}, {}, Reason::invalid, "below 0", as_is);
  refused({0, -3}, {}, Reason::invalid, "below 0", as_is);
  refused({kMost, 3}, {}, Reason::invalid, "more elements", as_is);
  refused({kMost}, {}, Reason::invalid, "more bytes", as_is);
  refused({kMost / 4 + 1}, {}, Reason::invalid, "more bytes", as_is);
  refused({4}, {}, Reason::invalid, "without data", [](P& p) { p->data = nullptr; });
  refused({4}, {}, Reason::invalid, "beyond the last address",
          [](P& p) { p->byte_offset = ~std::uint64_t{0}; });
  refused({4}, {}, Reason::invalid, "more bytes",
          [](P& p) { p->byte_offset = ~std::uint64_t{0} - reinterpret_cast<std::uintptr_t>(p->data) - 3; });
  refused({4}, {}, Reason::invalid, "without a shape", [](P& p) { p->shape = nullptr; });
  refused({4}, {}, Reason::invalid, "-1 dimensions", [](P& p) { p->ndim = -1; });
  refused({4}, {}, Reason::unsupported, "65 dimensions", [](P& p) { p->ndim = 65; });
  refused({4}, {}, Reason::unsupported, "2147483647 dimensions", [](P& p) { p->ndim = 2147483647; });
  refused({4}, {}, Reason::unsupported, "4 lanes", [](P& p) { p->dtype.lanes = 4; });
  refused({4}, {}, Reason::unsupported, "0 lanes", [](P& p) { p->dtype.lanes = 0; });
  refused({4}, {}, Reason::unsupported, "4 bits", [](P& p) { p->dtype = {17, 4, 1}; });
  refused({4}, {}, Reason::unsupported, "complex", [](P& p) { p->dtype = {kDLComplex, 64, 1}; });
  refused({4}, {}, Reason::unsupported, "code 2 with 128 bits", [](P& p) { p->dtype.bits = 128; });
  refused({4}, {}, Reason::unsupported, "code 3 ", [](P& p) { p->dtype.code = 3; });
  refused({4}, {}, Reason::unsupported, "code 200 ", [](P& p) { p->dtype.code = 200; });
  refused({4}, {}, Reason::unsupported, "type 10", [](P& p) { p->device.device_type = DLDeviceType(10); });
  refused({4}, {}, Reason::invalid, "GPU -1", [](P& p) { p->device = {kDLCUDA, -1}; });
  EXPECT_EQ(from_dlpack(static_cast<TypeParam*>(nullptr)).status().reason(), Reason::invalid);
}

TEST(DlpackVersioned, OtherMajorVersionsAreRefusedAndReadOnlyIsHonoured) {
  using P = Producer<DLManagedTensorVersioned>;
  for (const std::uint32_t major : {0u, 2u, 0xffffffffu}) {
    P p({4});
    p.tensor.version = {major, 0};
    p->ndim = -1;  // must not even be read
    expect_refused(p, Reason::unsupported, "expected 1.x");
  }
  P later({4});
  later.tensor.version = {1, 99};
  later.tensor.flags = ~std::uint64_t{1};  // flags of future versions, but not READ_ONLY
  EXPECT_TRUE(from_dlpack(&later.tensor).ok());
  EXPECT_EQ(later.freed, 1);

  P p({4});
  p.tensor.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  expect_refused(p, Reason::unsupported, "reading only");
  {
    auto in = from_dlpack(&p.tensor, Access::read);
    ASSERT_TRUE(in.ok());
    EXPECT_TRUE(in->read_only());
    EXPECT_EQ(in->cview().count, 4u);
    EXPECT_EQ(in->view().status().reason(), Reason::unsupported);
  }
  EXPECT_EQ(p.freed, 1);
}

TEST(DlpackVersioned, ReadOnlyExportNeedsTheVersionedStruct) {
  std::vector<int> data(4);
  const Numbers shape{4};
  const View v{std::span(data)};
  auto made = to_dlpack(v, shape, nullptr, {.read_only = true});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->version.major, 1u);
  EXPECT_EQ((*made)->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
  EXPECT_EQ(from_dlpack(*made).status().reason(), Reason::unsupported);
  (*made)->deleter(*made);
  EXPECT_EQ(to_dlpack_unversioned(v, shape, nullptr, {.read_only = true}).status().reason(),
            Reason::unsupported);
}

TEST(DlpackOut, WrongShapesAreRefusedAndTheOwnerIsReleased) {
  std::vector<int> data(6);
  auto owner = std::make_shared<int>(0);
  const auto reason = [&](View v, Numbers shape, Order order) {
    const Reason a = to_dlpack(v, shape, owner, {.order = order}).status().reason();
    EXPECT_EQ(to_dlpack_unversioned(v, shape, owner, {.order = order}).status().reason(), a);
    return a;
  };
  const View v{std::span(data)};
  EXPECT_EQ(reason(v, {2, 2}, Order::row_major), Reason::invalid);
  EXPECT_EQ(reason(v, {}, Order::row_major), Reason::invalid);
  EXPECT_EQ(reason(v, {-2, -3}, Order::row_major), Reason::invalid);
  EXPECT_EQ(reason(v, {kMost, kMost}, Order::row_major), Reason::invalid);
  EXPECT_EQ(reason(v, {2, 3}, Order::channels_last), Reason::invalid);
  EXPECT_EQ(reason(v, Numbers(65, 1), Order::row_major), Reason::unsupported);
  EXPECT_EQ(reason({nullptr, 6, DType::i32}, {6}, Order::row_major), Reason::invalid);
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(DlpackOut, AnArrayLivesAsLongAsItsTensor) {
  const std::int64_t shape[] = {2, 2};
  for (const bool versioned : {true, false}) {
    std::optional<train::Array> a = *train::Array::make(shape, DType::f64);
    a->as<double>()[3] = 7;
    std::optional<Imported> in;
    if (versioned)
      in = *from_dlpack(*to_dlpack(*a));
    else
      in = *from_dlpack(*to_dlpack_unversioned(*a));
    a.reset();
    EXPECT_EQ(static_cast<const double*>(in->cview().data)[3], 7);
    EXPECT_THAT(in->shape(), ElementsAre(2, 2));
  }
}

TEST(Strided, OrderIsFoundFromStridesOrRefused) {
  std::vector<float> data(120);
  const Numbers image{2, 3, 4, 5}, first{60, 20, 5, 1}, last{60, 1, 15, 3};
  EXPECT_EQ(*order_of(image, first), Order::row_major);
  EXPECT_EQ(*order_of(image), Order::row_major);
  EXPECT_EQ(*order_of(image, last), Order::channels_last);
  EXPECT_EQ(order_of(image, Numbers{60, 20, 5}).status().reason(), Reason::invalid);
  EXPECT_EQ(order_of(Numbers{}, Numbers{1}).status().reason(), Reason::invalid);
  EXPECT_EQ(order_of(image, Numbers{60, 20, 1, 5}).status().reason(), Reason::unsupported);
  EXPECT_EQ(order_of(Numbers(65, 1)).status().reason(), Reason::unsupported);

  const auto view = [&](const Numbers& shape, const Numbers& strides, Order order) {
    return view_of(data.data(), DType::f32, {}, shape, strides, order);
  };
  EXPECT_EQ(view(image, first, Order::row_major)->count, 120u);
  EXPECT_EQ(view(image, {}, Order::row_major)->data, data.data());
  EXPECT_EQ(view(image, last, Order::channels_last)->count, 120u);
  EXPECT_EQ(view(image, last, Order::row_major).status().reason(), Reason::unsupported);
  EXPECT_EQ(view(image, first, Order::channels_last).status().reason(), Reason::unsupported);
  EXPECT_EQ(view(image, {}, Order::channels_last).status().reason(), Reason::unsupported);
  EXPECT_EQ(view({2, 3}, {}, Order::channels_last).status().reason(), Reason::unsupported);
  EXPECT_TRUE(view({2, 1, 4, 5}, {}, Order::channels_last).ok());  // one channel: both orders at once
  EXPECT_TRUE(view({0, 3}, {9, 9}, Order::row_major).ok());
  EXPECT_EQ(view_of(nullptr, DType::f32, {}, image).status().reason(), Reason::invalid);
  EXPECT_TRUE(view_of(nullptr, DType::f32, {}, Numbers{0}).ok());
  EXPECT_EQ(view_of(data.data(), DType::f64, {}, Numbers{kMost / 8 + 1}).status().reason(), Reason::invalid);
}

}  // namespace
}  // namespace ouro

// A program with another dlpack.h, older than the versioned tensor, included between ours. Tested only if the
// system has such a header.
#include "ouro/dlpack.hpp"
// clang-format off
#include <dlpack/dlpack.h>
#include "tests/api/dlpack_layout.h"
// clang-format on

#include <gtest/gtest.h>

#include <vector>

namespace ouro {
namespace {

TEST(DlpackForeign, TensorsOfAnotherHeaderAreImportedAndExported) {
  std::vector<float> data{1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> shape{2, 3};
  int freed = 0;
  DLManagedTensor t{};
  t.dl_tensor.data = data.data();
  t.dl_tensor.device = {kDLCPU, 0};
  t.dl_tensor.ndim = 2;
  t.dl_tensor.dtype = {kDLFloat, 32, 1};
  t.dl_tensor.shape = shape.data();
  t.manager_ctx = &freed;
  t.deleter = [](DLManagedTensor* self) { ++*static_cast<int*>(self->manager_ctx); };
  {
    auto in = from_dlpack(&t);
    ASSERT_TRUE(in.ok()) << in.status().message();
    EXPECT_EQ(in->cview().data, data.data());
    EXPECT_EQ(in->cview().count, 6u);
    EXPECT_EQ(in->dtype(), DType::f32);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);

  auto out = to_dlpack(View(std::span(data)), shape, nullptr);
  ASSERT_TRUE(out.ok()) << out.status().message();
  DLManagedTensorVersioned* v = *out;
  EXPECT_EQ(v->version.major, 1u);
  EXPECT_EQ(v->dl_tensor.data, data.data());
  EXPECT_EQ(v->dl_tensor.strides[0], 3);
  v->deleter(v);
}

}  // namespace
}  // namespace ouro

// Tensors that count along a dimension, large enough that threads begin anywhere in them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/device/cpu/kernel.h"
#include "runtime/device/cpu/memory.h"
#include "runtime/mesh/element_type.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::device::cpu {
namespace {

using mesh::Dims;
using mesh::DType;

// How many elements are not what their place says.
template <typename T>
int64_t Wrong(const T* got, const Dims& dims, size_t axis) {
  const int64_t stride = mesh::Strides(dims)[axis];
  int64_t wrong = 0;
  for (int64_t i = 0; i < mesh::NumElements(dims); ++i) {
    wrong += got[i] == static_cast<T>(i / stride % dims[axis]) ? 0 : 1;
  }
  return wrong;
}

TEST(SourceTest, IotaCountsAlongAnyDimension) {
  Pool pool(3);
  const std::vector<Dims> all = {{128, 128},  {3, 70, 401}, {90'001}, {2, 40'000},
                                 {40'000, 2}, {7, 1, 9},    {1, 1},   {300, 2, 3, 37}};
  for (const Dims& dims : all) {
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kU8}) {
        program::Builder b("counts");
        program::Builder::Scope scope(b);
        b.Output("y", program::Iota(dims, static_cast<int>(axis), dtype));
        const auto plan = *plan::MakePlan(*sharding::Shard(*b.Build(), mesh::Mesh(), {}));
        const int64_t rank = 0;
        const Making making{.plan = plan, .ranks = {&rank, 1}, .threads = 3};
        ASSERT_EQ(plan.local().ops.size(), 1U);
        const program::Op& op = plan.local().ops[0];
        SCOPED_TRACE(plan.local().type(op.results[0]).ToString() + " along " +
                     std::to_string(axis));
        const KernelPtr kernel = MakeSourceKernel(making, op);
        for (Pool* on : {static_cast<Pool*>(nullptr), &pool}) {
          const Memory out = *Memory::Create(plan.local().type(op.results[0]).num_bytes(), true);
          std::vector<std::byte*> at(op.results[0] + 1, out.data());
          kernel->Run({.at = at.data(), .pool = on});
          mesh::WithElementType(dtype, [&](auto zero) {
            using T = decltype(zero);
            EXPECT_EQ(Wrong(reinterpret_cast<const T*>(out.data()), dims, axis), 0);
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::device::cpu

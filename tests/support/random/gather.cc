// How calls of ops that take numbers of elements are drawn: the numbers are of the axis.
#include <algorithm>

#include "tests/support/random/drawer.h"

namespace meshtrain::testing::random {
namespace {

using Known = Drawer::Known;
using MaybeCall = std::optional<Call>;

Value Ids(Drawer& d, const Dims& dims, int64_t size) {
  const DType dtype = d.Chance(0.5) ? DType::kI32 : DType::kI64;
  return d.SomeOr(
      [&](const Known& v) {
        const bool whole = v.value.dtype() == DType::kI32 || v.value.dtype() == DType::kI64;
        return whole && v.value.rank() <= 2 && v.low >= 0 && v.high < static_cast<double>(size) &&
               (dims.empty() || v.value.dims() == dims);
      },
      {dtype, dims.empty() ? d.SomeDims(2) : dims}, "labels");
}

// A dimension that holds all that fresh labels may say.
constexpr int64_t kLeast = 3;

MaybeCall Gather(Drawer& d) {
  Dims dims = d.SomeDims(2);
  dims.push_back(static_cast<int64_t>(kLeast + d.Pick(12)));
  const Value table = d.SomeOr(
      [](const Known& v) {
        const Dims& of = v.value.dims();
        return mesh::IsFloat(v.value.dtype()) && v.value.rank() <= 3 &&
               std::any_of(of.begin(), of.end(), [](int64_t n) { return n >= kLeast; });
      },
      {d.FloatDType(), dims}, d.Chance(0.5) ? "x" : "wide");
  std::vector<int64_t> axes;
  for (int a = 0; a < table.rank(); ++a) {
    if (table.dims()[a] >= kLeast) axes.push_back(a);
  }
  if (axes.empty()) return {};
  const int64_t axis = d.OneOf(axes);
  return Call{{table, Ids(d, {}, table.dims()[axis])}, {{"axis", axis}}};
}

MaybeCall ScatterAdd(Drawer& d) {
  Dims to = d.SomeDims(2);
  const auto axis = static_cast<int64_t>(d.Pick(to.size() + 1));
  to.insert(to.begin() + axis, static_cast<int64_t>(kLeast + d.Pick(12)));
  const Value ids = Ids(d, {}, to[axis]);
  Dims dims(to.begin(), to.begin() + axis);
  const Dims of_ids = ids.dims();
  dims.insert(dims.end(), of_ids.begin(), of_ids.end());
  dims.insert(dims.end(), to.begin() + axis + 1, to.end());
  if (!d.Fits(dims)) return {};
  const TensorType type{d.FloatDType(), dims};
  const Value updates = d.SomeOr([&](const Known& v) { return v.value.type() == type; }, type, "x");
  return Call{{ids, updates}, {{"axis", axis}, {"dims", to}}};
}

}  // namespace

Recipe GatherRecipeOf(const std::string& kind) {
  if (kind == "gather") return Gather;
  if (kind == "scatter_add") return ScatterAdd;
  return nullptr;
}

}  // namespace meshtrain::testing::random

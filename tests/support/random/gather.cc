// How calls of ops that take numbers of elements are drawn, the numbers being of the axis; and of
// those that put elements in order.
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

// [P..., N, S...] of [P..., V, S...]: the elements' order among them, where it was drawn.
Value IdsAlong(Drawer& d, const Dims& dims, int64_t axis) {
  const DType dtype = d.Chance(0.5) ? DType::kI32 : DType::kI64;
  Dims fresh = dims;
  fresh[axis] = static_cast<int64_t>(1 + d.Pick(9));
  return d.SomeOr(
      [&](const Known& v) {
        const bool whole = v.value.dtype() == DType::kI32 || v.value.dtype() == DType::kI64;
        Dims of = v.value.dims();
        if (!whole || of.size() != dims.size() || of[axis] == 0) return false;
        of[axis] = dims[axis];
        return of == dims && v.low >= 0 && v.high < static_cast<double>(dims[axis]);
      },
      {dtype, d.Fits(fresh) ? fresh : dims}, "labels");
}

// A float, and an axis of it that holds what fresh labels may say.
std::optional<std::pair<Value, int64_t>> Table(Drawer& d) {
  Dims dims = d.SomeDims(2);
  dims.insert(dims.begin() + static_cast<int64_t>(d.Pick(dims.size() + 1)),
              static_cast<int64_t>(kLeast + d.Pick(12)));
  if (!d.Fits(dims)) return {};
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
  return std::pair(table, d.OneOf(axes));
}

MaybeCall TakeAlong(Drawer& d) {
  const auto of = Table(d);
  if (!of) return {};
  const auto& [table, axis] = *of;
  return Call{{table, IdsAlong(d, table.dims(), axis)}, {{"axis", axis}}};
}

MaybeCall AddAlong(Drawer& d) {
  Dims to = d.SomeDims(2);
  const auto axis = static_cast<int64_t>(d.Pick(to.size() + 1));
  to.insert(to.begin() + axis, static_cast<int64_t>(kLeast + d.Pick(12)));
  if (!d.Fits(to)) return {};
  const Value ids = IdsAlong(d, to, axis);
  const TensorType type{d.FloatDType(), ids.dims()};
  const Value updates = d.SomeOr([&](const Known& v) { return v.value.type() == type; }, type, "x");
  return Call{{ids, updates}, {{"axis", axis}, {"dims", to}}};
}

MaybeCall ScatterSet(Drawer& d) {
  const auto of = Table(d);
  if (!of) return {};
  const auto& [table, axis] = *of;
  const Value ids = Ids(d, {}, table.dims()[axis]);
  Dims dims = table.dims();
  const Dims of_ids = ids.dims();
  dims.erase(dims.begin() + axis);
  dims.insert(dims.begin() + axis, of_ids.begin(), of_ids.end());
  if (!d.Fits(dims)) return {};
  const TensorType type{table.dtype(), dims};
  const Value updates = d.SomeOr([&](const Known& v) { return v.value.type() == type; }, type, "x");
  return Call{{table, ids, updates}, {{"axis", axis}}};
}

// The interpreter orders by counting: each element of a row meets each other.
bool IsSoonOrdered(const Dims& dims, int64_t axis) {
  return dims[axis] > 0 && mesh::NumElements(dims) * dims[axis] <= 1'000'000;
}

MaybeCall InOrder(Drawer& d) {
  Dims dims = d.SomeDims();
  dims.push_back(static_cast<int64_t>(1 + d.Pick(d.Chance(0.2) ? 200 : 12)));
  if (!d.Fits(dims)) return {};
  const Value a = d.SomeOr(
      [](const Known& v) { return v.value.dtype() != DType::kBool && v.value.rank() >= 1; },
      {d.AnyDType(), dims}, d.Chance(0.5) ? "x" : "wide");
  std::vector<int64_t> axes;
  for (int i = 0; i < a.rank(); ++i) {
    if (IsSoonOrdered(a.dims(), i)) axes.push_back(i);
  }
  if (axes.empty()) return {};
  const int64_t axis = d.OneOf(axes);
  Attrs attrs{{"axis", axis}, {"descending", d.Chance(0.5)}};
  if (d.Chance(0.4)) attrs.Set("count", static_cast<int64_t>(1 + d.Pick(a.dims()[axis])));
  return Call{{a}, attrs};
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
  if (kind == "scatter_set") return ScatterSet;
  if (kind == "take_along") return TakeAlong;
  if (kind == "add_along") return AddAlong;
  if (kind == "sort" || kind == "argsort") return InOrder;
  return nullptr;
}

}  // namespace meshtrain::testing::random

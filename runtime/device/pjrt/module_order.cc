// The instructions that go by numbers of elements, and by their order.
#include <utility>

#include "runtime/device/pjrt/module_text.h"

namespace meshtrain::device::pjrt {
namespace {

// The dimensions of `rank` but for one.
std::vector<int64_t> Others(int64_t rank, int64_t axis) {
  std::vector<int64_t> others;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != axis) others.push_back(d);
  }
  return others;
}

}  // namespace

Node Module::Gather(const Node& a, const Node& ids, int64_t axis) {
  Dims dims(a.dims.begin(), a.dims.begin() + axis);
  dims.insert(dims.end(), ids.dims.begin(), ids.dims.end());
  dims.insert(dims.end(), a.dims.begin() + axis + 1, a.dims.end());
  std::vector<int64_t> offsets;  // the result's dimensions that are not of the ids
  for (int64_t d = 0; d < static_cast<int64_t>(dims.size()); ++d) {
    if (d < axis || d >= axis + ids.rank()) offsets.push_back(d);
  }
  std::string sizes;
  for (int64_t d = 0; d < a.rank(); ++d) {
    sizes += (d == 0 ? " " : ", ") + std::to_string(d == axis ? 1 : a.dims[d]);
  }
  const Node result{"", a.element, dims};
  return Line("\"stablehlo.gather\"(" + a.name + ", " + ids.name +
                  ") {dimension_numbers = #stablehlo.gather<offset_dims = " + List(offsets) +
                  ", collapsed_slice_dims = " + List({axis}) + ", start_index_map = " +
                  List({axis}) + ", index_vector_dim = " + std::to_string(ids.rank()) +
                  ">, indices_are_sorted = false, slice_sizes = array<i64:" + sizes + ">} : (" +
                  a.type() + ", " + ids.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Scatter(std::string_view op, const Node& a, const Node& ids, const Node& updates,
                     int64_t axis) {
  std::vector<int64_t> windows;  // the updates' dimensions that are not of the ids
  for (int64_t d = 0; d < updates.rank(); ++d) {
    if (d < axis || d >= axis + ids.rank()) windows.push_back(d);
  }
  return Line("\"stablehlo.scatter\"(" + a.name + ", " + ids.name + ", " + updates.name + ") " +
                  Region(op, "tensor<" + a.element + ">") +
                  " {indices_are_sorted = false, scatter_dimension_numbers = "
                  "#stablehlo.scatter<update_window_dims = " +
                  List(windows) + ", inserted_window_dims = " + List({axis}) +
                  ", scatter_dims_to_operand_dims = " + List({axis}) + ", index_vector_dim = " +
                  std::to_string(ids.rank()) + ">, unique_indices = false} : (" + a.type() + ", " +
                  ids.type() + ", " + updates.type() + ") -> " + a.type(),
              a.element, a.dims);
}

Node Module::GatherAlong(const Node& a, const Node& ids, int64_t axis) {
  const std::vector<int64_t> rows = Others(a.rank(), axis);
  std::string ones;
  for (int64_t d = 0; d < a.rank(); ++d) ones += d == 0 ? " 1" : ", 1";
  const Node result{"", a.element, ids.dims};
  return Line(
      "\"stablehlo.gather\"(" + a.name + ", " + ids.name +
          ") {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = " + List({axis}) +
          ", operand_batching_dims = " + List(rows) +
          ", start_indices_batching_dims = " + List(rows) + ", start_index_map = " + List({axis}) +
          ", index_vector_dim = " + std::to_string(ids.rank()) +
          ">, indices_are_sorted = false, slice_sizes = array<i64:" + ones + ">} : (" + a.type() +
          ", " + ids.type() + ") -> " + result.type(),
      a.element, ids.dims);
}

Node Module::ScatterAlong(std::string_view op, const Node& a, const Node& ids, const Node& updates,
                          int64_t axis) {
  const std::vector<int64_t> rows = Others(a.rank(), axis);
  return Line("\"stablehlo.scatter\"(" + a.name + ", " + ids.name + ", " + updates.name + ") " +
                  Region(op, "tensor<" + a.element + ">") +
                  " {indices_are_sorted = false, scatter_dimension_numbers = "
                  "#stablehlo.scatter<inserted_window_dims = " +
                  List({axis}) + ", input_batching_dims = " + List(rows) +
                  ", scatter_indices_batching_dims = " + List(rows) +
                  ", scatter_dims_to_operand_dims = " + List({axis}) + ", index_vector_dim = " +
                  std::to_string(ids.rank()) + ">, unique_indices = false} : (" + a.type() + ", " +
                  ids.type() + ", " + updates.type() + ") -> " + a.type(),
              a.element, a.dims);
}

std::vector<Node> Module::Sort(
    const std::vector<Node>& values, int64_t axis,
    const std::function<Node(Module&, const Node&, const Node&)>& before) {
  const std::string result = Fresh();
  std::vector<Node> results, inside;
  std::string heads;
  for (size_t i = 0; i < values.size(); ++i) {
    results.push_back({result + (values.size() == 1 ? "" : "#" + std::to_string(i)),
                       values[i].element, values[i].dims});
    for (int side = 0; side < 2; ++side) {
      inside.push_back({Fresh(), values[i].element, {}});
      heads += (heads.empty() ? "" : ", ") + inside.back().name + ": " + inside.back().type();
    }
  }
  Raw(result + (values.size() == 1 ? "" : ":" + std::to_string(values.size())) +
      " = \"stablehlo.sort\"(" + NamesOf(values) + ") ({");
  Raw("^bb0(" + heads + "):");
  Inside([&] { return std::vector<Node>{before(*this, inside[0], inside[1])}; });
  const std::string types = TypesOf(values);
  Raw("}) {dimension = " + std::to_string(axis) + " : i64, is_stable = true} : (" + types +
      ") -> (" + types + ")");
  return results;
}

}  // namespace meshtrain::device::pjrt

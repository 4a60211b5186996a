#include "runtime/device/pjrt/module.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/device/pjrt/module_text.h"
#include "runtime/mesh/element_type.h"

namespace meshtrain::device::pjrt {

std::string List(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return text + "]";
}

std::string TypesOf(const std::vector<Node>& nodes) {
  std::string text;
  for (size_t i = 0; i < nodes.size(); ++i) text += (i == 0 ? "" : ", ") + nodes[i].type();
  return text;
}

std::string NamesOf(const std::vector<Node>& nodes) {
  std::string text;
  for (size_t i = 0; i < nodes.size(); ++i) text += (i == 0 ? "" : ", ") + nodes[i].name;
  return text;
}

namespace {

std::string Hex(uint64_t bits, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%0*llX", digits, static_cast<unsigned long long>(bits));
  return text;
}

std::string Number(const std::string& element, double value) {
  if (element == "f32") return Hex(std::bit_cast<uint32_t>(static_cast<float>(value)), 8);
  if (element == "f64") return Hex(std::bit_cast<uint64_t>(value), 16);
  if (element == "bf16") return Hex(mesh::BFloat16(value).bits, 4);
  if (element == "f16") return Hex(mesh::Float16(value).bits, 4);
  if (element == "i1") return value != 0 ? "true" : "false";
  return std::to_string(mesh::ToI64(value));
}

std::string GroupsText(const Module::Groups& groups) {
  std::string text;
  for (const auto& group : groups) text += (text.empty() ? "" : ", ") + List(group);
  return "replica_groups = dense<[" + text + "]> : tensor<" + std::to_string(groups.size()) + "x" +
         std::to_string(groups[0].size()) + "xi64>";
}

}  // namespace

bool IsFloatElement(std::string_view element) {
  return element.starts_with("f") || element == "bf16";
}
bool IsHalfElement(std::string_view element) { return element == "bf16" || element == "f16"; }

std::string ElementOf(mesh::DType dtype) {
  switch (dtype) {
    case mesh::DType::kBool:
      return "i1";
    case mesh::DType::kU8:
      return "ui8";
    case mesh::DType::kI32:
      return "i32";
    case mesh::DType::kI64:
      return "i64";
    case mesh::DType::kF32:
      return "f32";
    case mesh::DType::kF64:
      return "f64";
    case mesh::DType::kBF16:
      return "bf16";
    case mesh::DType::kF16:
      return "f16";
  }
  return "";
}

std::string Node::type() const {
  std::string text = "tensor<";
  for (const int64_t d : dims) text += std::to_string(d) + "x";
  return text + element + ">";
}

Node Module::Line(const std::string& text, std::string element, Dims dims) {
  Node node{Fresh(), std::move(element), std::move(dims)};
  Raw(node.name + " = " + text);
  return node;
}

Node Module::Splat(const std::string& element, const Dims& dims, double value) {
  const Node type{"", element, dims};
  const bool none = mesh::NumElements(dims) == 0;
  return Line(
      "stablehlo.constant dense<" + (none ? "" : Number(element, value)) + "> : " + type.type(),
      element, dims);
}

Node Module::Whole(const std::string& element, const Dims& dims, uint64_t value) {
  const Node type{"", element, dims};
  const std::string text = element.starts_with("u") ? std::to_string(value)
                                                    : std::to_string(static_cast<int64_t>(value));
  const bool none = mesh::NumElements(dims) == 0;
  return Line("stablehlo.constant dense<" + (none ? "" : text) + "> : " + type.type(), element,
              dims);
}

Node Module::Literal(const std::string& element, const Dims& dims,
                     const std::vector<double>& values) {
  if (values.empty()) return Splat(element, dims, 0);
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + Number(element, values[i]);
  }
  const Dims flat = {static_cast<int64_t>(values.size())};
  const Node type{"", element, flat};
  return Reshape(Line("stablehlo.constant dense<[" + text + "]> : " + type.type(), element, flat),
                 dims);
}

Node Module::Integers(const std::string& element, const std::vector<int64_t>& values) {
  const Dims dims = {static_cast<int64_t>(values.size())};
  const Node type{"", element, dims};
  return Line("stablehlo.constant dense<" + List(values) + "> : " + type.type(), element, dims);
}

Node Module::Unary(std::string_view op, const Node& a) {
  return Line("stablehlo." + std::string(op) + " " + a.name + " : " + a.type(), a.element, a.dims);
}

Node Module::Binary(std::string_view op, const Node& a, const Node& b) {
  MT_CHECK(a.element == b.element && a.dims == b.dims);
  return Line("stablehlo." + std::string(op) + " " + a.name + ", " + b.name + " : " + a.type(),
              a.element, a.dims);
}

Node Module::Compare(std::string_view direction, const Node& a, const Node& b) {
  MT_CHECK(a.element == b.element && a.dims == b.dims);
  const Node result{"", "i1", a.dims};
  const char* kind = IsFloatElement(a.element)                         ? "FLOAT"
                     : a.element.starts_with("u") || a.element == "i1" ? "UNSIGNED"
                                                                       : "SIGNED";
  return Line("stablehlo.compare " + std::string(direction) + ", " + a.name + ", " + b.name + ", " +
                  kind + " : (" + a.type() + ", " + b.type() + ") -> " + result.type(),
              "i1", a.dims);
}

Node Module::IsFinite(const Node& a) {
  const Node result{"", "i1", a.dims};
  return Line("stablehlo.is_finite " + a.name + " : (" + a.type() + ") -> " + result.type(), "i1",
              a.dims);
}

Node Module::Select(const Node& condition, const Node& a, const Node& b) {
  MT_CHECK(a.element == b.element && a.dims == b.dims && condition.dims == a.dims);
  return Line("stablehlo.select " + condition.name + ", " + a.name + ", " + b.name + " : " +
                  condition.type() + ", " + a.type(),
              a.element, a.dims);
}

Node Module::Convert(const Node& a, const std::string& element) {
  if (a.element == element) return a;
  const Node result{"", element, a.dims};
  return Line("stablehlo.convert " + a.name + " : (" + a.type() + ") -> " + result.type(), element,
              a.dims);
}

Node Module::Bits(const Node& a, const std::string& element) {
  const Node result{"", element, a.dims};
  return Line("stablehlo.bitcast_convert " + a.name + " : (" + a.type() + ") -> " + result.type(),
              element, a.dims);
}

Node Module::Barrier(const Node& a) {
  return Line("stablehlo.optimization_barrier " + a.name + " : " + a.type(), a.element, a.dims);
}

Node Module::BroadcastInDim(const Node& a, const Dims& dims, const std::vector<int64_t>& mapping) {
  if (a.dims == dims) return a;
  const Node result{"", a.element, dims};
  return Line("stablehlo.broadcast_in_dim " + a.name + ", dims = " + List(mapping) + " : (" +
                  a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Broadcast(const Node& a, const Dims& dims) {
  std::vector<int64_t> mapping;
  for (size_t d = dims.size() - a.dims.size(); d < dims.size(); ++d) {
    mapping.push_back(static_cast<int64_t>(d));
  }
  return BroadcastInDim(a, dims, mapping);
}

Node Module::Reshape(const Node& a, const Dims& dims) {
  if (a.dims == dims) return a;
  const Node result{"", a.element, dims};
  return Line("stablehlo.reshape " + a.name + " : (" + a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Transpose(const Node& a, const std::vector<int64_t>& permutation) {
  Dims dims;
  for (const int64_t d : permutation) dims.push_back(a.dims[d]);
  const Node result{"", a.element, dims};
  return Line("stablehlo.transpose " + a.name + ", dims = " + List(permutation) + " : (" +
                  a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Slice(const Node& a, const Dims& starts, const Dims& sizes) {
  if (sizes == a.dims) return a;
  const Node result{"", a.element, sizes};
  std::string text;
  for (size_t d = 0; d < starts.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(starts[d]) + ":" +
            std::to_string(starts[d] + sizes[d]);
  }
  return Line(
      "stablehlo.slice " + a.name + " [" + text + "] : (" + a.type() + ") -> " + result.type(),
      a.element, sizes);
}

Node Module::StridedSlice(const Node& a, const Dims& starts, const Dims& steps, const Dims& dims) {
  const Node result{"", a.element, dims};
  std::string text;
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t limit = dims[d] == 0 ? starts[d] : starts[d] + (dims[d] - 1) * steps[d] + 1;
    text += (d == 0 ? "" : ", ") + std::to_string(starts[d]) + ":" + std::to_string(limit) + ":" +
            std::to_string(steps[d]);
  }
  return Line(
      "stablehlo.slice " + a.name + " [" + text + "] : (" + a.type() + ") -> " + result.type(),
      a.element, dims);
}

Node Module::Pad(const Node& a, const Node& value, const Dims& before, const Dims& after) {
  return PadBetween(a, value, before, after, Dims(a.dims.size(), 0));
}

Node Module::PadBetween(const Node& a, const Node& value, const Dims& before, const Dims& after,
                        const Dims& between) {
  Dims dims = a.dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    dims[d] += before[d] + after[d] + std::max<int64_t>(0, a.dims[d] - 1) * between[d];
  }
  if (dims == a.dims) return a;
  const Node result{"", a.element, dims};
  return Line("stablehlo.pad " + a.name + ", " + value.name + ", low = " + List(before) +
                  ", high = " + List(after) + ", interior = " + List(between) + " : (" + a.type() +
                  ", " + value.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Concat(const std::vector<Node>& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  Dims dims = parts[0].dims;
  dims[axis] = 0;
  for (const Node& part : parts) dims[axis] += part.dims[axis];
  const Node result{"", parts[0].element, dims};
  return Line("stablehlo.concatenate " + NamesOf(parts) + ", dim = " + std::to_string(axis) +
                  " : (" + TypesOf(parts) + ") -> " + result.type(),
              result.element, dims);
}

Node Module::Iota(const std::string& element, const Dims& dims, int64_t axis) {
  const Node result{"", element, dims};
  return Line("stablehlo.iota dim = " + std::to_string(axis) + " : " + result.type(), element,
              dims);
}

Node Module::DynamicSlice(const Node& a, int64_t dim, const Node& start, int64_t size) {
  Dims dims = a.dims;
  dims[dim] = size;
  const Node zero = Whole(start.element, {}, 0);
  std::string starts, types;
  for (int64_t d = 0; d < a.rank(); ++d) {
    starts += ", " + (d == dim ? start.name : zero.name);
    types += ", " + start.type();
  }
  const Node result{"", a.element, dims};
  return Line("stablehlo.dynamic_slice " + a.name + starts + ", sizes = " + List(dims) + " : (" +
                  a.type() + types + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Reduce(std::string_view op, const Node& a, const std::vector<int64_t>& axes,
                    const Node& first, bool keep) {
  std::vector<bool> reduced(a.dims.size(), false);
  for (const int64_t axis : axes) reduced[axis] = true;
  Dims dims, kept;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    if (!reduced[d]) dims.push_back(a.dims[d]);
    kept.push_back(reduced[d] ? 1 : a.dims[d]);
  }
  Node result = a;
  if (!axes.empty()) {
    const Node type{"", a.element, dims};
    result = Line("stablehlo.reduce(" + a.name + " init: " + first.name + ") applies stablehlo." +
                      std::string(op) + " across dimensions = " + List(axes) + " : (" + a.type() +
                      ", " + first.type() + ") -> " + type.type(),
                  a.element, dims);
  }
  return keep ? Reshape(result, kept) : result;
}

Node Module::Reverse(const Node& a, const std::vector<int64_t>& axes) {
  if (axes.empty()) return a;
  return Line("stablehlo.reverse " + a.name + ", dims = " + List(axes) + " : " + a.type(),
              a.element, a.dims);
}

Node Module::Dot(const Node& a, const Node& b, int batch, bool transpose_a, bool transpose_b) {
  const int64_t rows = batch + (transpose_a ? 1 : 0), left = batch + (transpose_a ? 0 : 1);
  const int64_t right = batch + (transpose_b ? 1 : 0), columns = batch + (transpose_b ? 0 : 1);
  Dims dims(a.dims.begin(), a.dims.begin() + batch);
  std::vector<int64_t> batches;
  for (int d = 0; d < batch; ++d) batches.push_back(d);
  dims.push_back(a.dims[rows]);
  dims.push_back(b.dims[columns]);
  const bool half = IsHalfElement(a.element);
  const Node result{"", half ? "f32" : a.element, dims};
  std::string text = "stablehlo.dot_general " + a.name + ", " + b.name + ", ";
  if (batch > 0) text += "batching_dims = " + List(batches) + " x " + List(batches) + ", ";
  text += "contracting_dims = " + List({left}) + " x " + List({right});
  // In the operands' own precision: a TPU would round f32 to bf16.
  if (!half) text += ", precision = [HIGHEST, HIGHEST]";
  text += " : (" + a.type() + ", " + b.type() + ") -> " + result.type();
  return Convert(Line(text, result.element, dims), a.element);
}

Node Module::Convolve(const Node& a, const Node& b, const Convolution& c, const Dims& result) {
  std::string spatial, pads, reversed;
  for (size_t d = 0; d < c.pads.size(); ++d) {
    const std::string comma = d == 0 ? "" : ", ";
    spatial += (d == 0 ? "" : ", ") + std::to_string(d);
    pads += comma + List({c.pads[d].first, c.pads[d].second});
    reversed += comma + (c.reversed ? "true" : "false");
  }
  const bool half = IsHalfElement(a.element);
  const Node type{"", half ? "f32" : a.element, result};
  const std::string precision = half ? "DEFAULT" : "HIGHEST";
  const std::string numbers =
      c.of_filter ? "[f, " + spatial + ", b]x[i, " + spatial + ", o]->[" + spatial + ", b, f]"
                  : "[b, " + spatial + ", f]x[" + spatial + ", i, o]->[b, " + spatial + ", f]";
  const Node sums =
      Line("stablehlo.convolution(" + a.name + ", " + b.name + ") dim_numbers = " + numbers +
               ", window = {stride = " + List(c.strides) + ", pad = [" + pads +
               "], lhs_dilate = " + List(c.left_dilations) +
               ", rhs_dilate = " + List(c.right_dilations) + ", reverse = [" + reversed +
               "]} {batch_group_count = " + std::to_string(c.batch_groups) +
               " : i64, feature_group_count = " + std::to_string(c.feature_groups) +
               " : i64, precision_config = [#stablehlo<precision " + precision +
               ">, #stablehlo<precision " + precision + ">]} : (" + a.type() + ", " + b.type() +
               ") -> " + type.type(),
           type.element, result);
  return Convert(sums, a.element);
}

std::vector<Node> Module::Inside(const std::function<std::vector<Node>()>& body) {
  const std::string outer = std::exchange(indent_, indent_ + "  ");
  std::vector<Node> last = body();
  Raw("stablehlo.return " + NamesOf(last) + " : " + TypesOf(last));
  indent_ = outer;
  return last;
}

Node Module::If(const Node& condition, const std::function<Node(Module&)>& then,
                const std::function<Node(Module&)>& otherwise) {
  Node result{Fresh(), "", {}};
  Raw(result.name + " = \"stablehlo.if\"(" + condition.name + ") ({");
  const Node one = Inside([&] { return std::vector<Node>{then(*this)}; })[0];
  Raw("}, {");
  const Node other = Inside([&] { return std::vector<Node>{otherwise(*this)}; })[0];
  MT_CHECK(one.element == other.element && one.dims == other.dims);
  result.element = one.element;
  result.dims = one.dims;
  Raw("}) : (" + condition.type() + ") -> " + result.type());
  return result;
}

std::vector<Node> Module::While(
    const std::vector<Node>& initial,
    const std::function<Node(Module&, const std::vector<Node>&)>& condition,
    const std::function<std::vector<Node>(Module&, const std::vector<Node>&)>& body) {
  const std::string result = Fresh();
  std::vector<Node> inside, results;
  std::string heads;
  for (size_t i = 0; i < initial.size(); ++i) {
    inside.push_back({Fresh(), initial[i].element, initial[i].dims});
    results.push_back({result + (initial.size() == 1 ? "" : "#" + std::to_string(i)),
                       initial[i].element, initial[i].dims});
    heads += (i == 0 ? "" : ", ") + inside[i].name + " = " + initial[i].name;
  }
  Raw(result + (initial.size() == 1 ? "" : ":" + std::to_string(initial.size())) +
      " = stablehlo.while(" + heads + ") : " + TypesOf(initial));
  Raw("cond {");
  Inside([&] { return std::vector<Node>{condition(*this, inside)}; });
  Raw("} do {");
  Inside([&] { return body(*this, inside); });
  Raw("}");
  return results;
}

Node Module::Rank() { return Line("stablehlo.replica_id : tensor<ui32>", "ui32", {}); }

// What combines two elements.
std::string Module::Region(std::string_view op, const std::string& scalar) {
  const std::string a = Fresh(), b = Fresh(), c = Fresh();
  return "({\n    ^bb0(" + a + ": " + scalar + ", " + b + ": " + scalar + "):\n      " + c +
         " = stablehlo." + std::string(op) + " " + a + ", " + b + " : " + scalar +
         "\n      stablehlo.return " + c + " : " + scalar + "\n    })";
}

std::vector<Node> Module::AllReduce(std::string_view op, const std::vector<Node>& values,
                                    const Groups& groups) {
  const std::string result = Fresh();
  std::vector<Node> results;
  for (size_t i = 0; i < values.size(); ++i) {
    results.push_back({result + (values.size() == 1 ? "" : "#" + std::to_string(i)),
                       values[i].element, values[i].dims});
  }
  const std::string types = TypesOf(values);
  Raw(result + (values.size() == 1 ? "" : ":" + std::to_string(values.size())) +
      " = \"stablehlo.all_reduce\"(" + NamesOf(values) + ") " +
      Region(op, "tensor<" + values[0].element + ">") + " {" + GroupsText(groups) + "} : (" +
      types + ") -> (" + types + ")");
  return results;
}

Node Module::AllGather(const Node& a, int64_t dim, const Groups& groups) {
  Dims dims = a.dims;
  dims[dim] *= static_cast<int64_t>(groups[0].size());
  const Node result{"", a.element, dims};
  return Line("\"stablehlo.all_gather\"(" + a.name + ") {all_gather_dim = " + std::to_string(dim) +
                  " : i64, " + GroupsText(groups) + "} : (" + a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::ReduceScatter(std::string_view op, const Node& a, int64_t dim, const Groups& groups) {
  Dims dims = a.dims;
  dims[dim] /= static_cast<int64_t>(groups[0].size());
  const Node result{"", a.element, dims};
  const std::string region = Region(op, "tensor<" + a.element + ">");
  return Line("\"stablehlo.reduce_scatter\"(" + a.name + ") " + region +
                  " {scatter_dimension = " + std::to_string(dim) + " : i64, " + GroupsText(groups) +
                  "} : (" + a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::AllToAll(const Node& a, int64_t split, int64_t concat, const Groups& groups) {
  const auto n = static_cast<int64_t>(groups[0].size());
  Dims dims = a.dims;
  dims[split] /= n;
  dims[concat] *= n;
  const Node result{"", a.element, dims};
  return Line("\"stablehlo.all_to_all\"(" + a.name + ") {split_dimension = " +
                  std::to_string(split) + " : i64, concat_dimension = " + std::to_string(concat) +
                  " : i64, split_count = " + std::to_string(n) + " : i64, " + GroupsText(groups) +
                  "} : (" + a.type() + ") -> " + result.type(),
              a.element, dims);
}

Node Module::Permute(const Node& a, const Groups& pairs) {
  std::string text;
  for (const auto& pair : pairs) text += (text.empty() ? "" : ", ") + List(pair);
  return Line("\"stablehlo.collective_permute\"(" + a.name + ") {source_target_pairs = dense<[" +
                  text + "]> : tensor<" + std::to_string(pairs.size()) + "x2xi64>} : (" + a.type() +
                  ") -> " + a.type(),
              a.element, a.dims);
}

}  // namespace meshtrain::device::pjrt

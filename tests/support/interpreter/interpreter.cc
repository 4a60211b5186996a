#include "tests/support/interpreter/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/base/check.h"
#include "runtime/mesh/element_type.h"
#include "runtime/program/registry.h"

namespace meshtrain::testing {
namespace {

using mesh::Dims;
using mesh::DType;
using mesh::Layout;
using mesh::Mesh;
using mesh::Reduction;
using mesh::Tensor;
using mesh::TensorType;
using program::Op;
using program::Program;
using program::ValueId;

const double kPadding = std::numeric_limits<double>::quiet_NaN();

template <typename T>
Array Read(const Tensor& tensor) {
  const auto values = tensor.values<T>();
  return Array(tensor.type(), std::vector<Number>(values.begin(), values.end()));
}

template <typename T>
Tensor Write(const Array& array) {
  Tensor tensor(array.type);
  std::transform(array.at.begin(), array.at.end(), tensor.mutable_values<T>().begin(),
                 [](Number v) { return static_cast<T>(v); });
  return tensor;
}

Number Combine(Reduction reduction, Number a, Number b) {
  switch (reduction) {
    case Reduction::kSum:
      return a + b;
    case Reduction::kMax:
      return std::isnan(a) || std::isnan(b) ? kPadding : std::max(a, b);
    case Reduction::kMin:
      return std::isnan(a) || std::isnan(b) ? kPadding : std::min(a, b);
  }
  return a;
}

Array Combined(const std::vector<const Array*>& parts, Reduction reduction) {
  Array out = *parts[0];
  for (size_t i = 0; i < out.at.size(); ++i) {
    for (size_t k = 1; k < parts.size(); ++k) {
      out.at[i] = Combine(reduction, out.at[i], parts[k]->at[i]);
    }
    out.at[i] = RoundTo(out.type.dtype, out.at[i]);
  }
  return out;
}

void RoundAll(Array& array) {
  for (Number& v : array.at) v = RoundTo(array.type.dtype, v);
}

// Part `index` of ceil(D / parts) elements of dimension `dim`, padded.
Array Chunk(const Array& x, int64_t dim, int64_t index, int64_t parts) {
  TensorType type = x.type;
  type.dims[dim] = (type.dims[dim] + parts - 1) / parts;
  Dims shift(type.dims.size(), 0);
  shift[dim] = index * type.dims[dim];
  Array out = Window(x, type, shift, kPadding);
  RoundAll(out);
  return out;
}

Array Joined(const std::vector<Array>& parts, int64_t dim, int64_t size) {
  TensorType type = parts[0].type;
  const int64_t chunk = type.dims[dim];
  type.dims[dim] = size;
  Array out(type, std::vector<Number>(type.num_elements(), kPadding));
  for (size_t k = 0; k < parts.size(); ++k) {
    const int64_t start = static_cast<int64_t>(k) * chunk;
    Dims shift(type.dims.size(), 0);
    shift[dim] = -start;
    const Array moved = Window(parts[k], type, shift, kPadding);
    int64_t inner = 1;
    for (size_t d = static_cast<size_t>(dim) + 1; d < type.dims.size(); ++d) inner *= type.dims[d];
    for (size_t i = 0; i < out.at.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) / inner % size;
      if (at >= start && at < start + chunk) out.at[i] = moved.at[i];
    }
  }
  return out;
}

Reduction ReductionAttr(const Op& op) {
  const std::string name = op.attrs.Text("reduction");
  for (const Reduction r : {Reduction::kSum, Reduction::kMax, Reduction::kMin}) {
    if (mesh::ReductionName(r) == name) return r;
  }
  MT_CHECK(false);
}

// One collective on every device; `x[rank]` is what each sends.
Result<std::vector<Array>> EvaluateCollective(const Op& op, const Mesh& mesh,
                                              const std::vector<const Array*>& x) {
  std::vector<int> axes;
  for (const int64_t a : op.attrs.Ints("axes")) axes.push_back(static_cast<int>(a));
  std::vector<Array> out(x.size());
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> group = mesh.Group(rank, axes);
    const auto n = static_cast<int64_t>(group.size());
    const int64_t place = std::find(group.begin(), group.end(), rank) - group.begin();
    std::vector<const Array*> sent;
    for (const int64_t member : group) sent.push_back(x[member]);
    if (op.kind == "all_reduce") {
      out[rank] = Combined(sent, ReductionAttr(op));
    } else if (op.kind == "reduce_scatter") {
      out[rank] = Chunk(Combined(sent, ReductionAttr(op)), op.attrs.Int("dim"), place, n);
    } else if (op.kind == "all_gather") {
      std::vector<Array> parts;
      for (const Array* part : sent) parts.push_back(*part);
      out[rank] = Joined(parts, op.attrs.Int("dim"), op.attrs.Int("size"));
    } else if (op.kind == "halo") {
      // The whole dimension, then a window of it.
      std::vector<Array> parts;
      for (const Array* part : sent) parts.push_back(*part);
      const int64_t dim = op.attrs.Int("dim");
      const Array whole = Joined(parts, dim, op.attrs.Int("size"));
      TensorType type = whole.type;
      type.dims[dim] = op.attrs.Int("extent");
      Dims shift(type.dims.size(), 0);
      shift[dim] = op.attrs.Ints("starts")[place];
      out[rank] = Window(whole, type, shift, op.attrs.Double("value"));
      RoundAll(out[rank]);
    } else if (op.kind == "all_to_all") {
      std::vector<Array> parts;
      for (const Array* part : sent) {
        parts.push_back(Chunk(*part, op.attrs.Int("split_dim"), place, n));
      }
      out[rank] = Joined(parts, op.attrs.Int("concat_dim"), op.attrs.Int("size"));
    } else {
      return Unimplemented("interpreter: expected a collective that it knows, got: `" + op.kind +
                           "`");
    }
  }
  return out;
}

Result<Array> Named(const Arrays& arrays, const std::string& name, const TensorType& type,
                    const std::string& what) {
  const auto it = arrays.find(name);
  if (it == arrays.end()) {
    return InvalidArgument("interpreter: " + what + " `" + name + "` is missing");
  }
  if (it->second.type != type ||
      static_cast<int64_t>(it->second.at.size()) != type.num_elements()) {
    return InvalidArgument("interpreter: " + what + " `" + name + "`: expected " + type.ToString() +
                           ", got: " + it->second.type.ToString());
  }
  return it->second;
}

std::vector<TensorType> TypesOf(const Program& program, const std::vector<ValueId>& values) {
  std::vector<TensorType> types;
  for (const ValueId v : values) types.push_back(program.type(v));
  return types;
}

}  // namespace

Array ToArray(const Tensor& tensor) {
  return mesh::WithElementType(tensor.type().dtype,
                               [&](auto zero) { return Read<decltype(zero)>(tensor); });
}

Tensor ToTensor(const Array& array) {
  return mesh::WithElementType(array.type.dtype,
                               [&](auto zero) { return Write<decltype(zero)>(array); });
}

double Difference(const Array& a, const Array& b) {
  if (a.type != b.type) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < a.at.size(); ++i) {
    if (a.at[i] == b.at[i] || (std::isnan(a.at[i]) && std::isnan(b.at[i]))) continue;
    const auto difference =
        static_cast<double>(std::abs(a.at[i] - b.at[i]) / std::max<Number>(1, std::abs(b.at[i])));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    most = std::max(most, difference);
  }
  return most;
}

std::vector<Array> Cut(const Array& whole, const Layout& layout, uint64_t seed) {
  const Mesh& mesh = layout.mesh();
  std::mt19937_64 random(seed);
  std::vector<int> pending;
  for (const mesh::Partial& p : layout.partial()) pending.push_back(p.axis);
  int64_t parts = 1;
  for (const int a : pending) parts *= mesh.axis(a).size;
  std::vector<Array> part(parts, whole);
  if (parts > 1) {
    const Reduction reduction = layout.partial()[0].reduction;
    for (const mesh::Partial& p : layout.partial()) MT_CHECK(p.reduction == reduction);
    for (size_t i = 0; i < whole.at.size(); ++i) {
      const size_t keeper = random() % parts;  // holds what the others leave
      for (size_t k = 0; k < part.size(); ++k) {
        if (k == keeper) continue;
        auto small = static_cast<double>(random() % 5);
        // What is left to the other must be a number of the type.
        const Number left = part[keeper].at[i] - (small - 2);
        if (mesh::IsHalf(whole.type.dtype) && RoundTo(whole.type.dtype, left) != left) small = 2;
        if (reduction == Reduction::kSum) {
          part[k].at[i] = small - 2;
          part[keeper].at[i] -= small - 2;
        } else {
          part[k].at[i] += reduction == Reduction::kMax ? -small : small;
          if (whole.type.dtype == DType::kU8)
            part[k].at[i] = std::clamp<Number>(part[k].at[i], 0, 255);
        }
      }
    }
  }
  std::vector<Array> out;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> coordinates = mesh.Coordinates(rank);
    int64_t mine = 0;
    for (const int a : pending) mine = mine * mesh.axis(a).size + coordinates[a];
    const Layout::Slice slice = layout.SliceOf(rank, whole.type.dims);
    TensorType type = whole.type;
    type.dims = *layout.LocalShape(whole.type.dims);
    Array shard = Window(part[mine], type, slice.offsets, kPadding);
    RoundAll(shard);
    out.push_back(std::move(shard));
  }
  return out;
}

Result<Array> Join(const std::vector<Array>& parts, const Layout& layout, const Dims& global_dims) {
  const Mesh& mesh = layout.mesh();
  MT_CHECK(static_cast<int64_t>(parts.size()) == mesh.size());
  TensorType type = parts[0].type;
  type.dims = global_dims;
  Array whole(type);
  std::vector<char> filled(whole.at.size(), 0);
  const std::vector<int64_t> strides = mesh::Strides(global_dims);
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    Array shard = parts[rank];
    for (const mesh::Partial& p : layout.partial()) {
      // Axis by axis would mix up kinds; layouts of one kind are all that programs hold.
      MT_CHECK(p.reduction == layout.partial()[0].reduction);
    }
    if (layout.IsPartial()) {
      std::vector<int> axes;
      for (const mesh::Partial& p : layout.partial()) axes.push_back(p.axis);
      std::vector<const Array*> members;
      for (const int64_t member : mesh.Group(rank, axes)) members.push_back(&parts[member]);
      shard = Combined(members, layout.partial()[0].reduction);
    }
    const Layout::Slice slice = layout.SliceOf(rank, global_dims);
    const Array block =
        Window(shard, {type.dtype, slice.sizes}, Dims(global_dims.size(), 0), kPadding);
    Dims index(global_dims.size(), 0);
    for (const Number value : block.at) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d) at += (index[d] + slice.offsets[d]) * strides[d];
      const bool same = whole.at[at] == value || (std::isnan(whole.at[at]) && std::isnan(value));
      if (filled[at] && !same) {
        return Internal("copies differ on rank " + std::to_string(rank) + " of mesh " +
                        mesh.ToString() + " at element " + std::to_string(at) + " of " +
                        type.ToString() + " " + layout.ToString() + ": " +
                        std::to_string(whole.at[at]) + " and " + std::to_string(value));
      }
      whole.at[at] = value;
      filled[at] = 1;
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < slice.sizes[d]) break;
        index[d] = 0;
      }
    }
  }
  if (std::find(filled.begin(), filled.end(), 0) != filled.end()) {
    return Internal("no device holds some element of " + type.ToString() + " " + layout.ToString());
  }
  return whole;
}

Result<StepResult> Interpret(const Program& program, const StepInput& input, Keep keep) {
  std::vector<Array> values(program.values.size());
  for (const program::Port& p : program.inputs) {
    MT_ASSIGN_OR_RETURN(values[p.value],
                        Named(input.inputs, p.name, program.type(p.value), "input"));
  }
  for (const program::State& s : program.states) {
    MT_ASSIGN_OR_RETURN(values[s.entry],
                        Named(input.states, s.name, program.type(s.entry), "state"));
  }
  for (Array& a : values) {
    // What has no bounds yet is fed exactly as it stands.
    if (keep == Keep::kBounded && a.error.size() != a.at.size()) a = Given(std::move(a));
  }
  for (const Op& op : program.ops) {
    std::vector<const Array*> operands;
    for (const ValueId v : op.operands) operands.push_back(&values[v]);
    MT_ASSIGN_OR_RETURN(std::vector<Array> results,
                        EvaluateOp(op, operands, TypesOf(program, op.results), {.keep = keep}));
    for (size_t r = 0; r < results.size(); ++r) values[op.results[r]] = std::move(results[r]);
  }
  StepResult result;
  for (const program::Port& p : program.outputs) result.outputs[p.name] = values[p.value];
  for (const program::State& s : program.states) result.states[s.name] = values[s.exit];
  return result;
}

Result<StepResult> Interpret(const sharding::Partitioned& partitioned, const StepInput& input,
                             uint64_t seed) {
  const Program& local = partitioned.local;
  const Mesh& mesh = partitioned.mesh;
  std::vector<std::vector<Array>> values(local.values.size());  // [value][rank]
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    const program::Port& p = local.inputs[i];
    MT_ASSIGN_OR_RETURN(const Array whole,
                        Named(input.inputs, p.name, partitioned.input_types[i], "input"));
    values[p.value] = Cut(whole, partitioned.input_layouts[i], seed + i);
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    const program::State& s = local.states[i];
    MT_ASSIGN_OR_RETURN(const Array whole,
                        Named(input.states, s.name, partitioned.state_types[i], "state"));
    values[s.entry] = Cut(whole, partitioned.state_layouts[i], seed + 1000 + i);
  }
  for (const Op& op : local.ops) {
    const program::OpDef* def = program::Registry::Standard().Find(op.kind);
    MT_CHECK(def != nullptr);
    if (def->collective) {
      std::vector<const Array*> sent;
      for (const Array& a : values[op.operands[0]]) sent.push_back(&a);
      MT_ASSIGN_OR_RETURN(values[op.results[0]], EvaluateCollective(op, mesh, sent));
    } else {
      for (const ValueId v : op.results) values[v].resize(mesh.size());
      for (int64_t rank = 0; rank < mesh.size(); ++rank) {
        std::vector<const Array*> operands;
        for (const ValueId v : op.operands) operands.push_back(&values[v][rank]);
        MT_ASSIGN_OR_RETURN(
            std::vector<Array> results,
            EvaluateOp(op, operands, TypesOf(local, op.results), {.mesh = &mesh, .rank = rank}));
        for (size_t r = 0; r < results.size(); ++r) {
          values[op.results[r]][rank] = std::move(results[r]);
        }
      }
    }
    for (const ValueId v : op.results) {
      for (const Array& a : values[v]) {
        if (a.type == local.type(v)) continue;
        return Internal("interpreter: " + op.kind + " made " + a.type.ToString() +
                        " where the program says " + local.type(v).ToString());
      }
    }
  }
  StepResult result;
  for (size_t i = 0; i < local.outputs.size(); ++i) {
    const program::Port& p = local.outputs[i];
    auto whole =
        Join(values[p.value], partitioned.output_layouts[i], partitioned.output_types[i].dims);
    if (!whole.ok()) return whole.status().At("output `" + p.name + "`");
    result.outputs[p.name] = *std::move(whole);
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    const program::State& s = local.states[i];
    auto whole =
        Join(values[s.exit], partitioned.state_layouts[i], partitioned.state_types[i].dims);
    if (!whole.ok()) return whole.status().At("state `" + s.name + "`");
    result.states[s.name] = *std::move(whole);
  }
  return result;
}

}  // namespace meshtrain::testing

#include "runtime/device/pjrt/lowering.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/device/pjrt/ops/rows.h"
#include "runtime/program/again.h"

namespace meshtrain::device::pjrt {
namespace {

using mesh::Layout;
using program::Op;
using program::ValueId;

// Whether an output's elements, not what pads its shard, are all finite: i1[].
Node AllFinite(Lowering& l, int output) {
  Module& m = l.m();
  const sharding::Partitioned& p = l.plan().partitioned;
  const Node a = l.Of(p.local.outputs[output].value);
  const Layout& layout = p.output_layouts[output];
  const Dims& global = p.output_types[output].dims;
  const Node is_finite{"", "i1", a.dims};
  Node good =
      m.Line("stablehlo.is_finite " + a.name + " : (" + a.type() + ") -> " + is_finite.type(), "i1",
             a.dims);
  std::vector<int64_t> all;
  for (int d = 0; d < a.rank(); ++d) {
    all.push_back(d);
    if (layout.NumShards(d) * a.dims[d] == global[d]) continue;
    const Node at = m.Binary("add", m.Iota("i64", a.dims, d),
                             m.Broadcast(l.OffsetIn(layout, d, a.dims[d]), a.dims));
    good = m.Binary("or", good,
                    m.Compare("GE", at, m.Whole("i64", a.dims, static_cast<uint64_t>(global[d]))));
  }
  return m.Reduce("and", good, all, m.Splat("i1", {}, 1));
}

// The least code of all devices: `fine` where nothing is wrong. Each device so takes the same way.
// Where all hold the whole of what is looked at, the code of each is that.
Node Code(Lowering& l, int64_t fine, std::vector<std::string>& guards) {
  Module& m = l.m();
  const plan::Plan& plan = l.plan();
  Node code = m.Splat("i32", {}, static_cast<double>(fine));
  std::vector<Node> good;
  for (const int output : plan.guarded) {
    good.push_back(AllFinite(l, output));
    guards.push_back(plan.local().outputs[output].name);
  }
  if (plan.zero_output >= 0) {
    const Node count = l.Of(plan.local().outputs[plan.zero_output].value);
    good.push_back(m.Compare("EQ", m.Reshape(count, {}), m.Splat(count.element, {}, 0)));
    guards.emplace_back();
  }
  for (size_t i = good.size(); i-- > 0;) {
    code = m.Select(good[i], code, m.Splat("i32", {}, static_cast<double>(i + 1)));
  }
  const auto whole = [&](int output) {
    return plan.partitioned.output_layouts[output].Canonical().IsReplicated();
  };
  const bool alike = std::all_of(plan.guarded.begin(), plan.guarded.end(), whole) &&
                     (plan.zero_output < 0 || whole(plan.zero_output));
  if (!alike) {
    std::vector<int64_t> axes;
    for (int a = 0; a < l.mesh().num_axes(); ++a) axes.push_back(a);
    code = m.AllReduce("minimum", {code}, l.GroupsOf(axes))[0];
  }
  return code;
}

}  // namespace

const Rows& AllRows() {
  static const Rows kRows = [] {
    Rows rows;
    for (const auto add : {AddElementwise, AddShape, AddReduce, AddLinear, AddIndex, AddSource,
                           AddRandom, AddCollective, AddWindow, AddHalo, AddGather, AddSort}) {
      add(rows);
    }
    return rows;
  }();
  return kRows;
}

const Node& Lowering::Of(ValueId v) {
  if (nodes_[v].name.empty()) {
    // Only a constant may have no step (plan.h).
    const Op& op = plan_.local().ops[plan_.local().values[v].op];
    MT_CHECK(op.kind == "constant");
    AllRows().at(op.kind)(*this, op);
  }
  return nodes_[v];
}

Node Lowering::In(const Op& op, size_t i) {
  const ValueId v = op.operands[i];
  if (!program::IsAgain(op)) return Of(v);
  const int32_t producer = plan_.local().values[v].op;
  if (producer >= 0) {
    const Op& from = plan_.local().ops[producer];
    if (program::IsAgain(from) || from.kind == "constant") return Of(v);
  }
  const auto [at, is_new] = barriers_.try_emplace(v);
  if (is_new) at->second = module_.Barrier(Of(v));
  return at->second;
}

void Lowering::Set(ValueId v, Node node) {
  MT_CHECK(node.element == ElementOf(type(v).dtype) && node.dims == type(v).dims);
  nodes_[v] = std::move(node);
}

Node Lowering::IndexAlong(const std::vector<int64_t>& axes) {
  // The rank's coordinate along an axis: its digit, the last axis varying fastest.
  Node index = module_.Whole("i64", {}, 0);
  if (axes.empty()) return index;
  const Node rank = module_.Convert(module_.Rank(), "i64");
  const auto number = [&](int64_t n) { return module_.Whole("i64", {}, static_cast<uint64_t>(n)); };
  for (const int64_t axis : axes) {
    int64_t stride = 1;
    for (int a = static_cast<int>(axis) + 1; a < mesh().num_axes(); ++a) {
      stride *= mesh().axis(a).size;
    }
    const int64_t size = mesh().axis(static_cast<int>(axis)).size;
    const Node digit =
        module_.Binary("remainder", module_.Binary("divide", rank, number(stride)), number(size));
    index = module_.Binary("add", module_.Binary("multiply", index, number(size)), digit);
  }
  return index;
}

Module::Groups Lowering::GroupsOf(const std::vector<int64_t>& axes) const {
  Module::Groups groups;
  std::vector<bool> seen(mesh().size(), false);
  const std::vector<int> list(axes.begin(), axes.end());
  for (int64_t rank = 0; rank < mesh().size(); ++rank) {
    if (seen[rank]) continue;
    groups.push_back(mesh().Group(rank, list));
    for (const int64_t member : groups.back()) seen[member] = true;
  }
  return groups;
}

Node Lowering::OffsetIn(const Layout& layout, int d, int64_t local_size) {
  const auto& axes = layout.dim(d);
  const Node index = IndexAlong({axes.begin(), axes.end()});
  return module_.Binary("multiply", index,
                        module_.Whole("i64", {}, static_cast<uint64_t>(local_size)));
}

Result<Lowered> Lower(const plan::Plan& plan) {
  const program::Program& local = plan.local();
  Lowering l(plan);
  Lowered lowered;
  lowered.replicas = plan.partitioned.mesh.size();
  struct Argument {
    Node node;
    int result = -1;  // that takes its memory
  };
  std::vector<Argument> arguments;
  const auto argument = [&](ValueId v) {
    const mesh::TensorType& type = local.type(v);
    arguments.push_back(
        {{"%arg" + std::to_string(arguments.size()), ElementOf(type.dtype), type.dims}});
    l.Set(v, arguments.back().node);
  };
  for (const program::Port& p : local.inputs) argument(p.value);
  for (const program::State& s : local.states) argument(s.entry);

  for (const plan::Step& step : plan.steps) {
    if (step.kind == plan::StepKind::kCopy) continue;  // values, not places
    if (step.kind == plan::StepKind::kCollective && local.ops[step.ops[0]].kind == "all_reduce") {
      std::vector<const Op*> bucket;
      for (const int i : step.ops) bucket.push_back(&local.ops[i]);
      LowerAllReduces(l, bucket);
      continue;
    }
    for (const int i : step.ops) {
      const Op& op = local.ops[i];
      const auto row = AllRows().find(op.kind);
      if (row == AllRows().end()) {
        return Unimplemented("pjrt: no StableHLO for op `" + op.kind + "`" +
                             (op.path.empty() ? "" : " of " + op.path))
            .At(op.where.ToString());
      }
      row->second(l, op);
    }
  }

  std::vector<Node> results;
  for (const program::Port& p : local.outputs) results.push_back(l.Of(p.value));
  Node good;
  Node code;
  if (plan.guard_step >= 0) {
    constexpr int64_t kFine = 1 << 20;
    Module& m = l.m();
    code = Code(l, kFine, lowered.guards);
    const Node fine = m.Splat("i32", {}, kFine);
    good = m.Compare("EQ", code, fine);
    code = m.Select(good, m.Splat("i32", {}, 0), code);
  }
  for (size_t i = 0; i < local.states.size(); ++i) {
    const program::State& s = local.states[i];
    if (s.exit == s.entry) continue;
    Node next = l.Of(s.exit);
    if (plan.guard_step >= 0) {
      next = l.m().Select(l.m().Broadcast(good, next.dims), next, l.Of(s.entry));
    }
    arguments[local.inputs.size() + i].result = static_cast<int>(results.size());
    results.push_back(next);
    lowered.changed.push_back(static_cast<int>(i));
  }
  if (plan.guard_step >= 0) results.push_back(code);

  std::string head =
      "module @step attributes {mhlo.num_replicas = " + std::to_string(lowered.replicas) +
      " : i32, mhlo.num_partitions = 1 : i32} {\n  func.func public @main(";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& a = arguments[i];
    head += (i == 0 ? "" : ", ") + a.node.name + ": " + a.node.type();
    if (a.result >= 0) head += " {tf.aliasing_output = " + std::to_string(a.result) + " : i32}";
  }
  std::string types, names;
  for (size_t i = 0; i < results.size(); ++i) {
    types += (i == 0 ? "" : ", ") + results[i].type();
    names += (i == 0 ? "" : ", ") + results[i].name;
  }
  lowered.text = head + ") -> (" + types + ") {\n" + l.m().text() + "    return " + names +
                 (results.empty() ? "" : " : " + types) + "\n  }\n}\n";
  return lowered;
}

}  // namespace meshtrain::device::pjrt

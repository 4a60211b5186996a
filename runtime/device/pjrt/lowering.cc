#include "runtime/device/pjrt/lowering.h"

#include <algorithm>
#include <map>
#include <set>
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
  Node good = m.IsFinite(a);
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

// What the states are after the step: their next values, or where a guard found something the old.
class NextStates {
 public:
  explicit NextStates(Lowering& l) : l_(l) {
    for (const program::State& s : l.plan().local().states) {
      if (s.exit != s.entry && !exits_.try_emplace(s.exit, &s).second) exits_[s.exit] = nullptr;
    }
  }

  // Once, after the plan's guard step.
  void Look(std::vector<std::string>& guards) {
    constexpr int64_t kFine = 1 << 20;
    Module& m = l_.m();
    const Node code = Code(l_, kFine, guards);
    good_ = m.Compare("EQ", code, m.Splat("i32", {}, kFine));
    code_ = m.Select(good_, m.Splat("i32", {}, 0), code);
  }
  // 0, or the number of the guard that found something.
  const Node& code() const { return code_; }

  // After each op. On CPUs what reads a state's next value (a weight that of its moments) reads
  // what the state is then, behind a barrier. Else XLA would compute it from the old value again,
  // which so could not make room for the new one in its place before: it would be copied in each
  // step.
  void OpIsThere(const Op& op) {
    if (!l_.for_cpus() || (l_.plan().guard_step >= 0 && good_.name.empty())) return;
    for (const ValueId v : op.results) {
      const auto exit = exits_.find(v);
      if (exit == exits_.end() || exit->second == nullptr) continue;
      l_.Set(v, l_.m().Barrier(Of(*exit->second)));
      there_.insert(v);
    }
  }

  Node Of(const program::State& s) {
    const Node next = l_.Of(s.exit);
    if (l_.plan().guard_step < 0 || there_.contains(s.exit)) return next;
    return l_.m().Select(l_.m().Broadcast(good_, next.dims), next, l_.Of(s.entry));
  }

 private:
  Lowering& l_;
  std::map<ValueId, const program::State*> exits_;  // null: of several states
  std::set<ValueId> there_;
  Node good_, code_;
};

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

Result<Lowered> Lower(const plan::Plan& plan, bool for_cpus) {
  const program::Program& local = plan.local();
  Lowering l(plan, for_cpus);
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

  NextStates next(l);
  for (size_t at = 0; at < plan.steps.size(); ++at) {
    const plan::Step& step = plan.steps[at];
    if (step.kind == plan::StepKind::kCollective && local.ops[step.ops[0]].kind == "all_reduce") {
      std::vector<const Op*> bucket;
      for (const int i : step.ops) bucket.push_back(&local.ops[i]);
      LowerAllReduces(l, bucket);
    } else if (step.kind != plan::StepKind::kCopy) {  // values, not places
      for (const int i : step.ops) {
        const Op& op = local.ops[i];
        const auto row = AllRows().find(op.kind);
        if (row == AllRows().end()) {
          return Unimplemented("pjrt: no StableHLO for op `" + op.kind + "`" +
                               (op.path.empty() ? "" : " of " + op.path))
              .At(op.where.ToString());
        }
        row->second(l, op);
        next.OpIsThere(op);
      }
    }
    if (static_cast<int>(at) == plan.guard_step) next.Look(lowered.guards);
  }

  std::vector<Node> results;
  for (const program::Port& p : local.outputs) results.push_back(l.Of(p.value));
  for (size_t i = 0; i < local.states.size(); ++i) {
    const program::State& s = local.states[i];
    if (s.exit == s.entry) continue;
    arguments[local.inputs.size() + i].result = static_cast<int>(results.size());
    results.push_back(next.Of(s));
    lowered.changed.push_back(static_cast<int>(i));
  }
  if (plan.guard_step >= 0) results.push_back(next.code());

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

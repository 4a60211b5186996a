// Propagate: given layouts in, a layout for every value and a split for every op out.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/program/builder.h"
#include "runtime/sharding/lint.h"
#include "runtime/sharding/sharding.h"
#include "runtime/sharding/solve.h"

namespace meshtrain::sharding {
namespace {

using program::Op;

// "state `w0`", "input `x`".
std::string Named(std::string_view kind, const std::string& name) {
  return std::string(kind) + " `" + name + "`";
}

// Every given name is one of the program's.
Status CheckNames(std::string_view kind, const std::map<std::string, Layout>& given,
                  const std::vector<std::string>& names) {
  for (const auto& [name, layout] : given) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string article = kind == "state" ? "a " : "an ";
    return InvalidArgument("layouts: expected the name of " + article + std::string(kind) +
                           " of the program, got: `" + name + "`" + DidYouMean(name, names));
  }
  return OkStatus();
}

Status CheckGiven(std::string_view kind, const std::string& name, const Layout& layout,
                  const Mesh& mesh, const program::TensorType& type, bool may_be_pending,
                  const Options& options) {
  const std::string what = Named(kind, name);
  if (!(layout.mesh() == mesh)) {
    return InvalidArgument(what + ": expected a layout on mesh `" +
                           mesh.ToStringUnlike(layout.mesh()) + "`, got one on `" +
                           layout.mesh().ToStringUnlike(mesh) + "`");
  }
  if (layout.rank() != type.rank()) {
    return InvalidArgument(what + ": expected a layout of rank " + std::to_string(type.rank()) +
                           " for " + type.ToString() + ", got: " + layout.ToString());
  }
  if (layout.IsPartial() && !may_be_pending) {
    return InvalidArgument(
        what + ": expected a layout without a pending reduction, got: " + layout.ToString());
  }
  return options.refuse_uneven ? CheckEven(what, layout, type) : OkStatus();
}

const Layout* Find(const std::map<std::string, Layout>& given, const std::string& name) {
  const auto it = given.find(name);
  return it == given.end() ? nullptr : &it->second;
}

// The layout that a `relayout` op pins.
Result<Layout> PinnedLayout(const Op& op, const Mesh& mesh, const program::TensorType& type,
                            const Options& options) {
  const std::string where = op.where.ToString();
  const std::string what = "relayout" + (where.empty() ? "" : " at " + where);
  auto layout = Layout::Parse(op.attrs.Text("specs"), mesh);
  if (!layout.ok()) return layout.status().At(what);
  if (layout->rank() != type.rank()) {
    return InvalidArgument(what + ": expected " + std::to_string(type.rank()) + " specs for " +
                           type.ToString() + ", got: " + layout->ToString());
  }
  if (options.refuse_uneven) MT_RETURN_IF_ERROR(CheckEven(what, *layout, type));
  return layout;
}

OpSplit Public(const sharding::Split& split) {
  OpSplit out;
  for (const AxisList& axes : split.factors) out.factors.emplace_back(axes.begin(), axes.end());
  for (int a = 0; a < kMaxAxes; ++a) {
    if (split.passing.pending(a)) {
      out.passing.push_back({a, Placement::ReductionOf(split.passing.at[a])});
    }
  }
  for (int i = 0; i < 32; ++i) {
    if (split.passing_operands >> i & 1) out.passing_operands.push_back(i);
  }
  return out;
}

// A hint that still lacks an axis of `layout` takes it.
void TakeHint(Problem& problem, ValueId v, const Layout& layout) {
  if (problem.fixed[v] || problem.hints[v].AnySplit()) return;
  problem.hints[v] = PlacementOf(layout);
}

}  // namespace

Result<Problem> MakeProblem(const Program& program, const Mesh& mesh, const Options& options) {
  Problem problem{.program = &program,
                  .mesh = &mesh,
                  .reshard = {.sizes = AxisSizes(mesh), .cost = options.cost},
                  .refuse_uneven = options.refuse_uneven,
                  .replication_limit_bytes = options.replication_limit_bytes,
                  .of_states = OfStates(program)};
  const program::Registry& registry = program::Registry::Standard();
  problem.ops.reserve(program.ops.size());
  problem.uses.assign(program.values.size(), 0);
  problem.user.assign(program.values.size(), -1);
  std::vector<program::TensorType> operands, results;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    auto def = registry.Get(op.kind);
    if (!def.ok()) return def.status().At(op.where.ToString());
    if ((*def)->collective) {
      return InvalidArgument("`" + op.kind + "` stands between devices; only a partitioned " +
                             "program may hold it")
          .At(op.where.ToString());
    }
    if (op.attrs.Has("layout") || op.attrs.Has("global_dims") || op.kind == "shard_slice" ||
        op.kind == "shard_window" || op.kind == "mask_pad") {
      return InvalidArgument("`" + op.kind + "` says where a shard stands; only a partitioned " +
                             "program may do so")
          .At(op.where.ToString());
    }
    operands.clear();
    results.clear();
    for (const ValueId v : op.operands) operands.push_back(program.type(v));
    for (const ValueId v : op.results) results.push_back(program.type(v));
    const program::OpCall call{operands, op.attrs};
    OpInfo info{.def = *def,
                .table = (*def)->factors(call, results),
                .cost = program::CostOf(**def, call, results)};
    if (!info.table.placed.empty() && op.attrs.Has("axes")) {
      return InvalidArgument("`" + op.kind + "` says where a shard stands; only a partitioned " +
                             "program may do so")
          .At(op.where.ToString());
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      info.linearity.push_back(program::LinearityOf(**def, call, static_cast<int>(k)));
    }
    info.widens = operands.size() == 1 && mesh::IsHalf(operands[0].dtype) &&
                  info.linearity[0] == program::Linearity::kAlone &&
                  mesh::DTypeBytes(results[0].dtype) > mesh::DTypeBytes(operands[0].dtype);
    MT_CHECK(info.table.operands.size() == operands.size() &&
             info.table.results.size() == results.size());
    problem.ops.push_back(std::move(info));
    for (size_t k = 0; k < op.operands.size(); ++k) {
      const ValueId v = op.operands[k];
      if (problem.user[v] == static_cast<int>(i)) continue;
      problem.user[v] = static_cast<int>(i);
      ++problem.uses[v];
    }
  }
  for (const program::Port& p : program.outputs) ++problem.uses[p.value];
  for (const program::State& s : program.states) ++problem.uses[s.exit];
  return problem;
}

Status GiveHints(Problem& problem, const Given& given, const Options& options,
                 const std::set<std::string>* follow) {
  const Program& program = *problem.program;
  const Mesh& mesh = *problem.mesh;
  problem.hints.assign(program.values.size(), {});
  problem.fixed.assign(program.values.size(), 0);
  problem.ends.clear();
  for (const program::Port& p : program.inputs) {
    const Layout* layout = Find(given.inputs, p.name);
    if (layout == nullptr) continue;
    MT_RETURN_IF_ERROR(
        CheckGiven("input", p.name, *layout, mesh, program.type(p.value), true, options));
    problem.hints[p.value] = PlacementOf(*layout);
    problem.fixed[p.value] = 1;
  }
  for (const program::State& s : program.states) {
    problem.fixed[s.entry] = follow == nullptr || !follow->contains(s.name) ? 1 : 0;
    const Layout* layout = Find(given.states, s.name);
    if (layout == nullptr) continue;
    MT_RETURN_IF_ERROR(
        CheckGiven("state", s.name, *layout, mesh, program.type(s.entry), false, options));
    problem.hints[s.entry] = PlacementOf(*layout);
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.kind != "relayout") continue;
    MT_ASSIGN_OR_RETURN(const Layout layout,
                        PinnedLayout(op, mesh, program.type(op.results[0]), options));
    problem.hints[op.results[0]] = PlacementOf(layout);
    problem.fixed[op.results[0]] = 1;
  }
  for (const program::State& s : program.states) {
    problem.ends.push_back({s.exit, problem.hints[s.entry]});
  }
  for (const program::Port& p : program.outputs) {
    const Layout* layout = Find(given.outputs, p.name);
    End& end = problem.ends.emplace_back(End{p.value, Placement()});
    if (layout == nullptr) {
      if (given.outputs_stay) end.want.reset();
      continue;
    }
    MT_RETURN_IF_ERROR(
        CheckGiven("output", p.name, *layout, mesh, program.type(p.value), false, options));
    end.want = PlacementOf(*layout);
    TakeHint(problem, p.value, *layout);
  }
  for (const program::State& s : program.states) {
    if (const Layout* layout = Find(given.states, s.name)) TakeHint(problem, s.exit, *layout);
  }
  SpreadHints(problem);
  return OkStatus();
}

std::vector<bool> ToExpand(const Problem& problem) {
  const Program& program = *problem.program;
  std::vector<bool> chosen(program.ops.size(), false);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpInfo& info = problem.ops[i];
    if (info.def->expand == nullptr) continue;
    const auto splits = [&](const std::vector<ValueId>& values,
                            const std::vector<std::vector<program::DimFactors>>& tensors) {
      for (size_t t = 0; t < values.size(); ++t) {
        for (size_t d = 0; d < tensors[t].size(); ++d) {
          const bool whole = std::any_of(tensors[t][d].begin(), tensors[t][d].end(),
                                         [&](int f) { return !Splittable(info.table.factors[f]); });
          if (whole && !problem.hints[values[t]].AxesOf(static_cast<int>(d)).empty()) return true;
        }
      }
      return false;
    };
    chosen[i] = splits(program.ops[i].operands, info.table.operands) ||
                splits(program.ops[i].results, info.table.results);
  }
  if (std::find(chosen.begin(), chosen.end(), true) == chosen.end()) chosen.clear();
  return chosen;
}

Result<Sharded> Propagate(const Program& given_program, const Mesh& mesh, const Given& given,
                          const Options& options) {
  std::vector<std::string> inputs, states, outputs;
  for (const program::Port& p : given_program.inputs) inputs.push_back(p.name);
  for (const program::State& s : given_program.states) states.push_back(s.name);
  for (const program::Port& p : given_program.outputs) outputs.push_back(p.name);
  MT_RETURN_IF_ERROR(CheckNames("input", given.inputs, inputs));
  MT_RETURN_IF_ERROR(CheckNames("state", given.states, states));
  MT_RETURN_IF_ERROR(CheckNames("output", given.outputs, outputs));

  // Where a layout splits what an op needs whole, the op's expansion takes its place; that may lead
  // layouts further, so to a fixpoint. Expansions expand to nothing that has one.
  Program program = given_program;
  MT_ASSIGN_OR_RETURN(Problem problem, MakeProblem(program, mesh, options));
  for (;;) {
    MT_RETURN_IF_ERROR(GiveHints(problem, given, options));
    const std::vector<bool> chosen = ToExpand(problem);
    if (chosen.empty()) break;
    MT_ASSIGN_OR_RETURN(program, program::Builder::Expanded(program, chosen));
    MT_ASSIGN_OR_RETURN(problem, MakeProblem(program, mesh, options));
  }
  Solution solution = Solve(problem);

  Sharded sharded{.program = program, .mesh = mesh};
  sharded.layouts.reserve(program.values.size());
  for (size_t v = 0; v < program.values.size(); ++v) {
    sharded.layouts.push_back(
        LayoutOf(solution.placements[v], mesh, program.values[v].type.rank()));
  }
  // The given ones word for word, axes of size 1 included.
  for (const program::Port& p : program.inputs) {
    if (const Layout* layout = Find(given.inputs, p.name)) sharded.layouts[p.value] = *layout;
  }
  for (const program::State& s : program.states) {
    const Layout* layout = Find(given.states, s.name);
    if (layout != nullptr) sharded.layouts[s.entry] = *layout;
    sharded.exits.push_back(sharded.layouts[s.entry]);
    sharded.state_given.push_back(layout != nullptr);
  }
  for (const program::Port& p : program.outputs) {
    const Layout* layout = Find(given.outputs, p.name);
    sharded.outputs.push_back(layout != nullptr ? *layout
                              : given.outputs_stay
                                  ? sharded.layouts[p.value].WithPartial({})
                                  : Layout::Replicated(mesh, program.type(p.value).rank()));
    sharded.output_given.push_back(layout != nullptr);
  }
  sharded.splits.reserve(program.ops.size());
  for (const sharding::Split& split : solution.splits) sharded.splits.push_back(Public(split));
  return sharded;
}

Result<Partitioned> Shard(const Program& program, const Mesh& mesh, const Given& given,
                          const Options& options) {
  MT_ASSIGN_OR_RETURN(const Sharded sharded, Propagate(program, mesh, given, options));
  return Partition(sharded, options);
}

}  // namespace meshtrain::sharding

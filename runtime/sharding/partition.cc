// Partition: the program of one device. Walks the ops once; every value keeps the list of layouts
// it exists in, so that two users of one layout share one reshard, and a third layout starts from
// the nearest one there is.
// Long: one walk, whose steps (reshards, masks, blocks of windows, the guard) share the local
// program that they write.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/program/finite.h"
#include "runtime/sharding/lint.h"
#include "runtime/sharding/solve.h"
#include "runtime/sharding/windows.h"

namespace meshtrain::sharding {
namespace {

using mesh::DType;
using program::Attrs;
using program::Op;
using program::TensorType;

Split Internal(const OpSplit& split) {
  Split out;
  for (const mesh::DimSharding& axes : split.factors) {
    AxisList& list = out.factors.emplace_back();
    for (const int a : axes) list.Add(a);
  }
  for (const mesh::Partial& p : split.passing) {
    out.passing.at[p.axis] = Placement::PendingCode(p.reduction);
  }
  for (const int i : split.passing_operands) out.passing_operands |= 1u << i;
  return out;
}

program::FactorTable TableOf(const Program& program, const Op& op) {
  std::vector<TensorType> operands, results;
  for (const ValueId v : op.operands) operands.push_back(program.type(v));
  for (const ValueId v : op.results) results.push_back(program.type(v));
  const program::OpDef* def = program::Registry::Standard().Find(op.kind);
  MT_CHECK(def != nullptr);
  return def->factors({operands, op.attrs}, results);
}

// x such that reduction(x, y) == y for every y of the type.
double IdentityOf(mesh::Reduction reduction, DType dtype) {
  if (reduction == mesh::Reduction::kSum) return 0;
  const bool max = reduction == mesh::Reduction::kMax;
  switch (dtype) {
    case DType::kBool:
      return max ? 0 : 1;
    case DType::kU8:
      return max ? 0 : std::numeric_limits<uint8_t>::max();
    case DType::kI32:
      return max ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max();
    case DType::kI64:
      // Of which the largest integer is made, which no double holds: mesh::ToI64.
      return max ? -0x1p63 : 0x1p63;
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
    case DType::kF16:
      return max ? -std::numeric_limits<double>::infinity()
                 : std::numeric_limits<double>::infinity();
  }
  return 0;
}

std::string LayoutWord(const Layout& layout) {
  return layout.IsReplicated() ? "replicated" : layout.ToString();
}

std::string OpText(const Op& op) {
  std::string text = op.kind;
  if (!op.path.empty()) text += " (" + op.path + ")";
  if (!op.where.file.empty()) text += " at " + op.where.ToString();
  return text;
}

bool IsPlaced(const program::FactorTable& table, int operand, int dim) {
  return std::any_of(table.placed.begin(), table.placed.end(), [&](const program::PlacedDim& d) {
    return !d.result && d.tensor == operand && d.dim == dim;
  });
}

std::vector<int64_t> Ints(const AxisList& axes) { return {axes.begin(), axes.end()}; }

class Partitioner {
 public:
  Partitioner(const Sharded& sharded, const Options& options)
      : sharded_(sharded),
        global_(sharded.program),
        options_(options),
        context_{.sizes = AxisSizes(sharded.mesh), .cost = options.cost},
        of_states_(OfStates(sharded.program)),
        versions_(sharded.program.values.size()) {
    out_.mesh = sharded.mesh;
    out_.local.name = global_.name;
  }

  Result<Partitioned> Run() {
    for (const program::Port& p : global_.inputs) {
      const Layout& layout = sharded_.layouts[p.value];
      out_.local.inputs.push_back({p.name, Enter(p.value, layout)});
      out_.input_layouts.push_back(layout);
      out_.input_types.push_back(global_.type(p.value));
    }
    for (const program::State& s : global_.states) {
      const Layout& layout = sharded_.layouts[s.entry];
      out_.local.states.push_back({s.name, Enter(s.entry, layout), program::kNoValue});
      out_.state_layouts.push_back(layout);
      out_.state_types.push_back(global_.type(s.entry));
    }
    for (size_t i = 0; i < global_.ops.size(); ++i) MT_RETURN_IF_ERROR(AddOp(static_cast<int>(i)));
    for (size_t i = 0; i < global_.outputs.size(); ++i) {
      const program::Port& p = global_.outputs[i];
      const Layout& layout = sharded_.outputs[i];
      const std::string what = "output " + p.name;
      const Want want{.reason = what + " is returned " + LayoutWord(layout),
                      .advice = "a layout for output `" + p.name + "`",
                      .limit = LimitOf(sharded_.output_given[i])};
      MT_ASSIGN_OR_RETURN(const ValueId v, Bring(p.value, PlacementOf(layout), want));
      out_.local.outputs.push_back({p.name, v});
      out_.output_layouts.push_back(layout);
      out_.output_types.push_back(global_.type(p.value));
    }
    for (size_t i = 0; i < global_.states.size(); ++i) {
      const program::State& s = global_.states[i];
      const Layout& layout = sharded_.exits[i];
      const Want want{.reason = "state " + s.name + " is stored " + LayoutWord(layout),
                      .advice = "a layout for state `" + s.name + "`",
                      .limit = LimitOf(sharded_.state_given[i])};
      MT_ASSIGN_OR_RETURN(out_.local.states[i].exit, Bring(s.exit, PlacementOf(layout), want));
    }
    if (options_.guard_updates) AddGuard();
    return std::move(out_);
  }

 private:
  struct Version {
    Placement placement;
    ValueId local;
  };
  // Why a value is brought somewhere; `op` is the global op that asks, -1: none.
  struct Want {
    int op = -1;
    int operand = 0;
    std::string reason;
    std::string advice;
    GatherLimit limit = {};
  };
  struct Mask {
    ValueId from;
    int dim;
    double value;
    ValueId local;
  };

  // `asked`: somebody asked for exactly this layout.
  GatherLimit LimitOf(bool asked) const {
    return asked ? GatherLimit() : GatherLimit{.bytes = options_.replication_limit_bytes};
  }

  ValueId NewValue(TensorType type, int32_t op, const Layout& layout, const program::Dims& global) {
    out_.local.values.push_back({std::move(type), op});
    out_.layouts.push_back(layout);
    out_.global_dims.push_back(global);
    return static_cast<ValueId>(out_.local.values.size()) - 1;
  }

  TensorType LocalType(ValueId v, const Placement& placement) const {
    TensorType type = global_.type(v);
    for (size_t d = 0; d < type.dims.size(); ++d) {
      type.dims[d] = LocalExtent(placement, static_cast<int>(d), type.dims[d], context_.sizes);
    }
    return type;
  }

  ValueId Enter(ValueId v, const Layout& layout) {
    const Placement placement = PlacementOf(layout);
    const ValueId local = NewValue(LocalType(v, placement), -1, layout, global_.type(v).dims);
    versions_[v].push_back({placement, local});
    return local;
  }

  // Appends a local op that takes blocks of dimension `dim`, `extent` elements each; the same op on
  // the same value is there once.
  ValueId EmitBlock(std::string kind, Attrs attrs, ValueId operand, int dim, int64_t extent,
                    const Op& origin) {
    for (const int i : block_ops_) {
      const Op& made = out_.local.ops[i];
      if (made.kind == kind && made.operands[0] == operand && made.attrs == attrs) {
        return made.results[0];
      }
    }
    const auto index = static_cast<int32_t>(out_.local.ops.size());
    TensorType type = out_.local.type(operand);
    type.dims[dim] = extent;
    // Blocks overlap: along this dimension each device has a tensor of its own.
    program::Dims global = out_.global_dims[operand];
    global[dim] = extent;
    const Layout layout = out_.layouts[operand].WithDim(dim, {});
    const ValueId result = NewValue(std::move(type), index, layout, global);
    out_.local.ops.push_back(
        {std::move(kind), std::move(attrs), {operand}, {result}, origin.path, origin.where});
    block_ops_.push_back(index);
    return result;
  }

  Attrs BlockAttrs(const AxisList& axes, int dim, std::vector<int64_t> starts, int64_t extent,
                   double value) const {
    return {{"axes", Ints(axes)},  {"group", context_.sizes.Product(axes)},
            {"dim", int64_t{dim}}, {"starts", std::move(starts)},
            {"extent", extent},    {"value", value}};
  }

  // `v` in blocks where the op's windows are split, from the cheapest of the layouts that it has.
  Result<ValueId> BringBlocks(ValueId v, const Placement& placement,
                              std::span<const BlocksWanted> wanted, const Want& want) {
    std::vector<Placement> have;
    for (const Version& version : versions_[v]) have.push_back(version.placement);
    const program::Dims& dims = global_.type(v).dims;
    const BlockRoute route =
        PlanBlocks(have, placement, wanted, dims, mesh::DTypeBytes(global_.type(v).dtype), context_,
                   want.limit);
    MT_ASSIGN_OR_RETURN(ValueId local, Bring(v, route.through, want));
    for (size_t k = 0; k < wanted.size(); ++k) {
      const bool whole = (route.whole >> k & 1) != 0;
      local = whole ? CutBlocks(local, wanted[k], {}, global_.ops[want.op])
                    : ExchangeBlocks(local, v, route.through, wanted[k], want);
    }
    return local;
  }

  // `bases`: where what each device has begins; none: at 0.
  ValueId CutBlocks(ValueId local, const BlocksWanted& wanted, const std::vector<int64_t>& bases,
                    const Op& origin) {
    std::vector<int64_t> starts = wanted.blocks.starts;
    for (size_t j = 0; j < bases.size(); ++j) starts[j] -= bases[j];
    return EmitBlock("shard_window",
                     BlockAttrs(wanted.axes, wanted.dim, std::move(starts), wanted.blocks.extent,
                                wanted.outside),
                     local, wanted.dim, wanted.blocks.extent, origin);
  }

  // From chunks.
  ValueId ExchangeBlocks(ValueId local, ValueId v, const Placement& placement,
                         const BlocksWanted& wanted, const Want& want) {
    const Op& origin = global_.ops[want.op];
    const int64_t size = global_.type(v).dims[wanted.dim];
    const int64_t chunk = out_.local.type(local).dims[wanted.dim];
    std::vector<int64_t> bases;
    for (size_t j = 0; j < wanted.blocks.starts.size(); ++j) {
      bases.push_back(static_cast<int64_t>(j) * chunk);
    }
    bool alone = true;  // nobody needs what another has
    for (const HaloShift& shift : HaloShifts(size, wanted.blocks)) {
      alone = alone && shift.shift == 0;
    }
    if (alone) {
      if (!EvenDim(placement, wanted.dim, size, context_.sizes)) {
        local = EmitBlock("mask_pad",
                          {{"axes", Ints(wanted.axes)},
                           {"dim", int64_t{wanted.dim}},
                           {"size", size},
                           {"value", wanted.outside}},
                          local, wanted.dim, chunk, origin);
      }
      const bool same = wanted.blocks.starts == bases && wanted.blocks.extent == chunk;
      return same ? local : CutBlocks(local, wanted, bases, origin);
    }
    const auto emitted = out_.local.ops.size();
    const program::Dims before = out_.local.type(local).dims;
    Attrs attrs = BlockAttrs(wanted.axes, wanted.dim, wanted.blocks.starts, wanted.blocks.extent,
                             wanted.outside);
    attrs.Set("size", size);
    const ValueId result =
        EmitBlock("halo", std::move(attrs), local, wanted.dim, wanted.blocks.extent, origin);
    if (out_.local.ops.size() == emitted) return result;
    const HaloCost cost =
        CostOfHalo(wanted, size, before, mesh::DTypeBytes(global_.type(v).dtype), context_.cost);
    const Layout layout = LayoutOf(placement, sharded_.mesh, global_.type(v).rank());
    out_.reshards.push_back(
        {.ops = {static_cast<int>(emitted)},
         .value = ValueText(v),
         .from = layout,
         .to = layout,
         .reason = "input " + std::to_string(want.operand) + " of " + OpText(origin) +
                   ": what lies around its shards in dimension " + std::to_string(wanted.dim),
         .bytes_per_device = cost.bytes,
         .predicted_seconds = cost.seconds});
    return result;
  }

  // Appends a local op with one result that stands for global value `v` at `placement`.
  ValueId Emit(std::string kind, Attrs attrs, ValueId operand, ValueId v,
               const Placement& placement, const Op* origin) {
    const auto index = static_cast<int32_t>(out_.local.ops.size());
    const TensorType& type = global_.type(v);
    const ValueId result = NewValue(LocalType(v, placement), index,
                                    LayoutOf(placement, sharded_.mesh, type.rank()), type.dims);
    Op op{std::move(kind), std::move(attrs), {operand}, {result}, "", {}};
    if (origin != nullptr) {
      op.path = origin->path;
      op.where = origin->where;
    }
    out_.local.ops.push_back(std::move(op));
    return result;
  }

  std::string ValueText(ValueId v) const {
    std::string text = "%" + std::to_string(v) + " " + global_.type(v).ToString();
    if (global_.values[v].op >= 0) return text + " of " + OpText(global_.ops[global_.values[v].op]);
    for (const program::Port& p : global_.inputs) {
      if (p.value == v) return text + " of input " + p.name;
    }
    for (const program::State& s : global_.states) {
      if (s.entry == v) return text + " of state " + s.name;
    }
    return text;
  }

  // What may keep `v` from being gathered for the op `wants`: where it comes from a layer, the
  // layouts of that layer's weights decide how it lies.
  std::string Advice(ValueId v, const Op* wants, const Move& gather) const {
    const std::string relayout = "a Relayout of it before that op";
    for (const program::Port& p : global_.inputs) {
      if (p.value == v) {
        return "another layout of input `" + p.name + "`, in a manifest layout.inputs, or " +
               relayout;
      }
    }
    const std::string rule = ", in a manifest a rule of layout.rules";
    for (const program::State& s : global_.states) {
      if (s.entry != v) continue;
      std::vector<mesh::DimSharding> dims = sharded_.layouts[v].dims();
      for (mesh::DimSharding& axes : dims) {
        std::erase_if(axes, [&](int axis) { return gather.axes.Has(axis); });
      }
      const auto without = Layout::Create(sharded_.mesh, std::move(dims));
      MT_CHECK(without.ok());
      return "another layout of state `" + s.name + "`" + rule + ", as {match: " + s.name +
             ", spec: [" + Join(without->specs(), ", ") + "]}, or " + relayout;
    }
    const auto weights = [&](const std::string& path) {
      std::vector<std::string> names;
      for (const program::State& s : global_.states) {
        if (!path.empty() && s.name.starts_with(path + ".")) names.push_back("`" + s.name + "`");
      }
      return names;
    };
    const int32_t producer = global_.values[v].op;
    std::string layer = producer < 0 ? "" : global_.ops[producer].path;
    std::vector<std::string> names = weights(layer);
    if (names.empty() && wants != nullptr) names = weights(layer = wants->path);
    if (names.empty()) return relayout;
    return "another layout of the weights of `" + layer + "`" + rule + " for " + Join(names, ", ") +
           ", or " + relayout;
  }

  Result<ValueId> Bring(ValueId v, const Placement& placement, const Want& want) {
    std::vector<Version>& versions = versions_[v];
    for (const Version& version : versions) {
      if (version.placement == placement) return version.local;
    }
    const ReshardPlan* best = nullptr;
    double least = 0;
    size_t start = 0;
    for (size_t i = 0; i < versions.size(); ++i) {
      const ReshardPlan& plan = PlanReshard(versions[i].placement, placement, global_.type(v).dims,
                                            mesh::DTypeBytes(global_.type(v).dtype), context_);
      const double seconds =
          plan.seconds + (RefusedGather(plan, want.limit) == nullptr ? 0 : kRefused);
      if (!plan.possible || (best != nullptr && seconds >= least)) continue;
      best = &plan;
      least = seconds;
      start = i;
    }
    MT_CHECK(best != nullptr);
    const int rank = global_.type(v).rank();
    Reshard reshard{.value = ValueText(v),
                    .from = LayoutOf(versions[start].placement, sharded_.mesh, rank),
                    .to = LayoutOf(placement, sharded_.mesh, rank),
                    .reason = want.reason,
                    .predicted_seconds = best->seconds};
    const Op* origin = want.op < 0 ? nullptr : &global_.ops[want.op];
    if (origin != nullptr) {
      reshard.reason = "input " + std::to_string(want.operand) + " of " + OpText(*origin);
    }
    if (const Move* gather = RefusedGather(*best, want.limit)) {
      return SilentReplication(reshard.value, reshard.from, *gather, reshard.reason,
                               want.advice.empty() ? Advice(v, origin, *gather) : want.advice,
                               want.limit);
    }
    ValueId at = versions[start].local;
    for (const Move& move : best->moves) {
      reshard.ops.push_back(static_cast<int>(out_.local.ops.size()));
      reshard.bytes_per_device += move.bytes;
      at = EmitMove(move, at, v, origin);
      versions.push_back({move.after, at});
    }
    out_.reshards.push_back(std::move(reshard));
    return at;
  }

  ValueId EmitMove(const Move& move, ValueId from, ValueId v, const Op* origin) {
    Attrs attrs{{"axes", Ints(move.axes)}, {"group", context_.sizes.Product(move.axes)}};
    const auto extent = [&](int dim) {
      return LocalExtent(move.after, dim, global_.type(v).dims[dim], context_.sizes);
    };
    const std::string reduction(mesh::ReductionName(move.reduction));
    std::string kind;
    switch (move.kind) {
      case MoveKind::kSlice:
        kind = "shard_slice";
        attrs.Set("dim", int64_t{move.dim});
        break;
      case MoveKind::kAllGather:
        kind = "all_gather";
        attrs.Set("dim", int64_t{move.dim});
        attrs.Set("size", extent(move.dim));
        break;
      case MoveKind::kReduceScatter:
        kind = "reduce_scatter";
        attrs.Set("dim", int64_t{move.dim});
        attrs.Set("reduction", reduction);
        break;
      case MoveKind::kAllReduce:
        kind = "all_reduce";
        attrs.Set("reduction", reduction);
        break;
      case MoveKind::kAllToAll:
        kind = "all_to_all";
        attrs.Set("split_dim", int64_t{move.dim});
        attrs.Set("concat_dim", int64_t{move.from_dim});
        attrs.Set("size", extent(move.from_dim));
        break;
    }
    return Emit(std::move(kind), std::move(attrs), from, v, move.after, origin);
  }

  // `local` stands for `v` at `placement`; what pads dimension `dim` becomes the identity of the
  // reduction that crosses it.
  ValueId Masked(ValueId local, ValueId v, const Placement& placement, int dim,
                 mesh::Reduction reduction, const Op& origin) {
    const double value = IdentityOf(reduction, global_.type(v).dtype);
    for (const Mask& mask : masks_) {
      if (mask.from == local && mask.dim == dim && mask.value == value) return mask.local;
    }
    const ValueId masked = Emit("mask_pad",
                                {{"axes", Ints(placement.AxesOf(dim))},
                                 {"dim", int64_t{dim}},
                                 {"size", global_.type(v).dims[dim]},
                                 {"value", value}},
                                local, v, placement, &origin);
    // As it was, in blocks perhaps.
    out_.local.values[masked].type = TensorType(out_.local.type(local));
    out_.layouts[masked] = Layout(out_.layouts[local]);
    out_.global_dims[masked] = program::Dims(out_.global_dims[local]);
    masks_.push_back({local, dim, value, masked});
    return masked;
  }

  Status AddOp(int index) {
    const Op& op = global_.ops[index];
    const program::OpDef& def = *program::Registry::Standard().Find(op.kind);
    const program::FactorTable table = TableOf(global_, op);
    const Split split = Internal(sharded_.splits[index]);

    std::vector<ValueId> operands;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      const Placement placement = OperandPlacement(table, split, static_cast<int>(i));
      const Want want{
          .op = index,
          .operand = static_cast<int>(i),
          .limit = LimitFor(op, split, of_states_[v], options_.replication_limit_bytes)};
      const std::vector<BlocksWanted> blocks =
          WantedOf(table, split, static_cast<int>(i), context_.sizes);
      MT_ASSIGN_OR_RETURN(ValueId local, blocks.empty() ? Bring(v, placement, want)
                                                        : BringBlocks(v, placement, blocks, want));
      for (size_t d = 0; d < table.operands[i].size(); ++d) {
        // A block holds what it should outside the dimension; by indices nothing outside is read.
        if (table.Windowed(false, static_cast<int>(i), static_cast<int>(d)) != nullptr ||
            IsPlaced(table, static_cast<int>(i), static_cast<int>(d))) {
          continue;
        }
        for (const int f : table.operands[i][d]) {
          if (!Reduces(table.factors[f]) || split.factors[f].empty() ||
              table.factors[f].size % context_.sizes.Product(split.factors[f]) == 0) {
            continue;
          }
          local =
              Masked(local, v, placement, static_cast<int>(d), ReductionOf(table.factors[f]), op);
        }
      }
      operands.push_back(local);
    }
    if (op.kind == "relayout") {  // it was a wish about places, fulfilled above
      versions_[op.results[0]].push_back({ResultPlacement(table, split, 0), operands[0]});
      return OkStatus();
    }

    Op local{op.kind, op.attrs, std::move(operands), {}, op.path, op.where};
    for (size_t w = 0; w < table.windows.size(); ++w) {
      const AxisList& axes = split.factors[table.windows[w].factor];
      if (axes.empty()) continue;
      if (def.on_blocks != nullptr) {
        def.on_blocks(local.attrs, table.windows[w].index);
        continue;
      }
      const SplitWindow of = SplitOf(table, static_cast<int>(w), context_.sizes.Product(axes));
      const auto put = [&](const char* name, int64_t value) {
        std::vector<int64_t> items = local.attrs.Ints(name);
        items[table.windows[w].index] = value;
        local.attrs.Set(name, std::move(items));
      };
      put("low", of.low);
      put("high", of.high);
    }
    for (const program::PlacedDim& d : table.placed) {
      const ValueId v = d.result ? op.results[d.tensor] : op.operands[d.tensor];
      const Placement placement = d.result ? ResultPlacement(table, split, d.tensor)
                                           : OperandPlacement(table, split, d.tensor);
      if (placement.AxesOf(d.dim).empty()) continue;
      local.attrs.Set("axes", Ints(placement.AxesOf(d.dim)));
      local.attrs.Set("size", global_.type(v).dims[d.dim]);
    }
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId v = op.results[r];
      const Placement placement = ResultPlacement(table, split, static_cast<int>(r));
      const Layout layout = LayoutOf(placement, sharded_.mesh, global_.type(v).rank());
      TensorType type = LocalType(v, placement);
      const std::vector<BlocksWanted> left = LeftBy(table, split, static_cast<int>(r), type);
      const ValueId result = NewValue(std::move(type), static_cast<int32_t>(out_.local.ops.size()),
                                      layout, global_.type(v).dims);
      local.results.push_back(result);
      if (left.empty()) versions_[v].push_back({placement, result});
      if (r > 0) continue;
      if (local.attrs.Has("dims")) local.attrs.Set("dims", out_.local.type(result).dims);
      if (def.index_dependent && placement.AnySplit()) {
        local.attrs.Set("global_dims", global_.type(v).dims);
        local.attrs.Set("layout", layout.ToString());
      }
    }
    const std::vector<ValueId> made = local.results;
    out_.local.ops.push_back(std::move(local));
    for (size_t r = 0; r < op.results.size(); ++r) {
      const ValueId v = op.results[r];
      const Placement placement = ResultPlacement(table, split, static_cast<int>(r));
      TensorType type = LocalType(v, placement);
      const std::vector<BlocksWanted> left = LeftBy(table, split, static_cast<int>(r), type);
      if (left.empty()) continue;
      ValueId shard = made[r];
      for (const BlocksWanted& blocks : left) shard = CutBlocks(shard, blocks, {}, op);
      out_.layouts[shard] = LayoutOf(placement, sharded_.mesh, global_.type(v).rank());
      out_.global_dims[shard] = global_.type(v).dims;
      versions_[v].push_back({placement, shard});
    }
    return OkStatus();
  }

  // Where split windows leave result `r` in blocks, `type` becomes that of the blocks; gives what
  // cuts the shards out of them.
  std::vector<BlocksWanted> LeftBy(const program::FactorTable& table, const Split& split, int r,
                                   TensorType& type) const {
    std::vector<BlocksWanted> cuts;
    for (const program::WindowedDim& d : table.windowed) {
      const AxisList& axes = split.factors[table.windows[d.window].factor];
      if (!d.result || d.tensor != r || axes.empty()) continue;
      const SplitWindow of = SplitOf(table, d.window, context_.sizes.Product(axes));
      if (of.result_at.empty()) continue;
      cuts.push_back({d.dim, axes, {of.result_at, type.dims[d.dim]}, 0});
      type.dims[d.dim] = of.result_extent;
    }
    return cuts;
  }

  // Counts what is not finite in the watched values, and makes the sum an output.
  void AddGuard() {
    std::map<std::vector<int64_t>, ValueId> counts;  // by the axes over which they are to be added
    for (const program::Port& p : program::WatchedForUpdates(global_)) {
      const Version& version = CheapestToCount(p.value);
      const int32_t producer = global_.values[p.value].op;
      AddCount(p.value, version, producer < 0 ? Op() : global_.ops[producer], counts);
    }
    if (counts.empty()) return;
    const Layout everywhere = Layout::Replicated(sharded_.mesh, 0);
    ValueId total = program::kNoValue;
    for (const auto& [axes, count] : counts) {
      ValueId sum = count;
      if (!axes.empty()) {
        AxisList list;
        for (const int64_t a : axes) list.Add(static_cast<int>(a));
        sum = EmitNumber("all_reduce",
                         {{"axes", axes},
                          {"group", context_.sizes.Product(list)},
                          {"reduction", std::string(mesh::ReductionName(mesh::Reduction::kSum))}},
                         {count}, everywhere);
      }
      total = total < 0 ? sum : EmitNumber("add", {}, {total, sum}, everywhere);
    }
    out_.guard_output = static_cast<int>(out_.local.outputs.size());
    out_.local.outputs.push_back({std::string(kGuardOutput), total});
    out_.output_layouts.push_back(everywhere);
    out_.output_types.push_back({DType::kF32, {}});
  }

  // Of the layouts in which the value exists: the one with the fewest elements on a device. Where
  // a pending sum has as few, each device counts in its own part: it has just made it, and the sum
  // of the counts goes with the last bucket of gradients. No maximum or minimum while it is
  // pending: its parts may be infinite where it is not.
  const Version& CheapestToCount(ValueId v) const {
    const auto price = [&](const Version& version) {
      bool extreme = false;
      for (int a = 0; a < context_.sizes.count; ++a) {
        extreme |=
            version.placement.pending(a) && version.placement.at[a] != Placement::kPendingSum;
      }
      return std::tuple(extreme,
                        LocalElements(version.placement, global_.type(v).dims, context_.sizes),
                        !version.placement.AnyPending());
    };
    return *std::min_element(
        versions_[v].begin(), versions_[v].end(),
        [&](const Version& a, const Version& b) { return price(a) < price(b); });
  }

  void AddCount(ValueId v, const Version& version, const Op& origin,
                std::map<std::vector<int64_t>, ValueId>& counts) {
    const TensorType& type = global_.type(v);
    double limit = mesh::LargestFinite(type.dtype);
    ValueId local = version.local;
    for (int d = 0; d < type.rank(); ++d) {
      if (EvenDim(version.placement, d, type.dims[d], context_.sizes)) continue;
      local = Masked(local, v, version.placement, d, mesh::Reduction::kSum, origin);
    }
    std::vector<int64_t> axes;
    Placement pending;
    int64_t summands = 1;
    for (int a = 0; a < context_.sizes.count; ++a) {
      if (version.placement.at[a] == Placement::kCopies) continue;
      axes.push_back(a);
      pending.at[a] = Placement::kPendingSum;
      if (version.placement.at[a] == Placement::kPendingSum) summands *= context_.sizes.size[a];
    }
    // No rounding on the way brings a sum of such parts to infinity.
    if (summands > 1) limit /= 2 * static_cast<double>(summands);
    const Layout layout = LayoutOf(pending, sharded_.mesh, 0);
    const ValueId count = EmitNumber("count_beyond", {{"limit", limit}}, {local}, layout);
    out_.local.ops.back().path = origin.path;
    out_.local.ops.back().where = origin.where;
    const auto [it, is_new] = counts.emplace(axes, count);
    if (!is_new) it->second = EmitNumber("add", {}, {it->second, count}, layout);
  }

  // Appends a local op that gives an f32[].
  ValueId EmitNumber(std::string kind, Attrs attrs, std::vector<ValueId> operands,
                     const Layout& layout) {
    const ValueId result =
        NewValue({DType::kF32, {}}, static_cast<int32_t>(out_.local.ops.size()), layout, {});
    out_.local.ops.push_back(
        {std::move(kind), std::move(attrs), std::move(operands), {result}, "", {}});
    return result;
  }

  const Sharded& sharded_;
  const Program& global_;
  const Options& options_;
  ReshardContext context_;
  std::vector<bool> of_states_;                 // per global value
  std::vector<std::vector<Version>> versions_;  // per global value
  std::vector<Mask> masks_;
  std::vector<int> block_ops_;  // local ops that EmitBlock made
  Partitioned out_;
};

}  // namespace

Layout OperandLayout(const Sharded& s, int op, int operand) {
  const Op& o = s.program.ops[op];
  return LayoutOf(OperandPlacement(TableOf(s.program, o), Internal(s.splits[op]), operand), s.mesh,
                  s.program.type(o.operands[operand]).rank());
}

Layout ResultLayout(const Sharded& s, int op, int result) {
  const Op& o = s.program.ops[op];
  return LayoutOf(ResultPlacement(TableOf(s.program, o), Internal(s.splits[op]), result), s.mesh,
                  s.program.type(o.results[result]).rank());
}

Result<Partitioned> Partition(const Sharded& sharded, const Options& options) {
  return Partitioner(sharded, options).Run();
}

}  // namespace meshtrain::sharding

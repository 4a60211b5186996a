#include "runtime/plan/widen.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshtrain::plan {

using mesh::DType;
using program::Op;
using program::ValueId;

namespace {

using Native = std::function<bool(const Op&)>;

class Widener {
 public:
  Widener(sharding::Partitioned* program, const Native& native)
      : program_(*program), native_(native) {}

  void Run() {
    std::vector<Op> before = std::exchange(local().ops, {});
    std::vector<int> now;  // where each op stands
    for (Op& op : before) {
      if (ComputesWithHalves(local(), op) && !(native_ && native_(op))) {
        now.push_back(Widen(std::move(op)));
      } else {
        now.push_back(Add(std::move(op)));
      }
    }
    for (sharding::Reshard& reshard : program_.reshards) {
      for (auto& op : reshard.ops) op = now[op];
    }
  }

 private:
  program::Program& local() { return program_.local; }
  bool IsHalf(ValueId v) { return mesh::IsHalf(local().type(v).dtype); }
  // Returns its index.
  int Add(Op op) {
    const auto index = static_cast<int>(local().ops.size());
    for (const ValueId v : op.results) local().values[v].op = index;
    local().ops.push_back(std::move(op));
    return index;
  }

  // A value of `like`'s shape and place, of f32.
  ValueId Twin(ValueId like) {
    const auto id = static_cast<ValueId>(local().values.size());
    local().values.push_back({{DType::kF32, local().type(like).dims}, -1});
    program_.layouts.push_back(mesh::Layout(program_.layouts[like]));
    program_.global_dims.push_back(program::Dims(program_.global_dims[like]));
    return id;
  }

  void Cast(ValueId from, ValueId to, const Op& beside) {
    Add({"cast",
         {{"dtype", std::string(mesh::DTypeName(local().type(to).dtype))}},
         {from},
         {to},
         beside.path,
         beside.where});
  }

  // Returns the index of the op itself.
  int Widen(Op op) {
    std::vector<std::pair<ValueId, ValueId>> wide;  // a half, its twin
    for (ValueId& v : op.operands) {
      if (!IsHalf(v)) continue;
      auto known =
          std::find_if(wide.begin(), wide.end(), [&](const auto& w) { return w.first == v; });
      if (known == wide.end()) {
        known = wide.insert(known, {v, Twin(v)});
        Cast(v, known->second, op);
      }
      v = known->second;
    }
    std::vector<std::pair<ValueId, ValueId>> rounded;
    for (ValueId& v : op.results) {
      if (!IsHalf(v)) continue;
      rounded.emplace_back(v, Twin(v));
      v = rounded.back().second;
    }
    if (!rounded.empty() && op.attrs.Has("dtype")) {
      op.attrs.Set("dtype", std::string(mesh::DTypeName(DType::kF32)));
    }
    const Op beside{"", {}, {}, {}, op.path, op.where};
    const int index = Add(std::move(op));
    for (const auto& [half, twin] : rounded) Cast(twin, half, beside);
    return index;
  }

  sharding::Partitioned& program_;
  const Native& native_;
};

}  // namespace

bool MovesElements(const Op& op) {
  static const std::set<std::string, std::less<>> kinds = {
      "all_gather", "all_reduce",  "all_to_all",     "broadcast_to", "cast",          "concat",
      "constant",   "fill",        "gather",         "halo",         "mask_pad",      "one_hot",
      "pad",        "permute",     "reduce_scatter", "reshape",      "reverse",       "scatter_set",
      "select",     "shard_slice", "shard_window",   "slice",        "stop_gradient", "transpose",
  };
  return kinds.contains(op.kind);
}

bool IsProduct(const Op& op) {
  return op.kind == "matmul" || op.kind == "conv" || op.kind == "conv_input_grad" ||
         op.kind == "conv_filter_grad";
}

bool ComputesWithHalves(const program::Program& program, const Op& op) {
  if (MovesElements(op)) return false;
  const auto half = [&](ValueId v) { return mesh::IsHalf(program.type(v).dtype); };
  return std::any_of(op.operands.begin(), op.operands.end(), half) ||
         std::any_of(op.results.begin(), op.results.end(), half);
}

sharding::Partitioned WidenHalves(sharding::Partitioned program, const Native& native) {
  const auto& values = program.local.values;
  const bool halves = std::any_of(values.begin(), values.end(), [](const program::ValueInfo& v) {
    return mesh::IsHalf(v.type.dtype);
  });
  if (halves) Widener(&program, native).Run();
  return program;
}

}  // namespace meshtrain::plan

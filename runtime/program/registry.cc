#include "runtime/program/registry.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops/families.h"

namespace meshtrain::program {

Linearity LinearityOf(const OpDef& def, const OpCall& call, int operand) {
  if (def.linearity.empty()) return Linearity::kNone;
  if (def.linear != nullptr && !def.linear(call)) return Linearity::kNone;
  return def.linearity[std::min<size_t>(operand, def.linearity.size() - 1)];
}

const WindowedDim* FactorTable::Windowed(bool result, int tensor, int dim) const {
  for (const WindowedDim& w : windowed) {
    if (w.result == result && w.tensor == tensor && w.dim == dim) return &w;
  }
  return nullptr;
}

Cost CostOf(const OpDef& def, const OpCall& call, std::span<const TensorType> results) {
  if (def.cost != nullptr) return def.cost(call, results);
  Cost cost;
  for (const TensorType& t : call.operands) cost.bytes += static_cast<double>(t.num_bytes());
  for (const TensorType& t : results) cost.bytes += static_cast<double>(t.num_bytes());
  return cost;
}

const Registry& Registry::Standard() {
  static const Registry registry = [] {
    Registry r;
    RegisterElementwiseOps(r);
    RegisterLinearOps(r);
    RegisterShapeOps(r);
    RegisterCutOps(r);
    RegisterGatherOps(r);
    RegisterSortOps(r);
    RegisterReduceOps(r);
    RegisterIndexOps(r);
    RegisterRandomOps(r);
    RegisterWindowOps(r);
    RegisterCollectiveOps(r);
    return r;
  }();
  return registry;
}

const OpDef* Registry::Find(std::string_view kind) const {
  const auto it = rows_.find(kind);
  return it == rows_.end() ? nullptr : &it->second;
}

Result<const OpDef*> Registry::Get(std::string_view kind) const {
  if (const OpDef* def = Find(kind)) return def;
  std::vector<std::string> names;
  for (const auto& [name, def] : rows_) names.push_back(name);
  return InvalidArgument("expected a registered op, got: `" + std::string(kind) + "`" +
                         DidYouMean(kind, names));
}

std::vector<const OpDef*> Registry::All() const {
  std::vector<const OpDef*> all;
  for (const auto& [name, def] : rows_) all.push_back(&def);
  return all;
}

void Registry::Add(OpDef def) {
  MT_CHECK(def.infer != nullptr && (def.factors != nullptr || def.collective));
  const std::string kind = def.kind;
  MT_CHECK(rows_.emplace(kind, std::move(def)).second);
}

}  // namespace meshtrain::program

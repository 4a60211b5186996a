// Reverse-mode differentiation on the recorded program: walk the ops backwards, ask each row for
// the cotangents of its operands, add up what meets at one value.
#include <algorithm>
#include <map>

#include "runtime/base/check.h"
#include "runtime/program/again.h"
#include "runtime/program/builder.h"
#include "runtime/program/parts.h"
#include "runtime/program/registry.h"

namespace meshtrain::program {

// What the rows of a scope's ops take for the values that the scope gave: what its ops give when
// they are recorded again.
class Builder::Again {
 public:
  explicit Again(Builder& builder) : b_(builder), num_ops_(builder.program_.ops.size()) {
    if (!b_.again_) return;
    for (size_t i = 0; i < num_ops_; ++i) {
      const Op& op = b_.program_.ops[i];
      const std::string_view scope = IsAgain(op) ? "" : b_.again_(BelowPart(op));
      if (scope.empty()) continue;
      // The same layers in another part are another scope.
      scope_of_[i] = &scopes_[{PartOf(op), std::string(scope)}];
      scope_of_[i]->ops.push_back(i);
    }
  }

  // The value that the row of op `index` takes for `v`.
  ValueId ValueFor(size_t index, ValueId v) {
    const auto at = scope_of_.find(index);
    if (at == scope_of_.end()) return v;
    Scope& scope = *at->second;
    if (!scope.recorded) Record(scope);
    const auto again = scope.again.find(v);
    return again == scope.again.end() ? v : again->second;
  }

 private:
  struct Scope {
    std::vector<size_t> ops;  // ascending
    bool recorded = false;
    std::map<ValueId, ValueId> again;
  };

  void Record(Scope& scope) {
    scope.recorded = true;
    for (const size_t i : scope.ops) {
      if (b_.program_.ops[i].kind == "constant") continue;
      Op op = b_.program_.ops[i];
      const auto index = static_cast<int32_t>(b_.program_.ops.size());
      op.path += kAgain;
      for (ValueId& v : op.operands) {
        const auto again = scope.again.find(v);
        if (again != scope.again.end()) v = again->second;
      }
      for (ValueId& v : op.results) {
        const ValueId copy = b_.NewValue(b_.program_.type(v), index);
        scope.again[v] = copy;
        v = copy;
      }
      b_.program_.ops.push_back(std::move(op));
    }
  }

  Builder& b_;
  const size_t num_ops_;
  std::map<std::pair<int64_t, std::string>, Scope> scopes_;
  std::map<size_t, Scope*> scope_of_;  // per op that lies in one
};

void Builder::ComputeAgain(std::function<std::string_view(std::string_view path)> scope) {
  again_ = std::move(scope);
}

std::vector<Value> Builder::Gradient(const Operand& loss_operand, std::span<const Value> wrt) {
  const std::vector<Value> placeholders(wrt.size(), Value(this, kNoValue));
  const Value loss = Resolve(loss_operand, DType::kF32);
  if (!status_.ok()) return placeholders;
  if (!loss.dims().empty() || !mesh::IsFloat(loss.dtype())) {
    Fail(InvalidArgument("gradient: expected a scalar floating-point loss, got: " +
                         loss.type().ToString()),
         loss_operand.where());
    return placeholders;
  }
  for (const Value& v : wrt) {
    if (v.builder() != this) {
      Fail(InvalidArgument("gradient: a value of another trace was used"), loss_operand.where());
      return placeholders;
    }
  }

  // Only what depends on `wrt` carries a cotangent.
  const size_t num_values = program_.values.size();
  const size_t num_ops = program_.ops.size();
  std::vector<bool> depends(num_values, false);
  for (const Value& v : wrt) depends[v.id()] = true;
  for (const Op& op : program_.ops) {
    const bool any =
        std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return depends[v]; });
    if (!any) continue;
    for (const ValueId v : op.results) depends[v] = true;
  }

  Again again(*this);
  std::vector<Value> cotangents(num_values);
  cotangents[loss.id()] = Constant(1.0, loss.dtype());
  for (size_t i = num_ops; i-- > 0 && status_.ok();) {
    const auto reached = [&](ValueId v) { return cotangents[v].valid(); };
    const auto depending = [&](ValueId v) { return depends[v]; };
    const Op& at = program_.ops[i];
    if (std::none_of(at.results.begin(), at.results.end(), reached) ||
        std::none_of(at.operands.begin(), at.operands.end(), depending)) {
      continue;
    }
    const OpDef* def = Registry::Standard().Find(at.kind);
    MT_CHECK(def != nullptr);
    if (def->gradient == nullptr) continue;
    const Op op = at;  // a copy: recording below moves the ops
    std::vector<Value> operands, results, given;
    for (const ValueId v : op.operands) operands.emplace_back(this, again.ValueFor(i, v));
    for (const ValueId v : op.results) {
      results.emplace_back(this, again.ValueFor(i, v));
      given.push_back(cotangents[v]);
    }

    const std::string path = std::exchange(path_, op.path);
    const SourceLine* line = std::exchange(forward_line_, &op.where);
    const std::vector<Value> made = def->gradient(*this, op, operands, results, given);
    if (status_.ok()) {
      MT_CHECK(made.size() == op.operands.size());
      for (size_t k = 0; k < made.size(); ++k) {
        const ValueId v = op.operands[k];
        if (!made[k].valid() || !depends[v]) continue;
        if (made[k].type() != program_.type(v)) {
          Fail(Internal("gradient of " + op.kind + ": expected a cotangent of type " +
                        program_.type(v).ToString() + " for operand " + std::to_string(k) +
                        ", got: " + made[k].type().ToString()));
          break;
        }
        cotangents[v] = cotangents[v].valid() ? Append1("add", {cotangents[v], made[k]}) : made[k];
      }
    }
    path_ = path;
    forward_line_ = line;
  }
  if (!status_.ok()) return placeholders;

  std::vector<Value> gradients;
  for (const Value& v : wrt) {
    if (cotangents[v.id()].valid()) {
      gradients.push_back(cotangents[v.id()]);
    } else {
      gradients.push_back(Append1("fill", {},
                                  {{"value", 0.0},
                                   {"dtype", std::string(mesh::DTypeName(v.dtype()))},
                                   {"dims", v.dims()}}));
    }
  }
  return gradients;
}

std::vector<Value> Builder::Gradient(const Operand& loss, std::span<const Variable> wrt) {
  std::vector<Value> values;
  for (const Variable& v : wrt) values.push_back(Read(v));
  if (!status_.ok()) return std::vector<Value>(wrt.size(), Value(this, kNoValue));
  std::vector<Value> gradients = Gradient(loss, values);
  if (!status_.ok()) return gradients;
  const ValueId id = Resolve(loss, DType::kF32).id();
  const bool known = std::any_of(program_.watched.begin(), program_.watched.end(),
                                 [&](const Port& p) { return p.value == id; });
  if (!known) program_.watched.push_back({std::string(kWatchedLoss), id});
  for (size_t i = 0; i < wrt.size(); ++i) WatchGradient(wrt[i], gradients[i]);
  return gradients;
}

void Builder::WatchGradient(const Variable& variable, const Value& value) {
  if (!status_.ok() || value.builder() != this || !mesh::IsFloat(value.dtype())) return;
  const std::string name = GradientOf(variable);
  std::erase_if(program_.watched, [&](const Port& p) { return p.name == name; });
  const int32_t producer = program_.values[value.id()].op;
  if (producer >= 0 && program_.ops[producer].operands.empty()) return;  // zeros
  program_.watched.push_back({name, value.id()});
}

std::string GradientOf(const Variable& variable) {
  return "the gradient of `" + variable.name() + "`";
}

}  // namespace meshtrain::program

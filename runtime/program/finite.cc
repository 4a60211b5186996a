#include "runtime/program/finite.h"

#include "runtime/program/registry.h"

namespace meshtrain::program {
namespace {

// Appends ops to a finished program.
class Appender {
 public:
  explicit Appender(Program* program) : program_(program) {}

  Result<ValueId> Append(std::string kind, std::vector<ValueId> operands, Attrs attrs = {}) {
    MT_ASSIGN_OR_RETURN(const OpDef* def, Registry::Standard().Get(kind));
    std::vector<TensorType> types;
    for (const ValueId v : operands) types.push_back(program_->type(v));
    MT_ASSIGN_OR_RETURN(std::vector<TensorType> results, def->infer({types, attrs}));
    const auto index = static_cast<int32_t>(program_->ops.size());
    const auto id = static_cast<ValueId>(program_->values.size());
    program_->values.push_back({results[0], index});
    program_->ops.push_back({std::move(kind), std::move(attrs), std::move(operands), {id}, "", {}});
    return id;
  }

 private:
  Program* program_;
};

std::string PlaceOf(const Op& op) {
  std::string text = op.kind;
  if (!op.path.empty()) text += " (" + op.path + ")";
  if (const std::string line = op.where.ToString(); !line.empty()) text += " at " + line;
  return text;
}

}  // namespace

Result<FiniteCheck> WithFiniteChecks(const Program& original) {
  FiniteCheck check{original, {}};
  Program& program = check.program;
  program.name += "_finite_check";
  program.outputs.clear();
  for (State& s : program.states) s.exit = s.entry;

  std::vector<std::pair<ValueId, std::string>> watched;
  for (const Port& p : original.inputs) watched.emplace_back(p.value, "input " + p.name);
  for (const State& s : original.states) watched.emplace_back(s.entry, "state " + s.name);
  for (const Op& op : original.ops) {
    for (const ValueId v : op.results) watched.emplace_back(v, PlaceOf(op));
  }
  Appender appender(&program);
  for (const auto& [value, place] : watched) {
    const TensorType type = program.type(value);
    if (!mesh::IsFloat(type.dtype) || type.num_elements() == 0) continue;
    // x - x is 0 for numbers and NaN for NaN and the infinities; NaN differs from everything,
    // itself included.
    MT_ASSIGN_OR_RETURN(const ValueId zero, appender.Append("sub", {value, value}));
    MT_ASSIGN_OR_RETURN(const ValueId bad, appender.Append("not_equal", {zero, zero}));
    MT_ASSIGN_OR_RETURN(ValueId flag,
                        appender.Append("cast", {bad}, {{"dtype", std::string("f32")}}));
    if (type.rank() > 0) {
      std::vector<int64_t> axes;
      for (int d = 0; d < type.rank(); ++d) axes.push_back(d);
      MT_ASSIGN_OR_RETURN(
          flag, appender.Append("reduce_max", {flag}, {{"axes", axes}, {"keep_dims", false}}));
    }
    program.outputs.push_back({"flag_" + std::to_string(check.places.size()), flag});
    check.places.push_back(place);
  }
  MT_RETURN_IF_ERROR(Validate(program));
  return check;
}

}  // namespace meshtrain::program

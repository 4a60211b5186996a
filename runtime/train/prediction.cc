#include "runtime/train/prediction.h"

#include <algorithm>
#include <utility>

#include "runtime/base/text.h"
#include "runtime/program/builder.h"
#include "runtime/program/ops.h"

namespace meshtrain::train {

using program::Builder;

std::map<std::string, int64_t> RowsOf(const Program& program) {
  std::map<std::string, int64_t> rows;
  for (const program::Op& op : program.ops) {
    const bool of_table =
        op.kind == "gather" || op.kind == "take_along" || op.kind == "scatter_set";
    if (!of_table && op.kind != "scatter_add" && op.kind != "add_along") continue;
    const program::ValueId table = of_table ? op.operands[0] : op.results[0];
    program::ValueId v = op.operands[of_table ? 1 : 0];
    while (program.values[v].op >= 0) {
      const program::Op& from = program.ops[program.values[v].op];
      const bool same = from.kind == "cast" || from.kind == "reshape" || from.kind == "transpose" ||
                        from.kind == "relayout";
      if (!same) break;
      v = from.operands[0];
    }
    for (const program::Port& p : program.inputs) {
      if (p.value != v) continue;
      const int64_t size = program.type(table).dims[op.attrs.Int("axis")];
      const auto [it, is_new] = rows.emplace(p.name, size);
      if (!is_new) it->second = std::min(it->second, size);
    }
  }
  return rows;
}

namespace {

// In f32: what `half` was rounded from, where it was, else its own numbers.
Value Widened(const Value& half) {
  const Program& program = half.builder()->program();
  if (const int op = program.values[half.id()].op; op >= 0 && program.ops[op].kind == "cast") {
    const Value from(half.builder(), program.ops[op].operands[0]);
    if (from.dtype() == DType::kF32) return from;
  }
  return program::Cast(half, DType::kF32);
}

}  // namespace

std::vector<Value> Predicted(nn::Layer& model, std::span<const Value> inputs, nn::CallContext how) {
  const nn::ContextScope context(std::move(how));
  std::vector<Value> said = model.All(inputs);
  for (Value& value : said) {
    if (mesh::IsHalf(value.dtype())) value = Widened(value);
  }
  return said;
}

Result<Prediction> BuildPrediction(nn::Layer& model, std::span<const NamedInput> inputs,
                                   int64_t seed, std::optional<DType> compute) {
  Builder b("predict");
  const Builder::Scope recording(b);
  std::vector<Value> values;
  for (const NamedInput& input : inputs) values.push_back(b.Input(input.name, input.type));
  const std::vector<Value> said = Predicted(model, values, {.seed = seed, .compute = compute});
  MT_RETURN_IF_ERROR(b.status());
  const std::vector<std::string> names = model.outputs();
  for (size_t i = 0; i < said.size(); ++i) {
    b.Output(names[i].empty() ? "predictions" : names[i], said[i]);
  }
  Prediction out;
  MT_ASSIGN_OR_RETURN(out.program, b.Build());
  out.variables = b.variables();
  out.rows = RowsOf(out.program);
  return out;
}

namespace {

// What a model of one output predicts.
Result<Value> OnePredicted(Builder& b, nn::Layer& model, const Value& input, nn::CallContext how) {
  const std::vector<Value> said = Predicted(model, {&input, 1}, std::move(how));
  MT_RETURN_IF_ERROR(b.status());
  if (said.size() == 1) return said[0];
  return InvalidArgument("expected a model of one output, got: " + Join(model.outputs(), ", "));
}

Status CheckText(const TensorType& x) {
  if (x.rank() == 2 && x.dims[0] == 1 && !mesh::IsFloat(x.dtype) && x.dtype != DType::kBool) {
    return OkStatus();
  }
  return InvalidArgument("expected a text of ids [1, T], got: " + x.ToString());
}

// `row`: [1, C], what the model predicts for one position.
Result<Prediction> NextOf(Builder& b, const Value& row, const Loss& loss) {
  const Value logits = loss.function->Logits(row);
  MT_RETURN_IF_ERROR(b.status());
  if (!logits.valid()) {
    return InvalidArgument("expected a loss of classes of which one is right, got: " +
                           std::string(loss.function->name()));
  }
  b.Output("next", logits);
  Prediction out;
  MT_ASSIGN_OR_RETURN(out.program, b.Build());
  out.variables = b.variables();
  out.rows = RowsOf(out.program);
  out.rows.erase(std::string(kAtName));  // positions
  return out;
}

}  // namespace

Result<Prediction> BuildNext(nn::Layer& model, const NamedInput& text, const Loss& loss,
                             int64_t seed, std::optional<DType> compute) {
  const TensorType& x = text.type;
  MT_RETURN_IF_ERROR(CheckText(x));
  Builder b("next");
  const Builder::Scope recording(b);
  const Value ids = b.Input(text.name, x);
  const Value at = b.Input(std::string(kAtName), {DType::kI64, {1}});
  MT_ASSIGN_OR_RETURN(const Value predictions,
                      OnePredicted(b, model, ids, {.seed = seed, .compute = compute}));
  const program::Dims dims = predictions.dims();
  if (dims.size() != 3 || dims[0] != 1 || dims[1] != x.dims[1] ||
      !mesh::IsFloat(predictions.dtype())) {
    return InvalidArgument("expected a model that predicts [1, " + std::to_string(x.dims[1]) +
                           ", C] for " + x.ToString() + ", got: " + predictions.type().ToString());
  }
  // The one position first: what follows is of one row, whatever the text's length.
  return NextOf(b, program::Reshape(program::Gather(predictions, at, 1), {1, dims[2]}), loss);
}

Result<Prediction> BuildNextById(nn::Layer& model, const NamedInput& text, const Loss& loss,
                                 int64_t seed, std::optional<DType> compute) {
  MT_RETURN_IF_ERROR(CheckText(text.type));
  Builder b("next_by_id");
  const Builder::Scope recording(b);
  const Value id = b.Input(text.name, {text.type.dtype, {1, 1}});
  nn::Writing writing{.position = b.Input(std::string(kAtName), {DType::kI64, {1}}),
                      .length = text.type.dims[1]};
  MT_ASSIGN_OR_RETURN(
      const Value predictions,
      OnePredicted(b, model, id, {.seed = seed, .compute = compute, .writing = &writing}));
  const program::Dims dims = predictions.dims();
  if (dims.size() != 3 || dims[0] != 1 || dims[1] != 1 || !mesh::IsFloat(predictions.dtype())) {
    return InvalidArgument("expected a model that predicts [1, 1, C] for one id, got: " +
                           predictions.type().ToString());
  }
  MT_ASSIGN_OR_RETURN(Prediction next,
                      NextOf(b, program::Reshape(predictions, {1, dims[2]}), loss));
  next.kept = std::move(writing.kept);
  return next;
}

}  // namespace meshtrain::train

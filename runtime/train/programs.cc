#include "runtime/train/programs.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "runtime/base/text.h"

namespace meshtrain::train {

using program::Builder;
using program::ReduceMean;
using program::ReduceSum;

namespace {

struct Forward {
  Value objective;  // the gradient's
  Value loss;       // the report's
  int64_t classes = 0;
};

// Of each input of which every element is an id, the rows of the smallest table: what `gather`
// takes from an input by way of ops that leave all elements there and their numbers as they are.
std::map<std::string, int64_t> RowsOf(const Program& program) {
  std::map<std::string, int64_t> rows;
  for (const program::Op& op : program.ops) {
    if (op.kind != "gather") continue;
    program::ValueId v = op.operands[1];
    while (program.values[v].op >= 0) {
      const program::Op& from = program.ops[program.values[v].op];
      const bool same = from.kind == "cast" || from.kind == "reshape" || from.kind == "transpose" ||
                        from.kind == "relayout";
      if (!same) break;
      v = from.operands[0];
    }
    for (const program::Port& p : program.inputs) {
      if (p.value != v) continue;
      const int64_t size = program.type(op.operands[0]).dims[op.attrs.Int("axis")];
      const auto [it, is_new] = rows.emplace(p.name, size);
      if (!is_new) it->second = std::min(it->second, size);
    }
  }
  return rows;
}

Result<size_t> PlaceOf(const Recipe& recipe, std::string_view what, const std::string& name) {
  const auto& names = recipe.components;
  const auto at = std::find(names.begin(), names.end(), name);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  return InvalidArgument(std::string(what) + ": expected one of the batch's components, " +
                         Join(names, ", ") + ", got: " + name);
}

// Records the model, the loss and the metrics on the batch's components. Errors: the builder's;
// labels that do not fit; a component that is not there.
Result<Forward> Record(const Recipe& recipe, Builder& b, std::span<const TensorType> types,
                       bool training) {
  if (types.size() != recipe.components.size()) {
    return InvalidArgument("expected batches of " + Join(recipe.components, ", ") +
                           ", got: " + std::to_string(types.size()) + " components");
  }
  MT_ASSIGN_OR_RETURN(const size_t label, PlaceOf(recipe, "labels", recipe.labels));
  MT_ASSIGN_OR_RETURN(const std::vector<size_t> places, ModelInputs(recipe));
  std::vector<Value> values;
  for (size_t i = 0; i < types.size(); ++i) {
    values.push_back(b.Input(recipe.components[i], types[i]));
  }
  const Value y = values[label];
  Value predictions;
  {
    nn::ContextScope context({.training = training, .seed = recipe.seed, .step = recipe.step});
    std::vector<Value> inputs;
    for (const size_t place : places) inputs.push_back(values[place]);
    predictions = (*recipe.model)(inputs);
  }
  Forward out;
  MT_RETURN_IF_ERROR(b.status());
  MT_RETURN_IF_ERROR(recipe.loss.CheckLabels(types[label], predictions.type()));
  out.classes = recipe.loss.Classes(predictions.type());
  const Value per_example = recipe.loss.PerExample(y, predictions);
  if (recipe.loss.reduction == LossReduction::kMean) {
    out.objective = out.loss = ReduceMean(per_example);
  } else {
    out.objective = ReduceSum(per_example);
    out.loss = out.objective /
               static_cast<double>(std::max<int64_t>(1, per_example.type().num_elements()));
  }
  for (const Parameter& parameter : recipe.model->parameters()) {
    if (!parameter.regularizer()) continue;
    const Value penalty = parameter.regularizer()->Record(parameter);
    if (!penalty.valid()) continue;
    out.objective = out.objective + penalty;
    out.loss = out.loss + penalty;
  }
  b.Output(std::string(kLossName), out.loss);
  for (const Metric& metric : recipe.metrics) {
    b.Output(metric.name, metric.of_batch(y, predictions, recipe.loss));
  }
  return out;
}

bool Uses(const Builder& b, const program::Variable& variable) {
  return std::find(b.variables().begin(), b.variables().end(), variable) != b.variables().end();
}

}  // namespace

std::vector<Parameter> Programs::States() const {
  std::vector<Parameter> states = parameters;
  states.insert(states.end(), slots.begin(), slots.end());
  return states;
}

std::string Programs::Summary() const {
  size_t width = 0;
  for (const Parameter& parameter : parameters) width = std::max(width, parameter.name().size());
  std::string text;
  int64_t total = 0;
  for (const Parameter& parameter : parameters) {
    std::string specs = "replicated";
    if (parameter.layout()) specs = "{" + Join(*parameter.layout(), ", ") + "}";
    text += parameter.name() + std::string(width - parameter.name().size() + 2, ' ') +
            parameter.type().ToString() + "  " + specs + "\n";
    total += parameter.type().num_elements();
  }
  return text + std::to_string(total) + " parameters\n";
}

Result<Program> BuildInit(const std::vector<Parameter>& states, int64_t seed) {
  Builder b("init");
  Builder::Scope scope(b);
  for (const Parameter& state : states) {
    Builder::NameScope name(b, state.name());
    b.Assign(state, state.RecordInitial(seed));
  }
  return b.Build();
}

Result<std::vector<size_t>> ModelInputs(const Recipe& recipe) {
  std::vector<size_t> places;
  for (const std::string& name : recipe.inputs) {
    MT_ASSIGN_OR_RETURN(const size_t place, PlaceOf(recipe, "inputs", name));
    places.push_back(place);
  }
  if (!recipe.inputs.empty()) return places;
  for (size_t i = 0; i < recipe.components.size(); ++i) {
    if (recipe.components[i] != recipe.labels) places.push_back(i);
  }
  if (places.empty()) {
    return InvalidArgument("inputs: expected a component beside the labels, `" + recipe.labels +
                           "`, got: none");
  }
  return places;
}

Result<Programs> BuildPrograms(const Recipe& recipe, std::span<const TensorType> types) {
  if (recipe.model == nullptr || recipe.loss.function == nullptr || recipe.optimizer == nullptr) {
    return InvalidArgument("BuildPrograms: a recipe needs a model, a loss and an optimizer");
  }
  std::set<std::string> outputs = {std::string(kLossName)};
  for (const Metric& metric : recipe.metrics) {
    if (!outputs.insert(metric.name).second) {
      return InvalidArgument("BuildPrograms: two outputs are named `" + metric.name + "`");
    }
  }
  Programs out;
  out.components = recipe.components;
  bool counts_steps = false;
  {
    Builder b("train_step");
    Builder::Scope scope(b);
    MT_ASSIGN_OR_RETURN(const Forward forward, Record(recipe, b, types, /*training=*/true));
    // The first error is what helps; what follows would be about values that are not there.
    MT_RETURN_IF_ERROR(b.status());
    out.classes = forward.classes;
    out.parameters = recipe.model->parameters();
    MT_RETURN_IF_ERROR(recipe.layouts.Apply(out.parameters));
    recipe.optimizer->Minimize(forward.objective, out.parameters);
    MT_RETURN_IF_ERROR(b.status());
    counts_steps = Uses(b, recipe.step);
    if (counts_steps) program::AssignAdd(recipe.step, 1);
    MT_ASSIGN_OR_RETURN(out.train_step, b.Build());
  }
  {
    Builder b("eval_step");
    Builder::Scope scope(b);
    MT_RETURN_IF_ERROR(Record(recipe, b, types, /*training=*/false).status());
    MT_ASSIGN_OR_RETURN(out.eval_step, b.Build());
    out.rows = RowsOf(out.eval_step);
  }
  out.slots = recipe.optimizer->slots();
  if (counts_steps) out.slots.push_back(recipe.step);
  MT_ASSIGN_OR_RETURN(out.init, BuildInit(out.States(), recipe.seed));
  return out;
}

Result<Prediction> BuildPrediction(nn::Layer& model, std::span<const NamedInput> inputs,
                                   int64_t seed) {
  Builder b("predict");
  const Builder::Scope recording(b);
  const nn::ContextScope context({.training = false, .seed = seed});
  std::vector<Value> values;
  for (const NamedInput& input : inputs) values.push_back(b.Input(input.name, input.type));
  b.Output("predictions", model(values));
  MT_RETURN_IF_ERROR(b.status());
  Prediction out;
  MT_ASSIGN_OR_RETURN(out.program, b.Build());
  out.variables = b.variables();
  out.rows = RowsOf(out.program);
  return out;
}

Result<Prediction> BuildNext(nn::Layer& model, const NamedInput& text, const Loss& loss,
                             int64_t seed) {
  const TensorType& x = text.type;
  if (x.rank() != 2 || x.dims[0] != 1 || mesh::IsFloat(x.dtype) || x.dtype == DType::kBool) {
    return InvalidArgument("expected a text of ids [1, T], got: " + x.ToString());
  }
  Builder b("next");
  const Builder::Scope recording(b);
  const nn::ContextScope context({.training = false, .seed = seed});
  const Value ids = b.Input(text.name, x);
  const Value at = b.Input(std::string(kAtName), {DType::kI64, {1}});
  const Value predictions = model(ids);
  MT_RETURN_IF_ERROR(b.status());
  const program::Dims dims = predictions.dims();
  if (dims.size() != 3 || dims[0] != 1 || dims[1] != x.dims[1] ||
      !mesh::IsFloat(predictions.dtype())) {
    return InvalidArgument("expected a model that predicts [1, " + std::to_string(x.dims[1]) +
                           ", C] for " + x.ToString() + ", got: " + predictions.type().ToString());
  }
  // The one position first: what follows is of one row, whatever the text's length.
  const Value row = program::Reshape(program::Gather(predictions, at, 1), {1, dims[2]});
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
  out.rows.erase(std::string(kAtName));  // the predictions' positions
  return out;
}

mesh::Layout SharedUpdateLayout(const mesh::Layout& slot, const TensorType& type,
                                const mesh::Layout& batch) {
  if (type.rank() == 0 || batch.rank() == 0 || type.num_bytes() < kSharedUpdateBytes) return slot;
  if (!slot.dims()[0].empty()) return slot;
  mesh::DimSharding axes;
  for (const int axis : batch.dims()[0]) {
    if (slot.DimOf(axis) < 0) axes.push_back(axis);
  }
  if (axes.empty()) return slot;
  const mesh::Layout shared = slot.WithDim(0, axes);
  return shared.NumShards(0) > 1 && shared.IsEven(type.dims) ? shared : slot;
}

}  // namespace meshtrain::train

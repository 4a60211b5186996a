#include "runtime/train/programs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

#include "runtime/base/text.h"
#include "runtime/nn/path_rule.h"
#include "runtime/program/again.h"
#include "runtime/program/parts.h"
#include "runtime/train/prediction.h"

namespace meshtrain::train {

using program::Builder;
using program::ReduceMean;
using program::ReduceSum;

namespace {

// Of a head, over all parts so far.
struct HeadFigures {
  Value loss;  // where its output has a name
  std::vector<Value> metrics;
};

// What is recorded of a batch.
struct Recorded {
  Value objective;  // the newest part's, for the gradient
  Value loss;       // the report's, of all parts so far
  std::vector<HeadFigures> heads;
  std::map<std::string, int64_t> classes;  // Programs::classes
};

Result<size_t> PlaceOf(const Recipe& recipe, std::string_view what, const std::string& name) {
  const auto& names = recipe.components;
  const auto at = std::find(names.begin(), names.end(), name);
  if (at != names.end()) return static_cast<size_t>(at - names.begin());
  return InvalidArgument(std::string(what) + ": expected one of the batch's components, " +
                         Join(names, ", ") + ", got: " + name);
}

Value Plus(const Value& sum, const Value& more) { return sum.valid() ? sum + more : more; }
Value Times(const Value& mean, double share) { return share == 1 ? mean : mean * share; }

// A batch's components, and those of each of its parts.
struct Batch {
  int64_t examples = 1;
  std::vector<std::vector<Value>> parts;
  // Of all examples, those in the part.
  double ShareOf(size_t part) const {
    if (parts.size() == 1) return 1;
    return static_cast<double>(parts[part][0].dims()[0]) / static_cast<double>(examples);
  }
};

// Example e goes to part e % count: where devices split the batch, parts are made of what each of
// them has.
void AddParts(const Value& component, int64_t count, Batch& batch) {
  program::Dims dims = component.dims();
  const int64_t examples = dims[0], rows = (examples + count - 1) / count;
  program::Dims none(dims.size(), 0), missing = none;
  missing[0] = rows * count - examples;
  const Value whole = missing[0] == 0 ? component : program::Pad(component, none, missing);
  dims[0] = rows;
  dims.insert(dims.begin() + 1, count);
  const Value table = program::Reshape(whole, dims);
  for (int64_t i = 0; i < count; ++i) {
    program::Dims starts(dims.size(), 0), sizes = dims;
    starts[1] = i;
    sizes[1] = 1;
    sizes[0] = (examples - i + count - 1) / count;
    const Value part = program::Slice(table, starts, sizes);
    sizes.erase(sizes.begin() + 1);
    batch.parts[i].push_back(program::Reshape(part, sizes));
  }
}

// Errors: kInvalidArgument, of components that are no examples, or not as many.
Result<Batch> InputsOf(const Recipe& recipe, Builder& b, std::span<const TensorType> types) {
  if (types.size() != recipe.components.size()) {
    return InvalidArgument("expected batches of " + Join(recipe.components, ", ") +
                           ", got: " + std::to_string(types.size()) + " components");
  }
  std::vector<Value> values;
  for (size_t i = 0; i < types.size(); ++i) {
    values.push_back(b.Input(recipe.components[i], types[i]));
  }
  if (recipe.accumulate == 1) return Batch{.parts = {std::move(values)}};
  std::vector<std::string> all;
  bool even = true;
  for (size_t i = 0; i < types.size(); ++i) {
    all.push_back(recipe.components[i] + " " + types[i].ToString());
    even = even && types[i].rank() > 0 && types[i].dims[0] == types[0].dims[0];
  }
  if (!even) {
    return InvalidArgument("accumulate: expected components [N, ...] of the same N, got: " +
                           Join(all, ", "));
  }
  Batch batch{.examples = types[0].dims[0]};
  const int64_t count = std::clamp(batch.examples, int64_t{1}, recipe.accumulate);
  if (count == 1) {
    batch.parts = {std::move(values)};
    return batch;
  }
  batch.parts.resize(count);
  for (const Value& value : values) AddParts(value, count, batch);
  return batch;
}

// What errors about a head say in front.
const std::string& Of(const Head& head) { return head.place.empty() ? head.output : head.place; }

// Errors: a recipe that is none, whatever the model is.
Status CheckRecipe(const Recipe& recipe) {
  const auto whole = [](const Head& head) { return head.loss.function != nullptr; };
  if (recipe.model == nullptr || recipe.optimizer == nullptr || recipe.heads.empty() ||
      !std::all_of(recipe.heads.begin(), recipe.heads.end(), whole)) {
    return InvalidArgument("BuildPrograms: a recipe needs a model, a loss and an optimizer");
  }
  for (const Head& head : recipe.heads) {
    if (head.weight >= 0 && std::isfinite(head.weight)) continue;
    return InvalidArgument("weight: expected a number of at least 0, got: " +
                           std::to_string(head.weight))
        .At(Of(head));
  }
  if (!(recipe.loss_scale > 0) || !std::isfinite(recipe.loss_scale)) {
    return InvalidArgument("loss_scale: expected a number above 0, got: " +
                           std::to_string(recipe.loss_scale));
  }
  if (recipe.accumulate < 1 || recipe.accumulate > kMostParts) {
    return InvalidArgument("accumulate: expected a number of parts from 1 to " +
                           std::to_string(kMostParts) +
                           ", got: " + std::to_string(recipe.accumulate));
  }
  std::set<std::string> outputs = {std::string(kLossName)};
  for (const Head& head : recipe.heads) {
    std::vector<std::string> figures;
    if (!head.output.empty()) figures.push_back(head.FigureName(kLossName));
    for (const Metric& metric : head.metrics) figures.push_back(head.FigureName(metric.name));
    for (const std::string& figure : figures) {
      if (outputs.insert(figure).second) continue;
      return InvalidArgument("BuildPrograms: two outputs are named `" + figure + "`");
    }
  }
  return OkStatus();
}

// For each head, which of the model's outputs is its. Errors: heads that are not one for each.
Result<std::vector<size_t>> OutputsOfHeads(const Recipe& recipe) {
  const std::vector<std::string> names = recipe.model->outputs();
  const auto text = [](const std::string& name) {
    return name.empty() ? std::string("one without a name") : "`" + name + "`";
  };
  std::string expected;
  for (const std::string& name : names) expected += (expected.empty() ? "" : ", ") + text(name);
  expected = "heads: expected one for each of the model's outputs, " + expected + ", got: ";
  std::vector<size_t> outputs;
  std::set<std::string> got;
  for (const Head& head : recipe.heads) {
    const auto at = std::find(names.begin(), names.end(), head.output);
    if (at == names.end() || !got.insert(head.output).second) {
      return InvalidArgument(expected + (at == names.end() ? "" : "two of ") + text(head.output));
    }
    outputs.push_back(static_cast<size_t>(at - names.begin()));
  }
  for (const std::string& name : names) {
    if (!got.contains(name)) return InvalidArgument(expected + "none of " + text(name));
  }
  return outputs;
}

// What a part says of one head, before its metrics are recorded.
struct PartOfHead {
  Value labels, predictions, per_example;
};

// Adds the head's loss to the objective and to the report.
void RecordLoss(const Head& head, const PartOfHead& part, double share, HeadFigures& figures,
                Recorded& out) {
  const bool mean = head.loss.reduction == LossReduction::kMean;
  const auto elements =
      static_cast<double>(std::max<int64_t>(1, part.per_example.type().num_elements()));
  const Value made =
      mean ? Times(ReduceMean(part.per_example), share) : ReduceSum(part.per_example);
  const Value reported = mean ? made : Times(made / elements, share);
  const Value weighted = Times(made, head.weight);
  out.objective = Plus(out.objective, weighted);
  out.loss = Plus(out.loss, mean ? weighted : Times(reported, head.weight));
  if (!head.output.empty()) figures.loss = Plus(figures.loss, reported);
}

// Errors: the builder's; labels that a metric does not take.
Status RecordMetrics(const Head& head, Builder& b, const PartOfHead& part, double share,
                     HeadFigures& out) {
  const Value &y = part.labels, &predictions = part.predictions;
  Loss loss = head.loss;
  loss.known = {y, predictions, part.per_example};
  out.metrics.resize(head.metrics.size());
  for (size_t i = 0; i < head.metrics.size(); ++i) {
    const Metric& metric = head.metrics[i];
    MT_RETURN_IF_ERROR(b.status());
    MT_RETURN_IF_ERROR(metric.CheckLabels(y.type(), predictions.type())
                           .At(metric.place.empty() ? head.output : metric.place));
    const Value made = metric.of_batch(y, predictions, loss);
    const std::string place = metric.place.empty() ? head.FigureName(metric.name) : metric.place;
    if (!b.status().ok()) {
      const bool named = b.status().message().find(place + ": ") != std::string::npos;
      return named ? b.status() : b.status().At(place);
    }
    if (metric.finish == nullptr) {
      out.metrics[i] = Plus(out.metrics[i], Times(made, share));
      continue;
    }
    const TensorType sums{DType::kF64, {metric.sums}};
    if (made.type() != sums) {
      return InvalidArgument(place + ": expected sums " + sums.ToString() +
                             ", got: " + made.type().ToString());
    }
    out.metrics[i] = Plus(out.metrics[i], made);
  }
  return OkStatus();
}

// Records the model, the losses and the metrics on the components of a part, the share of the batch
// that it is. Errors: the builder's; labels that do not fit; a component that is not there.
Status RecordPart(const Recipe& recipe, Builder& b, const std::vector<Value>& values, double share,
                  bool last, bool training, Recorded& out) {
  MT_ASSIGN_OR_RETURN(const std::vector<size_t> outputs, OutputsOfHeads(recipe));
  MT_ASSIGN_OR_RETURN(const std::vector<size_t> places, ModelInputs(recipe));
  std::vector<PartOfHead> parts(recipe.heads.size());
  for (size_t h = 0; h < parts.size(); ++h) {
    const Head& head = recipe.heads[h];
    auto label = PlaceOf(recipe, "labels", head.labels);
    if (!label.ok()) return label.status().At(Of(head));
    parts[h].labels = values[*label];
  }
  std::vector<Value> inputs;
  for (const size_t place : places) inputs.push_back(values[place]);
  const std::vector<Value> predictions = Predicted(*recipe.model, inputs,
                                                   {.training = training,
                                                    .seed = recipe.seed,
                                                    .step = recipe.step,
                                                    .compute = recipe.compute,
                                                    .narrow_sums = recipe.narrow_sums});
  MT_RETURN_IF_ERROR(b.status());
  out.objective = {};
  out.heads.resize(parts.size());
  for (size_t h = 0; h < parts.size(); ++h) {
    const Head& head = recipe.heads[h];
    PartOfHead& part = parts[h];
    part.predictions = predictions[outputs[h]];
    MT_RETURN_IF_ERROR(
        head.loss.CheckLabels(part.labels.type(), part.predictions.type()).At(Of(head)));
    if (const int64_t classes = head.loss.Classes(part.predictions.type()); classes > 0) {
      const auto [known, fresh] = out.classes.emplace(head.labels, classes);
      if (!fresh) known->second = std::min(known->second, classes);
    }
    part.per_example = head.loss.PerExample(part.labels, part.predictions);
    MT_RETURN_IF_ERROR(b.status().At(Of(head)));
    RecordLoss(head, part, share, out.heads[h], out);
  }
  for (const Parameter& parameter : recipe.model->parameters()) {
    if (!last || !parameter.regularizer()) continue;  // once for the batch
    const Value penalty = parameter.regularizer()->Record(parameter);
    if (!penalty.valid()) continue;
    out.objective = out.objective + penalty;
    out.loss = out.loss + penalty;
  }
  for (size_t h = 0; h < parts.size(); ++h) {
    MT_RETURN_IF_ERROR(RecordMetrics(recipe.heads[h], b, parts[h], share, out.heads[h]));
  }
  return OkStatus();
}

// What recipe.recompute says, of the gradients that are recorded after it.
Result<nn::PathScopes> ComputeAgain(const Recipe& recipe, Builder& b) {
  auto scopes = nn::PathScopes::Create(recipe.recompute);
  if (!scopes.ok()) return InvalidArgument("recompute: " + scopes.status().message());
  if (!scopes->empty()) {
    b.ComputeAgain([scopes = *scopes](std::string_view path) { return scopes.Of(path); });
  }
  return scopes;
}

// Each rule is of a layer that recorded something.
Status CheckRecomputed(const nn::PathScopes& scopes, const Program& step) {
  if (scopes.empty()) return OkStatus();
  std::set<std::string> paths;
  for (const program::Op& op : step.ops) {
    if (!program::IsAgain(op)) paths.insert(std::string(program::BelowPart(op)));
  }
  paths.erase("");
  const Status used = scopes.CheckUsed({paths.begin(), paths.end()});
  return used.ok() ? used : InvalidArgument("recompute: " + used.message());
}

bool Uses(const Builder& b, const program::Variable& variable) {
  return std::find(b.variables().begin(), b.variables().end(), variable) != b.variables().end();
}

// The whole batch, a part after the other; `after_part` is told of each.
template <typename AfterPart>
Result<Recorded> Record(const Recipe& recipe, Builder& b, std::span<const TensorType> types,
                        bool training, const AfterPart& after_part) {
  MT_ASSIGN_OR_RETURN(const Batch batch, InputsOf(recipe, b, types));
  Recorded out;
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    std::optional<Builder::NameScope> scope;
    if (batch.parts.size() > 1) scope.emplace(b, program::PartScope(static_cast<int64_t>(i) + 1));
    const bool last = i + 1 == batch.parts.size();
    MT_RETURN_IF_ERROR(
        RecordPart(recipe, b, batch.parts[i], batch.ShareOf(i), last, training, out));
    MT_RETURN_IF_ERROR(after_part(out, last));
  }
  b.Output(std::string(kLossName), out.loss);
  for (size_t h = 0; h < recipe.heads.size(); ++h) {
    const Head& head = recipe.heads[h];
    if (!head.output.empty()) b.Output(head.FigureName(kLossName), out.heads[h].loss);
    for (size_t i = 0; i < head.metrics.size(); ++i) {
      b.Output(head.FigureName(head.metrics[i].name), out.heads[h].metrics[i]);
    }
  }
  return out;
}

// The gradients of a batch, to which each part adds its own.
class Gradients {
 public:
  Gradients(std::span<const Parameter> weights, double scale) : scale_(scale) {
    for (const Parameter& weight : weights) {
      if (!weight.trainable()) continue;
      trained_.push_back(weight);
      variables_.push_back(weight);
    }
  }
  void Add(Builder& b, const Value& objective) {
    std::vector<Value> made = b.Gradient(Times(objective, scale_), variables_);
    for (Value& gradient : made) gradient = Times(gradient, 1 / scale_);
    if (sums_.empty()) {
      sums_ = std::move(made);
      return;
    }
    const Builder::NameScope scope(b, program::kSumOfGradients);
    for (size_t i = 0; i < made.size(); ++i) sums_[i] = sums_[i] + made[i];
  }
  void Apply(Optimizer& optimizer) const { optimizer.Apply(trained_, sums_); }

 private:
  const double scale_;  // of the loss
  std::vector<Parameter> trained_;
  std::vector<program::Variable> variables_;
  std::vector<Value> sums_;  // empty: of no part yet
};

Result<Program> EvalStep(const Recipe& recipe, std::span<const TensorType> types) {
  Builder b("eval_step");
  const Builder::Scope scope(b);
  const auto nothing = [](const Recorded&, bool) { return OkStatus(); };
  MT_RETURN_IF_ERROR(Record(recipe, b, types, /*training=*/false, nothing).status());
  return b.Build();
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
  std::set<std::string> labels;
  for (const Head& head : recipe.heads) labels.insert(head.labels);
  for (size_t i = 0; i < recipe.components.size(); ++i) {
    if (!labels.contains(recipe.components[i])) places.push_back(i);
  }
  if (places.empty()) {
    return InvalidArgument("inputs: expected a component beside the labels, `" +
                           Join(std::vector<std::string>(labels.begin(), labels.end()), "`, `") +
                           "`, got: none");
  }
  return places;
}

Result<Programs> BuildPrograms(const Recipe& recipe, std::span<const TensorType> types) {
  MT_RETURN_IF_ERROR(CheckRecipe(recipe));
  Programs out;
  out.components = recipe.components;
  for (const Head& head : recipe.heads) {
    for (const Metric& metric : head.metrics) {
      if (metric.finish == nullptr) continue;
      out.summed.push_back({head.FigureName(metric.name),
                            std::vector<double>(static_cast<size_t>(metric.sums)), metric.finish});
    }
  }
  bool counts_steps = false;
  {
    Builder b("train_step");
    Builder::Scope scope(b);
    MT_ASSIGN_OR_RETURN(const nn::PathScopes recomputed, ComputeAgain(recipe, b));
    std::optional<Gradients> gradients;
    const auto add_gradients = [&](const Recorded& recorded, bool last) -> Status {
      // The first error is what helps; what follows would be about values that are not there.
      MT_RETURN_IF_ERROR(b.status());
      if (!gradients) {
        out.parameters = recipe.model->parameters();
        MT_RETURN_IF_ERROR(recipe.layouts.Apply(out.parameters));
        gradients.emplace(out.parameters, recipe.loss_scale);
      }
      gradients->Add(b, recorded.objective);
      MT_RETURN_IF_ERROR(b.status());
      if (!last && Uses(b, recipe.step)) program::AssignAdd(recipe.step, 1);
      return OkStatus();
    };
    MT_ASSIGN_OR_RETURN(const Recorded recorded,
                        Record(recipe, b, types, /*training=*/true, add_gradients));
    out.classes = recorded.classes;
    gradients->Apply(*recipe.optimizer);
    MT_RETURN_IF_ERROR(b.status());
    counts_steps = Uses(b, recipe.step);
    if (counts_steps) program::AssignAdd(recipe.step, 1);
    MT_ASSIGN_OR_RETURN(out.train_step, b.Build());
    MT_RETURN_IF_ERROR(CheckRecomputed(recomputed, out.train_step));
  }
  MT_ASSIGN_OR_RETURN(out.eval_step, EvalStep(recipe, types));
  if (recipe.accumulate == 1) {
    out.rows = RowsOf(out.eval_step);
  } else {
    // No part's ids are all of an input's.
    Recipe whole = recipe;
    whole.accumulate = 1;
    MT_ASSIGN_OR_RETURN(const Program eval_step, EvalStep(whole, types));
    out.rows = RowsOf(eval_step);
  }
  out.slots = recipe.optimizer->slots();
  if (counts_steps) out.slots.push_back(recipe.step);
  MT_ASSIGN_OR_RETURN(out.init, BuildInit(out.States(), recipe.seed));
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

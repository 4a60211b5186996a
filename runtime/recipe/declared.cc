// From the declared program to traced ones: the same layers, optimizers and trace as the C++
// interface.
#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/text.h"
#include "runtime/nn/whole_blocks.h"
#include "runtime/recipe/blocks.h"
#include "runtime/recipe/recipe.h"
#include "runtime/sharding/choose.h"

namespace meshtrain::recipe {
namespace {

constexpr std::string_view kTrainSource = "data.train", kTestSource = "data.test";

using manifest::Program;
using manifest::UpdateSharing;

// Those that split an input.
std::set<std::string, std::less<>> InputAxes(const Program& program) {
  std::set<std::string, std::less<>> axes;
  for (const std::string& input : manifest::Components(program)) {
    for (const std::string& spec : manifest::InputSpecs(program, input, -1)) {
      for (const std::string& axis : Split(spec, '+')) axes.insert(axis);
    }
  }
  return axes;
}

// "job.yaml:9:13: program.model[1].dense", for Status::At.
std::string PlaceIn(const Program& program, const manifest::Spot& spot) {
  std::string where = manifest::At(program.file, spot.place, spot.path);
  where.resize(where.size() - 2);  // At of Status adds its own ": "
  return where;
}

// The weights that have no layout, each with its slots; those of alike blocks together, by their
// place and type.
std::map<std::string, sharding::StateGroup> OpenGroups(const train::Programs& programs) {
  std::map<std::string, sharding::StateGroup> groups;
  for (const nn::Parameter& weight : programs.parameters) {
    if (weight.layout() || weight.type().rank() == 0) continue;
    sharding::StateGroup& group =
        groups[PlaceInBlocks(weight.name()) + " " + weight.type().ToString()];
    group.push_back(weight.name());
    for (const nn::Parameter& slot : programs.slots) {
      if (!slot.layout() && slot.type().dims == weight.type().dims &&
          slot.name().ends_with("." + weight.name())) {
        group.push_back(slot.name());
      }
    }
  }
  return groups;
}

train::Head HeadOf(const Program& program, const manifest::Output& output) {
  train::Head head{.output = output.layer,
                   .labels = output.labels,
                   .loss = LossOf(output.loss),
                   .weight = output.weight,
                   .place = output.layer.empty() ? "" : PlaceIn(program, output.spot)};
  for (const manifest::Choice& metric : output.metrics) {
    head.metrics.push_back(MetricOf(metric));
    manifest::Spot spot = metric.spot;
    spot.path.resize(std::min(spot.path.rfind('.'), spot.path.size()));  // the list's entry
    head.metrics.back().place = PlaceIn(program, spot);
  }
  return head;
}

bool SharesUpdate(const Program& program) {
  if (program.layout.update == UpdateSharing::kAuto) {
    return program.processes > 1 && !program.strict;
  }
  return program.layout.update == UpdateSharing::kShared;
}

}  // namespace

Result<Declared> Declared::Create(const Program& program) {
  Declared declared;
  declared.program_ = program;
  // One device without a mesh is of its kind as well.
  if (!program.mesh.empty() || program.devices.kind != mesh::DeviceKind::kCpu) {
    std::vector<mesh::Device> devices;
    int64_t size = 1;
    for (const mesh::Axis& axis : program.mesh) size *= axis.size;
    const int64_t count = std::max<int64_t>(
        1, program.devices.count.value_or(size / std::max<int64_t>(1, program.processes)));
    for (int64_t i = 0; i < size; ++i) {
      devices.push_back(
          {program.devices.kind, static_cast<int>(i / count), static_cast<int>(i % count)});
    }
    MT_ASSIGN_OR_RETURN(declared.mesh_, mesh::Mesh::Create(program.mesh, std::move(devices)));
  }
  for (const manifest::Layer& layer : program.model.layers) {
    declared.layers_.push_back(MakeLayer(layer));
    declared.layers_.back()->set_line({program.file, layer.spot.place.line});
  }
  train::Recipe& recipe = declared.recipe_;
  recipe.components = manifest::Components(program);
  recipe.heads.clear();
  std::set<std::string> labels;
  for (const manifest::Output& output : manifest::Outputs(program)) {
    recipe.heads.push_back(HeadOf(program, output));
    labels.insert(output.labels);
  }
  if (program.model.functional) {
    std::map<std::string, nn::Symbol> symbols;
    std::vector<nn::Symbol> model_inputs;
    for (const std::string& component : manifest::Components(program)) {
      if (labels.contains(component)) continue;
      symbols.emplace(component, model_inputs.emplace_back(nn::Input()));
    }
    for (size_t i = 0; i < program.model.layers.size(); ++i) {
      const manifest::Layer& layer = program.model.layers[i];
      std::vector<nn::Symbol> inputs;
      for (const std::string& name : layer.inputs) {
        const auto input = symbols.find(name);
        if (input == symbols.end()) {
          return InvalidArgument(layer.spot.path + ": no layer before it is named `" +
                                 Excerpt(name) + "`");
        }
        inputs.push_back(input->second);
      }
      nn::Symbol output = nn::Apply(declared.layers_[i], std::move(inputs));
      // The name would stand for what had it first, and this layer would be left out.
      if (!symbols.emplace(layer.name, std::move(output)).second) {
        return InvalidArgument(layer.spot.path + ": what comes before it is named `" +
                               Excerpt(layer.name) + "` already");
      }
    }
    std::vector<nn::NamedSymbol> ends;
    for (const train::Head& head : recipe.heads) {
      const std::string& layer = program.outputs.empty() ? program.model.output : head.output;
      const auto symbol = symbols.find(layer);
      if (symbol == symbols.end()) {
        return InvalidArgument("model.output: no layer is named `" + Excerpt(layer) + "`");
      }
      ends.push_back({head.output, symbol->second});
    }
    recipe.model = std::make_shared<nn::Functional>(std::move(model_inputs), std::move(ends));
  } else {
    recipe.model = std::make_shared<nn::Sequential>(declared.layers_);
  }
  recipe.optimizer = MakeOptimizer(program.optimizer);
  recipe.seed = program.seed;
  recipe.accumulate = program.train.accumulate;
  if (program.precision != manifest::kFullPrecision) {
    MT_ASSIGN_OR_RETURN(recipe.compute, mesh::ParseDType(program.precision));
    recipe.narrow_sums = program.train.reduce_dtype != manifest::kFullPrecision;
  }
  recipe.loss_scale = program.train.loss_scale;
  recipe.recompute = program.train.recompute;
  for (const manifest::LayoutRule& rule : program.layout.rules) {
    MT_RETURN_IF_ERROR(recipe.layouts.Add(rule.match, rule.specs)
                           .At(manifest::At(program.file, rule.spot.place, "") + "layout.rules"));
  }
  MT_RETURN_IF_ERROR(ActOwnFields(program, &recipe));
  return declared;
}

Result<Traced> Declared::Trace(const std::vector<mesh::TensorType>& types,
                               std::string_view source) const {
  const auto place = [&](std::string_view field) { return program_.Where(field); };
  const std::vector<std::string>& names = recipe_.components;
  if (types.size() != names.size()) {
    return InvalidArgument(place("data") + ": expected components " + Join(names, ", ") +
                           ", got: " + std::to_string(types.size()) + " components");
  }
  Traced out;
  out.mesh = mesh_;
  for (size_t i = 0; i < types.size(); ++i) {
    const manifest::LayoutSpecs specs = manifest::InputSpecs(program_, names[i], types[i].rank());
    MT_RETURN_IF_ERROR(
        mesh::CheckRank(specs, names[i], types[i].rank()).At(place("layout") + ".inputs"));
    auto layout = mesh::Layout::FromSpecs(specs, mesh_);
    if (!layout.ok()) return layout.status().At(place("layout") + ".inputs." + names[i]);
    if (!program_.data.uneven.value_or(false) && !layout->IsEven(types[i].dims)) {
      const bool last = types[i].dims[0] != program_.data.batch;
      const bool may_drop = last && source != kTestSource;
      return InvalidArgument(
          place("data.batch") + ": " + names[i] + " " + types[i].ToString() +
          (last ? ", the short last batch" : "") +
          (source.empty() ? "" : " of " + std::string(source)) + (last ? "," : "") +
          " does not divide over " + layout->ToString() + " of mesh " + mesh_.ToString() +
          (may_drop ? " (data.drop_remainder: true leaves it out of training, data.uneven: true "
                      "takes it)"
                    : " (data.uneven: true takes it)"));
    }
    out.layouts.inputs.emplace(names[i], std::move(*layout));
  }
  for (const train::Head& head : recipe_.heads) {
    const size_t label = std::find(names.begin(), names.end(), head.labels) - names.begin();
    const Status fits = head.loss.CheckLabels(types[label]);
    if (fits.ok()) continue;
    return InvalidArgument((head.place.empty() ? place("loss") : head.place + ".loss") + ": " +
                           fits.message() + (source.empty() ? "" : " in " + std::string(source)) +
                           (head.loss.function->name() == "sparse_categorical_crossentropy"
                                ? " (labels_as: i32 takes whole numbers as class numbers)"
                                : ""));
  }
  auto programs = train::BuildPrograms(recipe_, types);
  if (!programs.ok()) return AtLayer(programs.status());
  out.programs = std::move(*programs);
  if (program_.layout.automatic) {
    MT_ASSIGN_OR_RETURN(out.layouts.states, ChooseLayouts(types, out.layouts));
  }
  MT_RETURN_IF_ERROR(AddStateLayouts(out.programs.States(), &out.layouts.states));
  if (SharesUpdate(program_)) {
    const mesh::Layout& batch = out.layouts.inputs.at(names[0]);
    for (const nn::Parameter& slot : out.programs.slots) {
      const auto layout = out.layouts.states.find(slot.name());
      if (layout == out.layouts.states.end()) continue;
      layout->second = train::SharedUpdateLayout(layout->second, slot.type(), batch);
    }
  }
  return out;
}

Status Declared::AtLayer(const Status& error) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i]->failed()) continue;
    return error.At(PlaceIn(program_, program_.model.layers[i].spot));
  }
  for (const train::Head& head : recipe_.heads) {
    if (!head.place.empty() && error.message().starts_with(head.place + ": ")) return error;
    for (const train::Metric& metric : head.metrics) {
      if (error.message().starts_with(metric.place + ": ")) return error;
    }
  }
  return error.At(program_.Where("model"));
}

Status Declared::AddStateLayouts(std::span<const nn::Parameter> states,
                                 std::map<std::string, mesh::Layout>* layouts) const {
  const std::set<std::string, std::less<>> gathered = InputAxes(program_);
  for (const nn::Parameter& state : states) {
    if (layouts->contains(state.name())) continue;
    if (!state.layout()) {
      layouts->emplace(state.name(), mesh::Layout::Replicated(mesh_, state.type().rank()));
      continue;
    }
    auto layout = nn::LayoutOfWeight(state, mesh_, *state.layout(), gathered);
    if (!layout.ok()) return layout.status().At(program_.Where("layout") + ": " + state.name());
    layouts->emplace(state.name(), std::move(*layout));
  }
  return OkStatus();
}

Result<std::string> Declared::OneInput() const {
  MT_ASSIGN_OR_RETURN(const std::vector<size_t> places, train::ModelInputs(recipe_));
  if (places.size() != 1) {
    std::vector<std::string> names;
    for (const size_t place : places) names.push_back(recipe_.components[place]);
    return InvalidArgument(program_.Where("model") +
                           ": expected a model of one input, got: " + Join(names, ", "));
  }
  return recipe_.components[places[0]];
}

Result<TracedPrediction> Declared::TracePrediction(const mesh::TensorType& x) const {
  MT_ASSIGN_OR_RETURN(const std::string name, OneInput());
  const train::NamedInput input{name, x};
  auto prediction =
      train::BuildPrediction(*recipe_.model, {&input, 1}, recipe_.seed, recipe_.compute);
  if (!prediction.ok()) return AtLayer(prediction.status());
  return WithLayouts(std::move(*prediction));
}

Result<TracedPrediction> Declared::TraceNext(const mesh::TensorType& x) const {
  const std::string at = program_.Where("generate");
  MT_ASSIGN_OR_RETURN(const std::string name, OneInput());
  const train::Loss& loss = recipe_.heads.front().loss;  // there is one, or it says so
  auto next = train::BuildNext(*recipe_.model, {name, x}, loss, recipe_.seed, recipe_.compute);
  if (!next.ok()) {
    const bool of_layer = std::any_of(layers_.begin(), layers_.end(),
                                      [](const nn::LayerPtr& layer) { return layer->failed(); });
    return of_layer ? AtLayer(next.status()) : next.status().At(at);
  }
  const int64_t classes = next->program.type(next->program.outputs[0].value).dims[1];
  const auto characters = static_cast<int64_t>(manifest::Characters(program_).size());
  if (classes > characters) {
    return InvalidArgument(at + ": expected a model that predicts one of data.train's " +
                           std::to_string(characters) + " characters, got: one of " +
                           std::to_string(classes));
  }
  for (const auto& [input, rows] : next->rows) {
    if (classes <= rows) continue;
    return InvalidArgument(at + ": expected a model that takes every id that it predicts, " +
                           std::to_string(classes) + ", got: one of " + std::to_string(rows));
  }
  MT_ASSIGN_OR_RETURN(TracedPrediction traced, WithLayouts(std::move(*next)));
  const bool by_position =
      std::all_of(layers_.begin(), layers_.end(),
                  [](const nn::LayerPtr& layer) { return layer->by_position(); });
  if (!by_position) return traced;
  // A layer that is called twice keeps nothing: it would be for two.
  auto by_id = train::BuildNextById(*recipe_.model, {name, x}, loss, recipe_.seed, recipe_.compute);
  if (by_id.ok()) traced.by_id = std::move(*by_id);
  return traced;
}

Result<TracedPrediction> Declared::WithLayouts(train::Prediction prediction) const {
  TracedPrediction out{.prediction = std::move(prediction),
                       .parameters = recipe_.model->parameters()};
  MT_RETURN_IF_ERROR(recipe_.layouts.Apply(out.parameters));
  MT_RETURN_IF_ERROR(AddStateLayouts(out.parameters, &out.states));
  return out;
}

Result<train::Programs> Declared::ProgramsOfPart(std::vector<mesh::TensorType> types) const {
  // Of one part of a batch: the parts are alike.
  train::Recipe part = recipe_;
  part.accumulate = 1;
  for (mesh::TensorType& type : types) {
    if (type.rank() > 0) type.dims[0] = manifest::PartOfBatch(program_);
  }
  return train::BuildPrograms(part, types);
}

std::optional<train::Programs> Declared::ProgramsOfFewBlocks(
    const std::vector<mesh::TensorType>& types) const {
  // What one block leaves is what the next is given, so that two show what more would.
  constexpr int64_t kBlocks = 2;
  manifest::Program shorter = program_;
  shorter.model = WithFewerBlocks(program_.model, kBlocks);
  if (shorter.model.layers.size() == program_.model.layers.size()) return std::nullopt;
  // Where each block leaves another shape, what is behind them may not take what two leave.
  const auto few = Create(shorter);
  if (!few.ok()) return std::nullopt;
  auto programs = few->ProgramsOfPart(types);
  return programs.ok() ? std::optional(*std::move(programs)) : std::nullopt;
}

Result<std::map<std::string, mesh::Layout>> Declared::ChooseLayouts(
    std::vector<mesh::TensorType> types, const Layouts& given) const {
  for (mesh::TensorType& type : types) {
    if (type.rank() > 0) type.dims[0] = program_.data.batch;
  }
  if (chosen_->types == types) return chosen_->states;
  MT_ASSIGN_OR_RETURN(const train::Programs programs, ProgramsOfPart(types));
  const auto all = OpenGroups(programs);
  const std::optional<train::Programs> of_few = ProgramsOfFewBlocks(types);
  auto open = of_few ? OpenGroups(*of_few) : all;
  // Where blocks change their shapes, few of them do not show the weights of all.
  const bool show_all = std::all_of(all.begin(), all.end(),
                                    [&](const auto& group) { return open.contains(group.first); });
  if (!show_all) open = all;
  const train::Programs& looked_at = of_few && show_all ? *of_few : programs;
  std::vector<sharding::StateGroup> groups;
  for (const auto& [place, group] : open) groups.push_back(group);
  sharding::Given inputs;
  inputs.inputs = given.inputs;
  auto chosen = sharding::ChooseStateLayouts(looked_at.train_step, mesh_, inputs, groups);
  const std::string at = program_.Where("layout") + ": ";
  if (!chosen.ok()) return InvalidArgument(at + chosen.status().message());
  for (const auto& [place, group] : all) {
    const mesh::Layout& layout = chosen->at(open.at(place).front());
    for (const std::string& name : group) inputs.states.insert_or_assign(name, layout);
  }
  if (const Status used = sharding::CheckAxesUsed(mesh_, inputs, &programs.train_step);
      !used.ok()) {
    return InvalidArgument(at + "auto: no split of a weight over it makes the step faster; " +
                           used.message());
  }
  *chosen_ = {std::move(types), inputs.states};
  return inputs.states;
}

Status Declared::CheckBatches(const std::optional<Batches>& train,
                              const std::optional<Batches>& test) const {
  const auto trace = [&](const Batches& batches, std::string_view source) -> Status {
    // The full one first: what is wrong with it is wrong with all.
    for (auto size = batches.sizes.rbegin(); size != batches.sizes.rend(); ++size) {
      std::vector<mesh::TensorType> types = batches.types;
      for (mesh::TensorType& type : types) type.dims[0] = *size;
      MT_RETURN_IF_ERROR(Trace(types, source).status());
    }
    return OkStatus();
  };
  if (train) MT_RETURN_IF_ERROR(trace(*train, kTrainSource));
  if (!test) return OkStatus();
  if (train && test->types != train->types) {
    const auto text = [](const std::vector<mesh::TensorType>& types) {
      std::vector<std::string> parts;
      for (const mesh::TensorType& type : types) parts.push_back(type.ToString());
      return Join(parts, ", ");
    };
    return InvalidArgument(program_.Where("data.test") + ": " +
                           "expected batches as the training data's, " + text(train->types) +
                           ", got: " + text(test->types));
  }
  return trace(*test, kTestSource);
}

Result<Traced> Build(const Program& program, const std::vector<mesh::TensorType>& types) {
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(program));
  return declared.Trace(types);
}

train::Packing PackingOf(const manifest::Program& program) {
  const manifest::Packing packing = program.packing();
  return {.num_packs = packing.num_packs, .bytes_per_pack = packing.bytes_per_pack};
}

}  // namespace meshtrain::recipe

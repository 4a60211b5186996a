// From the declared program to traced ones: the same layers, optimizers and trace as the C++
// interface.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/sharding/choose.h"
#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

nn::LayerPtr MakeLayer(const LayerSpec& layer) {
  struct Maker {
    const std::string& name;
    nn::LayerPtr operator()(const DenseSpec& s) const {
      nn::DenseOptions options = s.options;
      options.name = name;
      return nn::Make<nn::Dense>(s.units, std::move(options));
    }
    nn::LayerPtr operator()(const FlattenSpec&) const { return nn::Make<nn::Flatten>(name); }
    nn::LayerPtr operator()(const ReshapeSpec& s) const {
      return nn::Make<nn::Reshape>(s.dims, name);
    }
    nn::LayerPtr operator()(const ActivationSpec& s) const {
      return nn::Make<nn::Activation>(s.activation, name);
    }
    nn::LayerPtr operator()(const DropoutSpec& s) const {
      return nn::Make<nn::Dropout>(s.rate, s.seed, name);
    }
    nn::LayerPtr operator()(const AddSpec&) const { return nn::Make<nn::Add>(name); }
    nn::LayerPtr operator()(const ConcatenateSpec& s) const {
      return nn::Make<nn::Concatenate>(s.axis, name);
    }
  };
  return std::visit(Maker{layer.name}, layer.options);
}

std::shared_ptr<train::Optimizer> MakeOptimizer(const OptimizerSpec& spec) {
  struct Maker {
    const std::string& kind;
    std::unique_ptr<train::Optimizer> operator()(const train::AdamOptions& o) const {
      return kind == "adamw" ? train::AdamW(o) : train::Adam(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::AdamLikeOptions& o) const {
      return kind == "nadam" ? train::Nadam(o) : train::Adamax(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::AdamPaperOptions& o) const {
      return train::AdamPaper(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::SgdOptions& o) const {
      return train::Sgd(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::RmspropOptions& o) const {
      return train::Rmsprop(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::AdagradOptions& o) const {
      return train::Adagrad(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::FtrlOptions& o) const {
      return train::Ftrl(o);
    }
    std::unique_ptr<train::Optimizer> operator()(const train::LionOptions& o) const {
      return train::Lion(o);
    }
  };
  return std::visit(Maker{spec.kind}, spec.options);
}

constexpr std::string_view kTrainSource = "data.train", kTestSource = "data.test";

bool SharesUpdate(const ProgramSpec& spec) {
  if (spec.layout.update == UpdateSharing::kAuto) return spec.processes > 1 && !spec.strict;
  return spec.layout.update == UpdateSharing::kShared;
}

}  // namespace

Result<Declared> Declared::Create(const ProgramSpec& spec) {
  Declared declared;
  declared.spec_ = spec;
  if (!spec.mesh.empty()) {
    std::vector<mesh::Device> devices;
    int64_t size = 1;
    for (const mesh::Axis& axis : spec.mesh) size *= axis.size;
    const int64_t count = std::max<int64_t>(
        1, spec.devices.count.value_or(size / std::max<int64_t>(1, spec.processes)));
    for (int64_t i = 0; i < size; ++i) {
      devices.push_back(
          {spec.devices.kind, static_cast<int>(i / count), static_cast<int>(i % count)});
    }
    MT_ASSIGN_OR_RETURN(declared.mesh_, mesh::Mesh::Create(spec.mesh, std::move(devices)));
  }
  for (const LayerSpec& layer : spec.model.layers) declared.layers_.push_back(MakeLayer(layer));
  train::Recipe& recipe = declared.recipe_;
  if (spec.model.functional) {
    std::map<std::string, nn::Symbol> symbols;
    const nn::Symbol x = nn::Input();
    symbols.emplace(train::kInputName, x);
    for (size_t i = 0; i < spec.model.layers.size(); ++i) {
      const LayerSpec& layer = spec.model.layers[i];
      std::vector<nn::Symbol> inputs;
      for (const std::string& name : layer.inputs) {
        const auto input = symbols.find(name);
        if (input == symbols.end()) {
          return InvalidArgument(layer.path + ": no layer before it is named `" + Excerpt(name) +
                                 "`");
        }
        inputs.push_back(input->second);
      }
      symbols.emplace(layer.name, nn::Apply(declared.layers_[i], std::move(inputs)));
    }
    const auto output = symbols.find(spec.model.output);
    if (output == symbols.end()) {
      return InvalidArgument("model.output: no layer is named `" + Excerpt(spec.model.output) +
                             "`");
    }
    recipe.model = std::make_shared<nn::Functional>(std::vector<nn::Symbol>{x}, output->second);
  } else {
    recipe.model = std::make_shared<nn::Sequential>(declared.layers_);
  }
  recipe.loss = spec.loss;
  recipe.optimizer = MakeOptimizer(spec.optimizer);
  recipe.metrics = spec.metrics;
  recipe.seed = spec.seed;
  for (const LayoutRule& rule : spec.layout.rules) {
    MT_RETURN_IF_ERROR(recipe.layouts.Add(rule.match, rule.specs)
                           .At(At(spec.file, rule.place, "") + "layout.rules"));
  }
  return declared;
}

Result<Traced> Declared::Trace(const std::vector<mesh::TensorType>& types,
                               std::string_view source) const {
  const auto place = [&](const std::string& key) {
    const auto found = spec_.places.find(key);
    const std::string at =
        At(spec_.file, found == spec_.places.end() ? Place{} : found->second, "");
    return at + spec_.path + "." + key;
  };
  if (types.size() != 2) {
    return InvalidArgument(place("data") + ": expected two components, features and labels, got: " +
                           std::to_string(types.size()));
  }
  Traced out;
  out.mesh = mesh_;
  const std::string names[] = {std::string(train::kInputName), std::string(train::kLabelName)};
  for (size_t i = 0; i < 2; ++i) {
    const nn::LayoutSpecs specs = InputSpecs(spec_, names[i], types[i].rank());
    MT_RETURN_IF_ERROR(
        nn::CheckRank(specs, names[i], types[i].rank()).At(place("layout") + ".inputs"));
    auto layout = mesh::Layout::FromSpecs(specs, mesh_);
    if (!layout.ok()) return layout.status().At(place("layout") + ".inputs." + names[i]);
    if (!spec_.data.uneven && !layout->IsEven(types[i].dims)) {
      const bool last = types[i].dims[0] != spec_.data.batch;
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
  if (const Status fits = spec_.loss.CheckLabels(types[1]); !fits.ok()) {
    return InvalidArgument(place("loss") + ": " + fits.message() +
                           (source.empty() ? "" : " in " + std::string(source)) +
                           (spec_.loss.kind == train::LossKind::kSparseCategoricalCrossentropy
                                ? " (labels_as: i32 takes whole numbers as class numbers)"
                                : ""));
  }
  auto programs = train::BuildPrograms(recipe_, types[0], types[1]);
  if (!programs.ok()) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!layers_[i]->failed()) continue;
      const LayerSpec& layer = spec_.model.layers[i];
      std::string where = At(spec_.file, layer.place, layer.path);
      where.resize(where.size() - 2);  // At of Status adds its own ": "
      return programs.status().At(where);
    }
    return programs.status().At(place("model"));
  }
  out.programs = std::move(*programs);
  if (spec_.layout.automatic) {
    MT_ASSIGN_OR_RETURN(out.layouts.states, ChooseLayouts(types, out.layouts));
  }
  for (const nn::Parameter& state : out.programs.States()) {
    if (out.layouts.states.contains(state.name())) continue;
    if (!state.layout()) {
      out.layouts.states.emplace(state.name(),
                                 mesh::Layout::Replicated(mesh_, state.type().rank()));
      continue;
    }
    auto layout = mesh::Layout::FromSpecs(*state.layout(), mesh_);
    if (!layout.ok()) return layout.status().At(place("layout") + ": " + state.name());
    out.layouts.states.emplace(state.name(), std::move(*layout));
  }
  if (SharesUpdate(spec_)) {
    const mesh::Layout& batch = out.layouts.inputs.at(names[0]);
    for (const nn::Parameter& slot : out.programs.slots) {
      const auto layout = out.layouts.states.find(slot.name());
      if (layout == out.layouts.states.end()) continue;
      layout->second = train::SharedUpdateLayout(layout->second, slot.type(), batch);
    }
  }
  return out;
}

Result<std::map<std::string, mesh::Layout>> Declared::ChooseLayouts(
    std::vector<mesh::TensorType> types, const Layouts& given) const {
  for (mesh::TensorType& type : types) {
    if (type.rank() > 0) type.dims[0] = spec_.data.batch;
  }
  if (chosen_->types == types) return chosen_->states;
  MT_ASSIGN_OR_RETURN(const train::Programs programs,
                      train::BuildPrograms(recipe_, types[0], types[1]));
  std::vector<sharding::StateGroup> groups;
  for (const nn::Parameter& weight : programs.parameters) {
    if (weight.layout() || weight.type().rank() == 0) continue;
    sharding::StateGroup& group = groups.emplace_back();
    group.push_back(weight.name());
    for (const nn::Parameter& slot : programs.slots) {
      if (!slot.layout() && slot.type().dims == weight.type().dims &&
          slot.name().ends_with("." + weight.name())) {
        group.push_back(slot.name());
      }
    }
  }
  sharding::Given inputs;
  inputs.inputs = given.inputs;
  auto chosen = sharding::ChooseStateLayouts(programs.train_step, mesh_, inputs, groups);
  const auto place = spec_.places.find("layout");
  const std::string at =
      At(spec_.file, place == spec_.places.end() ? Place{} : place->second, spec_.path + ".layout");
  if (!chosen.ok()) return InvalidArgument(at + chosen.status().message());
  inputs.states = *chosen;
  if (const Status used = sharding::CheckAxesUsed(mesh_, inputs, &programs.train_step);
      !used.ok()) {
    return InvalidArgument(at + "auto: no split of a weight over it makes the step faster; " +
                           used.message());
  }
  *chosen_ = {std::move(types), *chosen};
  return chosen;
}

Status Declared::CheckBatches(const Batches& train, const std::optional<Batches>& test) const {
  const auto trace = [&](const Batches& batches, std::string_view source) -> Status {
    // The full one first: what is wrong with it is wrong with all.
    for (auto size = batches.sizes.rbegin(); size != batches.sizes.rend(); ++size) {
      std::vector<mesh::TensorType> types = batches.types;
      for (mesh::TensorType& type : types) type.dims[0] = *size;
      MT_RETURN_IF_ERROR(Trace(types, source).status());
    }
    return OkStatus();
  };
  MT_RETURN_IF_ERROR(trace(train, kTrainSource));
  if (!test) return OkStatus();
  if (test->types != train.types) {
    const auto text = [](const std::vector<mesh::TensorType>& types) {
      std::vector<std::string> parts;
      for (const mesh::TensorType& type : types) parts.push_back(type.ToString());
      return Join(parts, ", ");
    };
    const auto place = spec_.places.find("data.test");
    return InvalidArgument(At(spec_.file, place == spec_.places.end() ? Place{} : place->second,
                              spec_.path + ".data.test") +
                           "expected batches as the training data's, " + text(train.types) +
                           ", got: " + text(test->types));
  }
  return trace(*test, kTestSource);
}

Result<Traced> Build(const ProgramSpec& spec, const std::vector<mesh::TensorType>& types) {
  MT_ASSIGN_OR_RETURN(const Declared declared, Declared::Create(spec));
  return declared.Trace(types);
}

}  // namespace meshtrain::spec

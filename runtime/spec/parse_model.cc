// `model`: layers and their options.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/base/text.h"
#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

using nn::Initializer;

std::optional<nn::Seed> ParseSeed(Fields& fields) {
  const Node* node = fields.Get("seed");
  if (node == nullptr) return std::nullopt;
  const std::vector<int64_t> seed = fields.Ints("seed");
  if (node->IsList() && node->list.size() != 2) fields.Wrong("seed", "two whole numbers, [22, 23]");
  if (seed.size() != 2) return std::nullopt;
  return nn::Seed{seed[0], seed[1]};
}

Initializer ParseInitializer(Fields& layer, std::string_view key, Initializer fallback) {
  static const std::vector<std::string> kKnown = {
      "zeros",          "ones",           "constant",
      "random_uniform", "random_normal",  "truncated_normal",
      "glorot_uniform", "glorot_normal",  "he_uniform",
      "he_normal",      "xavier_uniform", "xavier_normal"};
  const Node* node = layer.Get(key);
  if (node == nullptr) return fallback;
  const auto named = ReadNamed(layer.problems(), *node, layer.Path(key), "initializer");
  if (!named) return fallback;
  const std::string& name = named->name;
  if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
    layer.problems().Add(named->place, layer.Path(key),
                         "unknown initializer `" + Excerpt(name) + "`" + Suggest(name, kKnown));
    return fallback;
  }
  Fields options(layer.problems(), named->options, layer.Path(key) + "." + name, "option");
  if (name == "zeros") return Initializer::Zeros();
  if (name == "ones") return Initializer::Ones();
  if (name == "constant") return Initializer::Constant(options.Number("value", 0));
  if (name == "random_uniform") {
    const double low = options.Number("minval", -0.05);
    const double high = options.Number("maxval", 0.05);
    return Initializer::Uniform(low, high, ParseSeed(options));
  }
  if (name == "random_normal" || name == "truncated_normal") {
    const double mean = options.Number("mean", 0);
    const double deviation = options.Number("stddev", 0.05);
    const auto seed = ParseSeed(options);
    return name == "random_normal" ? Initializer::Normal(mean, deviation, seed)
                                   : Initializer::TruncatedNormal(mean, deviation, seed);
  }
  const auto seed = ParseSeed(options);
  if (name == "glorot_normal" || name == "xavier_normal") return Initializer::GlorotNormal(seed);
  if (name == "he_uniform") return Initializer::HeUniform(seed);
  if (name == "he_normal") return Initializer::HeNormal(seed);
  return Initializer::GlorotUniform(seed);
}

std::optional<nn::Regularizer> ParseRegularizer(Fields& layer, std::string_view key) {
  const Node* node = layer.Get(key);
  if (node == nullptr) return std::nullopt;
  Fields fields(layer.problems(), *node, layer.Path(key), "option");
  return nn::Regularizer{.l1 = fields.Number("l1", 0), .l2 = fields.Number("l2", 0)};
}

std::optional<nn::LayoutSpecs> ParseLayout(Fields& layer, std::string_view key) {
  if (layer.Get(key) == nullptr) return std::nullopt;
  return layer.Texts(key);
}

nn::ActivationKind ParseActivationField(Fields& fields, std::string_view key) {
  return *nn::ParseActivation(fields.Choice(key, nn::ActivationNames(), "linear"));
}

LayerOptions ParseDense(Fields& fields) {
  DenseSpec dense;
  if (fields.Need("units") != nullptr) dense.units = fields.Int("units", 1, 1);
  nn::DenseOptions& o = dense.options;
  o.activation = ParseActivationField(fields, "activation");
  o.use_bias = fields.Bool("use_bias", true);
  o.kernel_initializer = ParseInitializer(fields, "kernel_initializer", o.kernel_initializer);
  o.bias_initializer = ParseInitializer(fields, "bias_initializer", o.bias_initializer);
  o.kernel_regularizer = ParseRegularizer(fields, "kernel_regularizer");
  o.bias_regularizer = ParseRegularizer(fields, "bias_regularizer");
  o.kernel_layout = ParseLayout(fields, "kernel_layout");
  o.bias_layout = ParseLayout(fields, "bias_layout");
  return dense;
}

LayerOptions ParseFlatten(Fields&) { return FlattenSpec{}; }
LayerOptions ParseReshape(Fields& fields) {
  fields.Need("dims");
  return ReshapeSpec{fields.Ints("dims")};
}
LayerOptions ParseActivationLayer(Fields& fields) {
  fields.Need("activation");
  return ActivationSpec{ParseActivationField(fields, "activation")};
}
LayerOptions ParseDropout(Fields& fields) {
  DropoutSpec dropout;
  if (fields.Need("rate") != nullptr) dropout.rate = fields.Number("rate", 0);
  if (!(dropout.rate >= 0 && dropout.rate < 1)) {
    fields.Wrong("rate", "a number of at least 0 and below 1");
  }
  if (fields.Get("seed") != nullptr) dropout.seed = fields.Int("seed", 0);
  return dropout;
}
LayerOptions ParseAdd(Fields&) { return AddSpec{}; }
LayerOptions ParseConcatenate(Fields& fields) { return ConcatenateSpec{fields.Int("axis", -1)}; }

struct LayerRow {
  std::string_view kind;
  LayerOptions (*parse)(Fields& fields);
  bool several_inputs;
};
constexpr LayerRow kLayers[] = {
    {"dense", ParseDense, false},
    {"flatten", ParseFlatten, false},
    {"reshape", ParseReshape, false},
    {"activation", ParseActivationLayer, false},
    {"dropout", ParseDropout, false},
    {"add", ParseAdd, true},
    {"concatenate", ParseConcatenate, true},
};

const std::vector<std::string>& LayerKinds() {
  static const std::vector<std::string> kinds = [] {
    std::vector<std::string> all;
    for (const LayerRow& row : kLayers) all.emplace_back(row.kind);
    return all;
  }();
  return kinds;
}

bool IsName(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Reads one entry. `names`: the layers before it; null where inputs are not spoken of (a list).
std::optional<LayerSpec> ParseLayer(Problems& problems, const Node& node, const std::string& path,
                                    const std::vector<std::string>* names) {
  const auto named = ReadNamed(problems, node, path, "layer");
  if (!named) return std::nullopt;
  const LayerRow* row = nullptr;
  for (const LayerRow& known : kLayers) {
    if (known.kind == named->name) row = &known;
  }
  if (row == nullptr) {
    problems.Add(
        named->place, path,
        "unknown layer `" + Excerpt(named->name) + "`" + Suggest(named->name, LayerKinds()));
    return std::nullopt;
  }
  LayerSpec layer{.kind = named->name, .place = named->place, .path = path + "." + named->name};
  Fields fields(problems, named->options, layer.path, "option");
  layer.name = fields.Text("name");
  if (fields.Get("name") != nullptr && !IsName(layer.name)) {
    fields.Wrong("name", "letters, digits and _, not a digit first");
  }
  layer.options = row->parse(fields);
  if (names == nullptr) {
    if (row->several_inputs) {
      problems.Add(named->place, layer.path,
                   "takes several inputs: write the model as `layers:` with `inputs:`");
    }
    return layer;
  }
  if (const Node* inputs = fields.Get("inputs")) {
    layer.inputs =
        inputs->IsScalar() ? std::vector<std::string>{inputs->scalar} : fields.Texts("inputs");
  } else {
    layer.inputs = {names->back()};
  }
  for (const std::string& input : layer.inputs) {
    if (std::find(names->begin(), names->end(), input) != names->end()) continue;
    problems.Add(
        fields.PlaceOf("inputs"), fields.Path("inputs"),
        "no layer before this one is named `" + Excerpt(input) + "`" + Suggest(input, *names));
  }
  if (layer.inputs.empty() || (!row->several_inputs && layer.inputs.size() > 1)) {
    fields.Wrong("inputs", row->several_inputs ? "at least one name" : "one name");
  }
  return layer;
}

}  // namespace

ModelSpec ParseModel(Problems& problems, const Node& node, const std::string& path) {
  ModelSpec model;
  const Node* list = &node;
  std::string list_path = path;
  std::optional<Fields> fields;
  if (node.IsMap()) {
    model.functional = true;
    fields.emplace(problems, node, path);
    list = fields->Need("layers");
    list_path = path + ".layers";
    if (list == nullptr) {
      fields->Get("output");
      return model;
    }
  }
  if (!list->IsList() || list->list.empty()) {
    problems.Add(list->place, list_path,
                 "expected a list of layers" +
                     std::string(model.functional ? "" : " (or a map with `layers`)") +
                     ", got: " + (list->IsList() ? "an empty list" : list->Describe()));
    return model;
  }
  // Automatic names first need all that are given: `dense` is free unless some layer claims it.
  std::set<std::string, std::less<>> taken = {"x"};
  for (const Node& entry : list->list) {
    if (!entry.IsMap() || entry.members.size() != 1) continue;
    const Node* name = entry.members[0].value.Find("name");
    if (name == nullptr || !name->IsScalar()) continue;
    if (!taken.insert(name->scalar).second) {
      const size_t index = static_cast<size_t>(&entry - list->list.data());
      problems.Add(name->place,
                   list_path + "[" + std::to_string(index) + "]." + entry.members[0].key + ".name",
                   name->scalar == "x"
                       ? "`x` names the model's input"
                       : "another layer is named `" + Excerpt(name->scalar) + "` already");
    }
  }
  std::vector<std::string> names = {"x"};
  for (size_t i = 0; i < list->list.size(); ++i) {
    auto layer = ParseLayer(problems, list->list[i], list_path + "[" + std::to_string(i) + "]",
                            model.functional ? &names : nullptr);
    if (!layer) continue;
    if (layer->name.empty()) {
      layer->name = layer->kind;
      for (int n = 1; !taken.insert(layer->name).second; ++n) {
        layer->name = layer->kind + "_" + std::to_string(n);
      }
    }
    names.push_back(layer->name);
    model.layers.push_back(std::move(*layer));
  }
  if (model.functional) {
    model.output = fields->Text("output", names.back());
    if (std::find(names.begin() + 1, names.end(), model.output) == names.end() &&
        names.size() > 1) {
      fields->Wrong("output",
                    "the name of a layer (" + Join(std::span(names).subspan(1), ", ") + ")");
      return model;
    }
    // Layers stand behind those they use, so one walk from the end finds what the output needs.
    std::set<std::string, std::less<>> needed = {model.output};
    for (size_t i = model.layers.size(); i-- > 0;) {
      const LayerSpec& layer = model.layers[i];
      if (needed.contains(layer.name)) {
        needed.insert(layer.inputs.begin(), layer.inputs.end());
      } else {
        problems.Add(layer.place, layer.path,
                     "layer `" + Excerpt(layer.name) + "` does not reach the output `" +
                         Excerpt(model.output) + "`");
      }
    }
  }
  return model;
}

std::vector<WeightShape> WeightsOf(const LayerSpec& layer) {
  const auto* dense = std::get_if<DenseSpec>(&layer.options);
  if (dense == nullptr) return {};
  std::vector<WeightShape> weights = {{layer.name + ".kernel", 2}};
  if (dense->options.use_bias) weights.push_back({layer.name + ".bias", 1});
  return weights;
}

}  // namespace meshtrain::spec

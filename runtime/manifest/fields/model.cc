// `model`: a chain of layers, or a graph.
#include <algorithm>
#include <set>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {
namespace {

bool IsName(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Reads one entry. `names`: the layers before it; null where inputs are not spoken of (a list).
std::optional<Layer> ReadLayer(Problems& problems, const Node& node, const std::string& path,
                               const std::vector<std::string>* names) {
  const auto named = ReadNamed(problems, node, path, Layers().noun);
  if (!named) return std::nullopt;
  const Entry* row = Layers().Find(named->name);
  if (row == nullptr) {
    problems.Add(
        named->place, path,
        "unknown layer `" + Excerpt(named->name) + "`" + Suggest(named->name, Layers().names()));
    return std::nullopt;
  }
  Layer layer{.kind = named->name, .spot = {named->place, path + "." + named->name}};
  Fields fields(problems, named->options, layer.spot.path, "option");
  layer.name = fields.Text("name");
  if (fields.Get("name") != nullptr && !IsName(layer.name)) {
    fields.Wrong("name", "letters, digits and _, not a digit first");
  }
  ReadFields(fields, row->options, &layer.options);
  if (names == nullptr) {
    if (row->several_inputs) {
      problems.Add(named->place, layer.spot.path,
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

// `inputs`: what the model's inputs are called.
Model ReadModel(Problems& problems, const Node& node, const std::string& path,
                const std::vector<std::string>& inputs) {
  Model model;
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
  std::set<std::string, std::less<>> taken(inputs.begin(), inputs.end());
  for (const Node& entry : list->list) {
    if (!entry.IsMap() || entry.members.size() != 1) continue;
    const Node* name = entry.members[0].value.Find("name");
    if (name == nullptr || !name->IsScalar()) continue;
    if (!taken.insert(name->scalar).second) {
      const size_t index = static_cast<size_t>(&entry - list->list.data());
      problems.Add(name->place,
                   list_path + "[" + std::to_string(index) + "]." + entry.members[0].key + ".name",
                   std::find(inputs.begin(), inputs.end(), name->scalar) != inputs.end()
                       ? "`" + Excerpt(name->scalar) + "` names the model's input"
                       : "another layer is named `" + Excerpt(name->scalar) + "` already");
    }
  }
  std::vector<std::string> names = inputs;
  for (size_t i = 0; i < list->list.size(); ++i) {
    auto layer = ReadLayer(problems, list->list[i], list_path + "[" + std::to_string(i) + "]",
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
    if (model.layers.size() != list->list.size()) return model;
    const auto layers = std::span(names).subspan(inputs.size());
    if (std::find(layers.begin(), layers.end(), model.output) == layers.end() && !layers.empty()) {
      fields->Wrong("output", "the name of a layer (" + Join(layers, ", ") + ")");
      return model;
    }
    // Layers stand behind those they use, so one walk from the end finds what the output needs.
    std::set<std::string, std::less<>> needed = {model.output};
    for (size_t i = model.layers.size(); i-- > 0;) {
      const Layer& layer = model.layers[i];
      if (needed.contains(layer.name)) {
        needed.insert(layer.inputs.begin(), layer.inputs.end());
      } else {
        problems.Add(layer.spot.place, layer.spot.path,
                     "layer `" + Excerpt(layer.name) + "` does not reach the output `" +
                         Excerpt(model.output) + "`");
      }
    }
  }
  return model;
}

Node WriteModel(const Model& model) {
  std::vector<Node> layers;
  for (const Layer& layer : model.layers) {
    const Entry* row = Layers().Find(layer.kind);
    Node options = Node::Map();
    options.Put("name", Node::Text(layer.name));
    if (row != nullptr) {
      for (Node::Member& member : WriteFields(row->options, &layer.options).members) {
        options.members.push_back(std::move(member));
      }
    }
    if (model.functional) options.Put("inputs", field::ToNode(layer.inputs));
    Node entry = Node::Map();
    entry.Put(layer.kind, std::move(options));
    layers.push_back(std::move(entry));
  }
  if (!model.functional) return Node::List(std::move(layers));
  Node node = Node::Map();
  node.Put("layers", Node::List(std::move(layers)));
  node.Put("output", Node::Text(model.output));
  return node;
}

}  // namespace

Field ModelField() {
  Field field = field::Own<Program>(
      "model", "a list of layers, a chain; or a map, a graph",
      [](Fields& in, Program& program) {
        if (const Node* node = in.Get("model")) {
          std::vector<std::string> inputs = Components(program);
          std::erase(inputs, kLabelName);
          program.model = ReadModel(in.problems(), *node, in.Path("model"), inputs);
        }
      },
      [](const Program& program) -> std::optional<Node> { return WriteModel(program.model); },
      {.about =
           "The layers. In a graph, {layers: [...], output: NAME}, a layer names its "
           "`inputs`: x (a component of the data), or layers before it. Each may have a `name`.",
       .sample = "[flatten, dense: {units: 10}, dense: {units: 3}]"});
  field.type = FieldType::kChoices;
  field.of = &Layers();
  field.required = true;
  return field;
}

}  // namespace meshtrain::manifest

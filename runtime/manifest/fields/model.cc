// `model`: a chain of layers, or a graph.
#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/catalogue.h"
#include "runtime/manifest/fields/fields.h"
#include "runtime/manifest/manifest.h"

namespace meshtrain::manifest {
namespace {

// Letters, digits and _, not a digit first. With dots: several of those, of which all but the first
// may be numbers, as a weight's path has them: "blocks.0.attention".
bool IsName(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  bool first = true;
  for (const std::string& part : Split(text, '.')) {
    const bool word = !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit(c) || c == '_';
    });
    const bool number = word && std::all_of(part.begin(), part.end(), digit);
    if (!word || (digit(part[0]) && (first || !number))) return false;
    first = false;
  }
  return true;
}
constexpr std::string_view kNameRule =
    "letters, digits and _, not a digit first, or several of those with dots between";

// Layers that stand in the text several times: `repeat`, in the place of a layer.
constexpr std::string_view kRepeat = "repeat";
// What its layers call what it is given.
constexpr std::string_view kBlockInput = "input";
// A mistake in a number must not fill the memory.
constexpr size_t kMostLayers = 20000;

// Reads a list of layers, with those that it repeats written out: layer `ln` of `repeat: {name:
// blocks, times: 2, ...}` becomes blocks.0.ln and blocks.1.ln.
class LayerList {
 public:
  // `graph`: whether layers name their inputs. `outer`: what may be named besides them, and what
  // errors say of such a name.
  LayerList(Problems& problems, bool graph, std::vector<std::string> outer,
            std::string_view outer_is)
      : problems_(problems), graph_(graph), outer_is_(outer_is), names_(std::move(outer)) {
    taken_.insert(names_.begin(), names_.end());
  }

  void Read(const Node& list, const std::string& path) {
    ClaimNames(list, path);
    for (size_t i = 0; i < list.list.size(); ++i) {
      const std::string at = path + "[" + std::to_string(i) + "]";
      const Node& entry = list.list[i];
      if (entry.IsMap() && entry.members.size() == 1 && entry.members[0].key == kRepeat) {
        Repeat(entry.members[0], at + "." + std::string(kRepeat));
      } else if (entry.IsScalar() && entry.scalar == kRepeat) {
        problems_.Add(entry.place, at, "expected `repeat: {times: N, layers: [...]}`, got: repeat");
        whole = false;
      } else {
        One(entry, at);
      }
    }
  }

  // In order, with what each takes.
  std::vector<Layer> layers;
  bool whole = true;   // no entry was left out because of a mistake
  bool linked = true;  // every input that is named is there

  // What may be named at the end of the list: layers and what was there before, the last one last.
  const std::vector<std::string>& names() const { return names_; }
  // The layer that `name` stands for: itself, or the last one of a repetition.
  std::string Resolved(const std::string& name) const {
    const auto alias = aliases_.find(name);
    return alias == aliases_.end() ? name : alias->second;
  }

 private:
  // Automatic names first need all that are given: `dense` is free unless some layer claims it.
  void ClaimNames(const Node& list, const std::string& path) {
    const std::set<std::string, std::less<>> outer = taken_;
    for (const Node& entry : list.list) {
      if (!entry.IsMap() || entry.members.size() != 1) continue;
      const Node* name = entry.members[0].value.Find("name");
      if (name == nullptr || !name->IsScalar()) continue;
      if (taken_.insert(name->scalar).second) continue;
      const size_t index = static_cast<size_t>(&entry - list.list.data());
      problems_.Add(name->place,
                    path + "[" + std::to_string(index) + "]." + entry.members[0].key + ".name",
                    outer.contains(name->scalar)
                        ? "`" + Excerpt(name->scalar) + "` " + std::string(outer_is_)
                        : "another layer is named `" + Excerpt(name->scalar) + "` already");
    }
  }

  std::string NameOf(Fields& fields, std::string_view kind) {
    std::string name = fields.Text("name");
    if (fields.Get("name") != nullptr) {
      if (!IsName(name)) fields.Wrong("name", kNameRule);
      return name;
    }
    name = kind;
    for (int n = 1; !taken_.insert(name).second; ++n) {
      name = std::string(kind) + "_" + std::to_string(n);
    }
    return name;
  }

  // What an entry's `inputs` name, as layers, `most` of them; the one before where it has none.
  std::vector<std::string> InputsOf(Fields& fields, size_t most) {
    std::vector<std::string> inputs;
    if (const Node* given = fields.Get("inputs")) {
      inputs = given->IsScalar() ? std::vector<std::string>{given->scalar} : fields.Texts("inputs");
    } else {
      inputs = {names_.back()};
    }
    for (std::string& input : inputs) {
      if (std::find(names_.begin(), names_.end(), input) == names_.end()) {
        linked = false;
        problems_.Add(
            fields.PlaceOf("inputs"), fields.Path("inputs"),
            "no layer before this one is named `" + Excerpt(input) + "`" + Suggest(input, names_));
      }
      input = Resolved(input);
    }
    if (inputs.empty() || inputs.size() > most) {
      fields.Wrong("inputs", most == 1   ? "one name"
                             : most == 2 ? "one name or two"
                                         : "at least one name");
    }
    return inputs;
  }

  void One(const Node& node, const std::string& path) {
    const auto named = ReadNamed(problems_, node, path, Layers().noun);
    const Entry* row = named ? Layers().Find(named->name) : nullptr;
    if (row == nullptr) {
      whole = false;
      if (!named) return;
      std::vector<std::string> known = Layers().names();
      known.emplace_back(kRepeat);
      problems_.Add(named->place, path,
                    "unknown layer `" + Excerpt(named->name) + "`" + Suggest(named->name, known));
      return;
    }
    Layer layer{.kind = named->name, .spot = {named->place, path + "." + named->name}};
    Fields fields(problems_, named->options, layer.spot.path, "option");
    ReadFields(fields, row->options, &layer.options);
    if (graph_) {
      layer.inputs = InputsOf(fields, row->several_inputs ? kMostLayers
                                      : row->second_input ? 2
                                                          : 1);
    } else if (row->several_inputs) {
      problems_.Add(named->place, layer.spot.path,
                    "takes several inputs: write the model as `layers:` with `inputs:`");
    }
    layer.name = NameOf(fields, layer.kind);
    names_.push_back(layer.name);
    layers.push_back(std::move(layer));
  }

  void Repeat(const Node::Member& entry, const std::string& path) {
    Fields fields(problems_, entry.value, path, "option");
    fields.Need("times");
    const int64_t times = fields.Int("times", 1, {.least = 1});
    const Node* list = fields.Need("layers");
    std::vector<std::string> visible = names_;
    std::vector<std::string> inputs;
    if (graph_) {
      inputs = InputsOf(fields, 1);
      visible.emplace_back(kBlockInput);
    }
    const std::string name = NameOf(fields, kRepeat);
    LayerList block(problems_, graph_, std::move(visible), "is a name from before the block");
    block.aliases_ = aliases_;
    if (!graph_) block.taken_.clear();  // nothing is named, so nothing can be confused
    if (list != nullptr && (!list->IsList() || list->list.empty())) {
      fields.Wrong("layers", "a list of layers");
      list = nullptr;
    }
    if (list != nullptr) block.Read(*list, path + ".layers");
    linked = linked && block.linked;
    std::string output = block.layers.empty() ? "" : block.names_.back();
    if (graph_) {
      output = fields.Text("output", output);
      const bool known = std::any_of(block.layers.begin(), block.layers.end(), [&](const Layer& l) {
        return l.name == block.Resolved(output);
      });
      if (!known && !block.layers.empty())
        fields.Wrong("output", "the name of a layer of `layers`");
      output = block.Resolved(output);
    }
    const auto copies = static_cast<size_t>(std::min<int64_t>(times, kMostLayers));
    if (layers.size() + block.layers.size() * copies > kMostLayers) {
      fields.Wrong("times", "at most " + std::to_string(kMostLayers) + " layers in all");
      names_.push_back(name);
      whole = false;
      return;
    }
    if (!block.whole || block.layers.empty()) {
      whole = false;
      names_.push_back(name);
      return;
    }
    std::set<std::string, std::less<>> own;
    for (const Layer& layer : block.layers) own.insert(layer.name);
    std::set<std::string, std::less<>> told;  // of a layer, once
    std::string given = inputs.empty() ? "" : inputs[0];
    for (int64_t copy = 0; copy < times; ++copy) {
      const std::string prefix = name + "." + std::to_string(copy) + ".";
      for (Layer layer : block.layers) {
        layer.name = prefix + layer.name;
        if (!taken_.insert(layer.name).second && told.insert(layer.spot.path).second) {
          problems_.Add(layer.spot.place, layer.spot.path,
                        "another layer is named `" + Excerpt(layer.name) +
                            "`, as this one is where it is written out");
        }
        for (std::string& input : layer.inputs) {
          if (own.contains(input)) {
            input = prefix + input;
          } else if (input == kBlockInput) {
            input = given;
          }
        }
        layers.push_back(std::move(layer));
      }
      if (graph_) given = prefix + output;
    }
    names_.push_back(name);
    aliases_[name] = given;
  }

  Problems& problems_;
  const bool graph_;
  const std::string_view outer_is_;
  std::vector<std::string> names_;
  std::set<std::string, std::less<>> taken_;
  std::map<std::string, std::string> aliases_;  // of repetitions, what they give
};

// What `outputs` says of the model; what is wrong with it is told where it is read.
struct Ends {
  std::vector<std::string> layers;
  std::vector<std::string> labels;
};
std::optional<Ends> EndsOf(const Node* outputs) {
  if (outputs == nullptr) return std::nullopt;
  Ends ends;
  for (const Node& output : outputs->list) {
    const Node *layer = output.Find("layer"), *labels = output.Find("labels");
    ends.layers.push_back(layer == nullptr ? "" : layer->scalar);
    ends.labels.push_back(labels == nullptr ? std::string(kLabelName) : labels->scalar);
  }
  return ends;
}

// What does not reach a layer of `ends`.
void CheckReached(Problems& problems, const Model& model, const std::vector<std::string>& ends) {
  // Layers stand behind those they use, so one walk from the end finds what the outputs need.
  std::set<std::string, std::less<>> needed(ends.begin(), ends.end());
  std::set<std::string> told;  // of copies that are repeated, once
  for (size_t i = model.layers.size(); i-- > 0;) {
    const Layer& layer = model.layers[i];
    if (needed.contains(layer.name)) {
      needed.insert(layer.inputs.begin(), layer.inputs.end());
    } else if (told.insert(layer.spot.path).second) {
      problems.Add(layer.spot.place, layer.spot.path,
                   "layer `" + Excerpt(layer.name) + "` does not reach " +
                       (ends.size() == 1 ? "the output `" : "any of the outputs `") +
                       Excerpt(Join(ends, "`, `")) + "`");
    }
  }
}

// `inputs`: what the model's inputs are called. `ends`: none: `output` says it.
Model ReadModel(Problems& problems, const Node& node, const std::string& path,
                const std::vector<std::string>& inputs, const std::optional<Ends>& ends) {
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
  LayerList read(problems, model.functional, inputs, "names the model's input");
  read.Read(*list, list_path);
  model.layers = std::move(read.layers);
  if (!model.functional) return model;
  if (ends) {
    if (fields->Get("output") != nullptr) {
      fields->Wrong("output",
                    "none beside `outputs`, which name the layers that the model ends with");
    }
    const bool known = std::all_of(ends->layers.begin(), ends->layers.end(), [&](const auto& name) {
      return std::any_of(model.layers.begin(), model.layers.end(),
                         [&](const Layer& layer) { return layer.name == name; });
    });
    if (read.whole && read.linked && known && !ends->layers.empty()) {
      CheckReached(problems, model, ends->layers);
    }
    return model;
  }
  const std::string output = fields->Text("output", read.names().back());
  model.output = read.Resolved(output);
  if (!read.whole) return model;
  const auto layers = std::span(read.names()).subspan(inputs.size());
  if (std::find(layers.begin(), layers.end(), output) == layers.end() && !layers.empty()) {
    fields->Wrong("output", "the name of a layer (" + Join(layers, ", ") + ")");
    return model;
  }
  if (read.linked) CheckReached(problems, model, {model.output});
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
  if (!model.output.empty()) node.Put("output", Node::Text(model.output));
  return node;
}

}  // namespace

Field ModelField() {
  Field field = field::Own<Program>(
      "model", "a list of layers, a chain; or a map, a graph",
      [](Fields& in, Program& program) {
        if (const Node* node = in.Get("model")) {
          const std::optional<Ends> ends = EndsOf(in.Get("outputs"));
          std::vector<std::string> inputs = Components(program);
          for (const std::string& labels :
               ends ? ends->labels : std::vector<std::string>{std::string(kLabelName)}) {
            std::erase(inputs, labels);
          }
          program.model = ReadModel(in.problems(), *node, in.Path("model"), inputs, ends);
        }
      },
      [](const Program& program) -> std::optional<Node> { return WriteModel(program.model); },
      {.about =
           "The layers. In a graph, {layers: [...], output: NAME}, a layer names its "
           "`inputs`: x (a component of the data), or layers before it. Each may have a `name`. "
           "`repeat: {name, times, layers}` in the place of a layer: those layers, so many times.",
       .sample = "[flatten, dense: {units: 10}, dense: {units: 3}]"});
  field.type = FieldType::kChoices;
  field.of = &Layers();
  field.required = true;
  return field;
}

}  // namespace meshtrain::manifest

#include "runtime/manifest/field.h"

#include "runtime/base/text.h"

namespace meshtrain::manifest {

std::string TypeText(const Field& field) {
  if (!field.type_text.empty()) return std::string(field.type_text);
  switch (field.type) {
    case FieldType::kInt:
      return field.bounds.ToString(true);
    case FieldType::kNumber:
      return field.bounds.ToString(false);
    case FieldType::kBool:
      return "true or false";
    case FieldType::kText:
      return "a text";
    case FieldType::kWord:
      return "one of " + Join(field.words, ", ");
    case FieldType::kInts:
      return "a list of whole numbers";
    case FieldType::kNumbers:
      return "a list, each " + field.bounds.ToString(false);
    case FieldType::kNumberOrNumbers:
      return field.bounds.ToString(false) + ", or a list of them";
    case FieldType::kTexts:
      return "a list of texts";
    case FieldType::kMap:
      return "a map";
    case FieldType::kMaps:
      return "a list of maps";
    case FieldType::kChoice:
      return "a " + std::string(field.of->noun);
    case FieldType::kChoices:
      return "a list, each a " + std::string(field.of->noun);
    case FieldType::kNumberOrChoice:
      return field.bounds.ToString(false) + ", or a " + std::string(field.of->noun);
    case FieldType::kOther:
      break;
  }
  return "";
}

const Entry* Catalogue::Find(std::string_view name) const {
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::vector<std::string> Catalogue::names() const {
  std::vector<std::string> all;
  for (const Entry& entry : entries) all.emplace_back(entry.name);
  return all;
}

void ReadFields(Fields& in, const std::vector<Field>& fields, void* out) {
  for (const Field& field : fields) {
    if (field.required) {
      if (in.Need(field.name) == nullptr) continue;
    }
    field.read(in, out);
  }
}

void ReadFields(Problems& problems, const Node& node, const std::string& path,
                const std::vector<Field>& fields, void* out, std::string_view noun) {
  Fields in(problems, node, path, noun);
  ReadFields(in, fields, out);
}

Node WriteFields(const std::vector<Field>& fields, const void* from) {
  Node node = Node::Map();
  for (const Field& field : fields) {
    if (auto value = field.write(from)) node.Put(field.name, std::move(*value));
  }
  return node;
}

std::optional<Choice> ReadChoice(Problems& problems, const Node& node, const std::string& path,
                                 const Catalogue& catalogue) {
  const auto named = ReadNamed(problems, node, path, catalogue.noun);
  if (!named) return std::nullopt;
  const Entry* entry = catalogue.Find(named->name);
  if (entry == nullptr) {
    problems.Add(named->place, path,
                 "unknown " + std::string(catalogue.noun) + " `" + Excerpt(named->name) + "`" +
                     Suggest(named->name, catalogue.names()));
    return std::nullopt;
  }
  Choice choice{
      .kind = named->name, .options = {}, .spot = {named->place, path + "." + named->name}};
  if (entry->direct) {
    if (node.IsScalar()) {
      problems.Add(node.place, path,
                   "expected `" + named->name + "` with its value, got: " + node.Describe());
      return std::nullopt;
    }
    ReadFields(problems, node, path, entry->options, &choice.options, "option");
  } else {
    ReadFields(problems, named->options, choice.spot.path, entry->options, &choice.options,
               "option");
  }
  return choice;
}

Node WriteChoice(const Choice& choice, const Catalogue& catalogue) {
  Node node = Node::Map();
  const Entry* entry = catalogue.Find(choice.kind);
  Node options = entry == nullptr ? Node::Map() : WriteFields(entry->options, &choice.options);
  if (options.members.empty()) return Node::Word(choice.kind);
  if (entry->direct) return options;
  node.Put(choice.kind, std::move(options));
  return node;
}

namespace field {

Field Path(Field text) {
  text.type_text = "a path";
  text.read = [name = text.name, read = text.read](Fields& in, void* out) {
    const Node* node = in.Get(name);
    if (node != nullptr && node->IsScalar() && node->scalar.empty())
      return in.Wrong(name, "a path");
    read(in, out);
  };
  return text;
}

Node ToNode(const std::vector<std::string>& values) {
  std::vector<Node> items;
  for (const std::string& value : values) items.push_back(Node::Text(value));
  return Node::List(std::move(items));
}

Node ToNode(const std::vector<int64_t>& values) {
  std::vector<Node> items;
  for (const int64_t value : values) items.push_back(ToNode(value));
  return Node::List(std::move(items));
}

Node ToNode(const std::vector<double>& values) {
  std::vector<Node> items;
  for (const double value : values) items.push_back(ToNode(value));
  return Node::List(std::move(items));
}

}  // namespace field

namespace option {
namespace {

// `get(in)`: the value that the text gives.
template <typename T, typename Get>
Field Plain(std::string_view name, FieldType type, Get get, const Says& says) {
  Field field{.name = name, .type = type, .says = says};
  field.read = [name, get](Fields& in, void* out) {
    if (in.Get(name) != nullptr) static_cast<Options*>(out)->Set(name, get(in));
  };
  field.write = [name](const void* from) -> std::optional<Node> {
    const Value* value = static_cast<const Options*>(from)->Find(name);
    if (value == nullptr) return std::nullopt;
    return field::ToNode(std::get<T>(*value));
  };
  return field;
}

}  // namespace

Field Int(std::string_view name, const Bounds& bounds, const Says& says) {
  Field field = Plain<int64_t>(
      name, FieldType::kInt, [=](Fields& in) { return in.Int(name, 0, bounds); }, says);
  field.bounds = bounds;
  return field;
}

Field Number(std::string_view name, const Bounds& bounds, const Says& says) {
  Field field = Plain<double>(
      name, FieldType::kNumber, [=](Fields& in) { return in.Number(name, 0, bounds); }, says);
  field.bounds = bounds;
  return field;
}

Field Bool(std::string_view name, const Says& says) {
  return Plain<bool>(
      name, FieldType::kBool, [=](Fields& in) { return in.Bool(name, false); }, says);
}

Field Text(std::string_view name, const Says& says) {
  return Plain<std::string>(
      name, FieldType::kText, [=](Fields& in) { return in.Text(name); }, says);
}

Field Word(std::string_view name, std::vector<std::string> words, const Says& says) {
  Field field = Plain<std::string>(
      name, FieldType::kWord, [=](Fields& in) { return in.Choice(name, words, words[0]); }, says);
  field.words = std::move(words);
  return field;
}

Field Ints(std::string_view name, const Says& says) {
  return Plain<std::vector<int64_t>>(
      name, FieldType::kInts, [=](Fields& in) { return in.Ints(name); }, says);
}

Field Numbers(std::string_view name, const Bounds& bounds, const Says& says) {
  Field field = Plain<std::vector<double>>(
      name, FieldType::kNumbers, [=](Fields& in) { return in.Numbers(name, bounds); }, says);
  field.bounds = bounds;
  return field;
}

Field NumberOrNumbers(std::string_view name, const Bounds& bounds, const Says& says) {
  Field field{.name = name, .type = FieldType::kNumberOrNumbers, .says = says, .bounds = bounds};
  field.read = [name, bounds, wanted = TypeText(field)](Fields& in, void* out) {
    const Node* node = in.Get(name);
    if (node == nullptr) return;
    if (node->IsList() ? node->list.empty() : !node->AsDouble()) {
      in.Wrong(name, wanted);
    } else if (node->IsList()) {
      static_cast<Options*>(out)->Set(name, in.Numbers(name, bounds));
    } else {
      static_cast<Options*>(out)->Set(name, std::vector<double>{in.Number(name, 0, bounds)});
    }
  };
  field.write = [name](const void* from) -> std::optional<Node> {
    const auto numbers = static_cast<const Options*>(from)->Numbers(name);
    if (!numbers) return std::nullopt;
    return numbers->size() == 1 ? field::ToNode(numbers->front()) : field::ToNode(*numbers);
  };
  return field;
}

Field Texts(std::string_view name, const Says& says) {
  return Plain<std::vector<std::string>>(
      name, FieldType::kTexts, [=](Fields& in) { return in.Texts(name); }, says);
}

Field OneOf(std::string_view name, const Catalogue& catalogue, const Says& says) {
  Field field{.name = name, .type = FieldType::kChoice, .says = says, .of = &catalogue};
  field.read = [name, &catalogue](Fields& in, void* out) {
    const Node* node = in.Get(name);
    if (node == nullptr) return;
    if (auto choice = ReadChoice(in.problems(), *node, in.Path(name), catalogue)) {
      static_cast<Options*>(out)->Set(name, std::vector<Choice>{std::move(*choice)});
    }
  };
  field.write = [name, &catalogue](const void* from) -> std::optional<Node> {
    const Choice* choice = static_cast<const Options*>(from)->Chosen(name);
    if (choice == nullptr) return std::nullopt;
    return WriteChoice(*choice, catalogue);
  };
  return field;
}

Field NumberOrOneOf(std::string_view name, const Bounds& bounds, const Catalogue& catalogue,
                    const Says& says) {
  Field field = OneOf(name, catalogue, says);
  field.type = FieldType::kNumberOrChoice;
  field.bounds = bounds;
  const auto is_map = [name](Fields& in) {
    const Node* node = in.Get(name);
    return node != nullptr && node->IsMap();
  };
  const Field number = Number(name, bounds, says);
  field.read = [is_map, choice = field.read, plain = number.read](Fields& in, void* out) {
    (is_map(in) ? choice : plain)(in, out);
  };
  field.write = [name, choice = field.write,
                 plain = number.write](const void* from) -> std::optional<Node> {
    const bool chosen = static_cast<const Options*>(from)->Chosen(name) != nullptr;
    return (chosen ? choice : plain)(from);
  };
  return field;
}

Field Group(std::string_view name, std::vector<Field> fields, const Says& says) {
  Field field{.name = name, .type = FieldType::kMap, .says = says, .fields = fields};
  field.read = [name, fields](Fields& in, void* out) {
    const Node* node = in.Get(name);
    if (node == nullptr) return;
    Choice group{.kind = "", .options = {}, .spot = {node->place, in.Path(name)}};
    ReadFields(in.problems(), *node, in.Path(name), fields, &group.options, "option");
    static_cast<Options*>(out)->Set(name, std::vector<Choice>{std::move(group)});
  };
  field.write = [name, fields](const void* from) -> std::optional<Node> {
    const Choice* group = static_cast<const Options*>(from)->Chosen(name);
    if (group == nullptr) return std::nullopt;
    return WriteFields(fields, &group->options);
  };
  return field;
}

}  // namespace option

}  // namespace meshtrain::manifest

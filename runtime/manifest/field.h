// One row per field of the manifest. From a row come the field's reader and writer, its check, its
// text in the CRD and its line of the reference page; and it names what shows that the field acts,
// which tests/runtime/trainer/job/acts_test.cc looks at under every strategy.
//
//   field::Int("seed", &Program::seed, {}, {.about = "...", .sample = "7"})
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/manifest/node.h"
#include "runtime/manifest/program.h"
#include "runtime/manifest/reader.h"

namespace meshtrain::manifest {

// Where one sees that a field acts.
enum class Shows : uint8_t {
  kPlan,     // the traced programs, their layouts or their plan
  kData,     // the pipelines
  kLoop,     // epochs, validation, when to stop
  kSums,     // how the mesh's devices or processes add up
  kServers,  // how parameter servers hold variables, and how their steps are scheduled
  kWeights,  // the values that training begins with
  kSaving,   // checkpoints
  kNumbers,  // the arithmetic
  kText,     // what the trained model writes
  kPermits,  // something that is refused without it
};

// What a row says to people and to the test of all rows.
struct Says {
  std::string_view about;          // a sentence
  std::string_view fallback = "";  // what holds without the field
  Shows shows = Shows::kPlan;
  // A value, as YAML, that must show, or be refused with the field's place. "": the field only
  // holds others.
  std::string_view sample = "";
  // More of the program that the sample needs, as YAML.
  std::string_view context = "";
};

struct Catalogue;

enum class FieldType : uint8_t {
  kInt,
  kNumber,
  kBool,
  kText,
  kWord,  // one of `words`
  kInts,
  kNumbers,
  kNumberOrNumbers,
  kTexts,
  kMap,     // of `fields`
  kMaps,    // a list of maps of `fields`
  kChoice,  // one of `of`
  kChoices,
  kNumberOrChoice,
  kOther,  // `type_text`
};

struct Field {
  std::string_view name;
  FieldType type = FieldType::kOther;
  Says says;
  bool required = false;
  Bounds bounds = {};
  std::vector<std::string> words = {};
  std::vector<Field> fields = {};
  const Catalogue* of = nullptr;
  std::string_view type_text = "";
  // Reads the member `name` of a map into an object of the row's own type, and writes it from one;
  // nothing where it holds what holds without the field.
  std::function<void(Fields& in, void* out)> read = {};
  std::function<std::optional<Node>(const void* from)> write = {};
};

// "a whole number of at least 1", "one of fast, strict".
std::string TypeText(const Field& field);

// A row of a catalogue: something that a manifest can choose by name.
struct Entry {
  std::string_view name;
  std::string_view about;
  std::vector<Field> options = {};
  bool several_inputs = false;  // of a layer
  bool second_input = false;    // of a layer: in a graph it may have one
  // Of a source: what the components of its examples are called, the labels `y`.
  std::vector<std::string> components = {"x", "y"};
  std::string_view more_components = "";  // of a source: its option that names more of them, a map
  // Of a layer: the weights that it will make, with their ranks.
  std::function<std::vector<std::pair<std::string, int>>(const Options&)> weights = {};
  // Of a loss: labels say which one of several classes is right.
  bool one_of_classes = false;
  bool direct = false;  // its one option, of the same name, is the value: `scale: 0.5`
};
struct Catalogue {
  std::string_view noun;  // "layer"
  std::vector<Entry> entries;
  const Entry* Find(std::string_view name) const;
  std::vector<std::string> names() const;
};

// Reads the members of a map, each by its row; `out` is an object of the rows' type.
void ReadFields(Problems& problems, const Node& node, const std::string& path,
                const std::vector<Field>& fields, void* out, std::string_view noun = "field");
void ReadFields(Fields& in, const std::vector<Field>& fields, void* out);
Node WriteFields(const std::vector<Field>& fields, const void* from);

// `name`, or `name: {options}`, of a catalogue. Nothing, with a mistake told, where it is neither.
std::optional<Choice> ReadChoice(Problems& problems, const Node& node, const std::string& path,
                                 const Catalogue& catalogue);
Node WriteChoice(const Choice& choice, const Catalogue& catalogue);

namespace field {

inline Node ToNode(bool value) { return Node::Word(value ? "true" : "false"); }
inline Node ToNode(int64_t value) { return Node::Word(std::to_string(value)); }
inline Node ToNode(double value) { return Node::Number(value); }
inline Node ToNode(const std::string& value) { return Node::Text(value); }
Node ToNode(const std::vector<std::string>& values);
Node ToNode(const std::vector<int64_t>& values);
Node ToNode(const std::vector<double>& values);

inline Field Required(Field field) {
  field.required = true;
  return field;
}
inline Field Titled(Field field, std::string_view type_text) {
  field.type_text = type_text;
  return field;
}

// A row of a text that is a path: not an empty one.
Field Path(Field text);

// A row whose member is of a plain type T; `get(in, fallback)` reads it.
template <typename S, typename T, typename Get>
Field Plain(std::string_view name, FieldType type, T S::*member, Get get, const Says& says) {
  Field field{.name = name, .type = type, .says = says};
  field.read = [member, get](Fields& in, void* out) {
    T& value = static_cast<S*>(out)->*member;
    value = get(in, value);
  };
  field.write = [member](const void* from) -> std::optional<Node> {
    const T& value = static_cast<const S*>(from)->*member;
    if (value == S{}.*member) return std::nullopt;
    return ToNode(value);
  };
  return field;
}
template <typename S, typename T, typename Get>
Field Plain(std::string_view name, FieldType type, std::optional<T> S::*member, Get get,
            const Says& says) {
  Field field{.name = name, .type = type, .says = says};
  field.read = [name, member, get](Fields& in, void* out) {
    if (in.Get(name) != nullptr) static_cast<S*>(out)->*member = get(in, T{});
  };
  field.write = [member](const void* from) -> std::optional<Node> {
    const std::optional<T>& value = static_cast<const S*>(from)->*member;
    if (!value) return std::nullopt;
    return ToNode(*value);
  };
  return field;
}

template <typename S, typename M>  // M: int64_t, or optional of it
Field Int(std::string_view name, M S::*member, const Bounds& bounds, const Says& says) {
  Field field = Plain(
      name, FieldType::kInt, member,
      [name, bounds](Fields& in, int64_t fallback) { return in.Int(name, fallback, bounds); },
      says);
  field.bounds = bounds;
  return field;
}
template <typename S, typename M>
Field Number(std::string_view name, M S::*member, const Bounds& bounds, const Says& says) {
  Field field = Plain(
      name, FieldType::kNumber, member,
      [name, bounds](Fields& in, double fallback) { return in.Number(name, fallback, bounds); },
      says);
  field.bounds = bounds;
  return field;
}
template <typename S, typename M>
Field Bool(std::string_view name, M S::*member, const Says& says) {
  return Plain(
      name, FieldType::kBool, member,
      [name](Fields& in, bool fallback) { return in.Bool(name, fallback); }, says);
}
template <typename S>
Field Text(std::string_view name, std::string S::*member, const Says& says) {
  return Plain(
      name, FieldType::kText, member,
      [name](Fields& in, const std::string& fallback) { return in.Text(name, fallback); }, says);
}
template <typename S>
Field Texts(std::string_view name, std::vector<std::string> S::*member, const Says& says) {
  return Plain(
      name, FieldType::kTexts, member,
      [name](Fields& in, const std::vector<std::string>&) { return in.Texts(name); }, says);
}

// The words are those of an enum (or false, true) in its order.
template <typename E>
E ReadWord(Fields& in, std::string_view name, const std::vector<std::string>& words, E fallback) {
  const std::string word = in.Choice(name, words, words[static_cast<size_t>(fallback)]);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return static_cast<E>(i);
  }
  return fallback;
}
template <typename S, typename E>
Field Word(std::string_view name, E S::*member, const std::vector<std::string>& words,
           const Says& says) {
  Field field{.name = name, .type = FieldType::kWord, .says = says, .words = words};
  field.read = [=](Fields& in, void* out) {
    E& value = static_cast<S*>(out)->*member;
    value = ReadWord(in, name, words, value);
  };
  field.write = [=](const void* from) -> std::optional<Node> {
    const E value = static_cast<const S*>(from)->*member;
    if (value == S{}.*member) return std::nullopt;
    return Node::Word(words[static_cast<size_t>(value)]);
  };
  return field;
}
// The word itself.
template <typename S>
Field Word(std::string_view name, std::string S::*member, const std::vector<std::string>& words,
           const Says& says) {
  Field field{.name = name, .type = FieldType::kWord, .says = says, .words = words};
  field.read = [=](Fields& in, void* out) {
    std::string& value = static_cast<S*>(out)->*member;
    value = in.Choice(name, words, value);
  };
  field.write = [=](const void* from) -> std::optional<Node> {
    const std::string& value = static_cast<const S*>(from)->*member;
    if (value == S{}.*member) return std::nullopt;
    return Node::Word(value);
  };
  return field;
}

template <typename S, typename T>
Field Map(std::string_view name, T S::*member, std::vector<Field> fields, const Says& says) {
  Field field{.name = name, .type = FieldType::kMap, .says = says, .fields = fields};
  field.read = [name, member, fields](Fields& in, void* out) {
    if (const Node* node = in.Get(name)) {
      ReadFields(in.problems(), *node, in.Path(name), fields, &(static_cast<S*>(out)->*member));
    }
  };
  field.write = [member, fields](const void* from) -> std::optional<Node> {
    Node node = WriteFields(fields, &(static_cast<const S*>(from)->*member));
    if (node.members.empty()) return std::nullopt;
    return node;
  };
  return field;
}
template <typename S, typename T>
Field Map(std::string_view name, std::optional<T> S::*member, std::vector<Field> fields,
          const Says& says) {
  Field field{.name = name, .type = FieldType::kMap, .says = says, .fields = fields};
  field.read = [name, member, fields](Fields& in, void* out) {
    if (const Node* node = in.Get(name)) {
      ReadFields(in.problems(), *node, in.Path(name), fields,
                 &(static_cast<S*>(out)->*member).emplace());
    }
  };
  field.write = [member, fields](const void* from) -> std::optional<Node> {
    const auto& value = static_cast<const S*>(from)->*member;
    if (!value) return std::nullopt;
    return WriteFields(fields, &*value);
  };
  return field;
}

// One of a catalogue.
template <typename S>
Field OneOf(std::string_view name, Choice S::*member, const Catalogue& catalogue,
            const Says& says) {
  Field field{.name = name, .type = FieldType::kChoice, .says = says, .of = &catalogue};
  field.read = [name, member, &catalogue](Fields& in, void* out) {
    const Node* node = in.Get(name);
    if (node == nullptr) return;
    if (auto choice = ReadChoice(in.problems(), *node, in.Path(name), catalogue)) {
      static_cast<S*>(out)->*member = std::move(*choice);
    }
  };
  field.write = [member, &catalogue](const void* from) -> std::optional<Node> {
    const Choice& choice = static_cast<const S*>(from)->*member;
    if (choice.kind.empty()) return std::nullopt;
    return WriteChoice(choice, catalogue);
  };
  return field;
}

// What no row above fits: `read` and `write` are the row's own.
template <typename S>
Field Own(std::string_view name, std::string_view type_text, void (*read)(Fields&, S&),
          std::optional<Node> (*write)(const S&), const Says& says,
          std::vector<Field> fields = {}) {
  Field field{.name = name, .says = says, .fields = std::move(fields), .type_text = type_text};
  field.read = [read](Fields& in, void* out) { read(in, *static_cast<S*>(out)); };
  field.write = [write](const void* from) { return write(*static_cast<const S*>(from)); };
  return field;
}

}  // namespace field

// Rows of what a catalogue's entries take: they read into Options, where the text gives them.
namespace option {

Field Int(std::string_view name, const Bounds& bounds, const Says& says);
Field Number(std::string_view name, const Bounds& bounds, const Says& says);
Field Bool(std::string_view name, const Says& says);
Field Text(std::string_view name, const Says& says);
Field Word(std::string_view name, std::vector<std::string> words, const Says& says);
Field Ints(std::string_view name, const Says& says);
Field Numbers(std::string_view name, const Bounds& bounds, const Says& says);
// A number, or a list of them: as the numbers of Options, a number as a list of one.
Field NumberOrNumbers(std::string_view name, const Bounds& bounds, const Says& says);
Field Texts(std::string_view name, const Says& says);
Field OneOf(std::string_view name, const Catalogue& catalogue, const Says& says);
// A number, or one of a catalogue.
Field NumberOrOneOf(std::string_view name, const Bounds& bounds, const Catalogue& catalogue,
                    const Says& says);
Field Group(std::string_view name, std::vector<Field> fields, const Says& says);

}  // namespace option

}  // namespace meshtrain::manifest

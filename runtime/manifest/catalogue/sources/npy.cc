#include <string>
#include <utility>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::sources {
namespace {

constexpr std::string_view kMore = "more";

// A group of options whose names the text chooses: components, each with its file.
Field More() {
  Field field{.name = kMore,
              .says = {.about = "Files of more components, as many elements each: other inputs of "
                                "the model, labels of other outputs.",
                       .fallback = "none",
                       .shows = Shows::kData,
                       .sample = "{other: other.npy}"},
              .type_text = "a map from names of components to paths"};
  field.read = [](Fields& in, void* out) {
    const Node* node = in.Get(kMore);
    if (node == nullptr) return;
    if (!node->IsMap()) return in.Wrong(kMore, "a map from names of components to paths");
    Choice files{.kind = "", .options = {}, .spot = {node->place, in.Path(kMore)}};
    for (const Node::Member& member : node->members) {
      const std::string at = in.Path(kMore) + "." + member.key;
      if (!IsPlainName(member.key) || member.key == "x" || member.key == "y") {
        in.problems().Add(
            member.place, at,
            "expected a name of small letters, digits and _ that is not x or y, got: " +
                Excerpt(member.key));
      } else if (!member.value.IsScalar() || member.value.scalar.empty()) {
        in.problems().Add(member.value.place, at,
                          "expected a path, got: " + member.value.Describe());
      } else {
        files.options.Set(member.key, member.value.scalar);
      }
    }
    if (!files.options.empty()) {
      static_cast<Options*>(out)->Set(kMore, std::vector<Choice>{std::move(files)});
    }
  };
  field.write = [](const void* from) -> std::optional<Node> {
    const Choice* files = static_cast<const Options*>(from)->Chosen(kMore);
    if (files == nullptr) return std::nullopt;
    Node node = Node::Map();
    for (const std::string& name : files->options.names()) {
      node.Put(name, Node::Text(files->options.Text(name)));
    }
    return node;
  };
  return field;
}

}  // namespace

Entry Npy() {
  std::vector<Field> options = FilesAndLabels("The file of features, an array [examples, ...].",
                                              "The file of labels, as many.", "other.npy");
  options.push_back(More());
  return {.name = "npy",
          .about = "Arrays as `numpy.save` leaves them, read a batch at a time.",
          .options = std::move(options),
          .more_components = kMore};
}

}  // namespace meshtrain::manifest::sources

#include "runtime/base/text.h"

#include <array>
#include <utility>

#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::sources {
namespace {

// Bytes, each once, or a character would have two numbers.
Field Alphabet() {
  Field field = option::Text(
      "alphabet", {.about = "The characters, of a byte each, in the order of their numbers, "
                            "from 0. Another one in the text is an error.",
                   .fallback = "a byte is its own number, 0 to 255",
                   .shows = Shows::kData,
                   .sample = "abc"});
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Node* node = in.Get("alphabet");
    if (node == nullptr || !node->IsScalar()) return;
    const std::string& alphabet = node->scalar;
    if (alphabet.empty()) in.Wrong("alphabet", "at least one character");
    std::array<bool, 256> seen{};
    for (size_t i = 0; i < alphabet.size(); ++i) {
      if (!std::exchange(seen[static_cast<uint8_t>(alphabet[i])], true)) continue;
      in.problems().Add(node->place, in.Path("alphabet"),
                        "expected each character once, got: `" + Excerpt(alphabet.substr(i, 1)) +
                            "` again at byte " + std::to_string(i));
      return;
    }
  };
  return field;
}

// A part is of a text that is cut.
Field Subset() {
  Field field = option::Word("subset", {"training", "validation"},
                             {.about = "Which part of it this is.",
                              .fallback = "training",
                              .shows = Shows::kData,
                              .sample = "validation",
                              .context = "{validation_split: 0.25}"});
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Node* subset = in.Get("subset");
    const bool clean =
        in.problems().Clean(in.Path("subset")) && in.problems().Clean(in.Path("validation_split"));
    if (subset == nullptr || !clean) return;
    if (static_cast<const Options*>(out)->Number("validation_split", 0) > 0) return;
    const Node* split = in.Get("validation_split");
    in.problems().Add(subset->place, in.Path("subset"),
                      "expected a validation_split above 0 beside it, got: " +
                          (split == nullptr ? "none" : split->Describe()));
  };
  return field;
}

}  // namespace

Entry Text() {
  return {.name = "text",
          .about =
              "Windows of a plain text: x, the numbers of its characters, and y, those of the "
              "characters that follow each.",
          .options = {
              field::Required(field::Path(option::Text(
                  "file", {.about = "The text.", .shows = Shows::kData, .sample = "other.txt"}))),
              field::Required(option::Int(
                  "length", {.least = 1, .most = 1 << 30},
                  {.about = "Characters of a window.", .shows = Shows::kData, .sample = "16"})),
              option::Int("stride", {.least = 1},
                          {.about = "Characters from the start of a window to that of the next.",
                           .fallback = "length",
                           .shows = Shows::kData,
                           .sample = "8"}),
              Alphabet(),
              option::Number("validation_split", {.least = 0, .below = 1},
                             {.about = "The share of the text, at its end, that is kept for "
                                       "validation.",
                              .fallback = "0",
                              .shows = Shows::kData,
                              .sample = "0.25"}),
              Subset()}};
}

}  // namespace meshtrain::manifest::sources

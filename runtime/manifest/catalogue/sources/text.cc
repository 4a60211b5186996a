#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::sources {

Entry Text() {
  return {
      .name = "text",
      .about =
          "Windows of a plain text: x, the numbers of its characters, and y, those of the "
          "characters that follow each.",
      .options = {
          field::Required(option::Text(
              "file", {.about = "The text.", .shows = Shows::kData, .sample = "other.txt"})),
          field::Required(option::Int(
              "length", {.least = 1},
              {.about = "Characters of a window.", .shows = Shows::kData, .sample = "16"})),
          option::Int("stride", {.least = 1},
                      {.about = "Characters from the start of a window to that of the next.",
                       .fallback = "length",
                       .shows = Shows::kData,
                       .sample = "8"}),
          option::Text("alphabet",
                       {.about = "The characters, of a byte each, in the order of their numbers, "
                                 "from 0. Another one in the text is an error.",
                        .fallback = "a byte is its own number, 0 to 255",
                        .shows = Shows::kData,
                        .sample = "abc"}),
          option::Number("validation_split", {.least = 0, .below = 1},
                         {.about = "The share of the text, at its end, that is kept for "
                                   "validation.",
                          .fallback = "0",
                          .shows = Shows::kData,
                          .sample = "0.25"}),
          option::Word("subset", {"training", "validation"},
                       {.about = "Which part of it this is.",
                        .fallback = "training",
                        .shows = Shows::kData,
                        .sample = "validation",
                        .beside = "{validation_split: 0.25}"})}};
}

}  // namespace meshtrain::manifest::sources

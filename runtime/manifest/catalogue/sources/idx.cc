#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::sources {

Entry Idx() {
  return {.name = "idx",
          .about = "Files as MNIST's, gzipped or not.",
          .options = {
              field::Required(option::Text(
                  "images",
                  {.about = "The file of features.", .shows = Shows::kData, .sample = "other.gz"})),
              field::Required(option::Text(
                  "labels",
                  {.about = "The file of labels.", .shows = Shows::kData, .sample = "other.gz"})),
              option::Word("labels_as", {"i32", "i64", "f32", "f64"},
                           {.about = "The type of labels. One that it would cut is an error.",
                            .fallback = "the file's, u8 as i32",
                            .shows = Shows::kData,
                            .sample = "i64"})}};
}

}  // namespace meshtrain::manifest::sources

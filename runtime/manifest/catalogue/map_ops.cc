#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {

const Catalogue& MapOps() {
  static const Catalogue kMapOps = {
      .noun = "map operation",
      .entries = {
          {.name = "scale",
           .about = "x times this, in f32 (f64 stays f64).",
           .options = {field::Required(option::Number(
               "scale", {}, {.about = "The factor.", .shows = Shows::kData, .sample = "0.5"}))},
           .direct = true},
          {.name = "normalize",
           .about = "(x - mean) / deviation, in f32 (f64 stays f64).",
           .options = {option::Number("mean", {},
                                      {.about = "What is taken off.",
                                       .fallback = "0",
                                       .shows = Shows::kData,
                                       .sample = "0.5"}),
                       option::Number("deviation", {.not_zero = true},
                                      {.about = "What is divided by.",
                                       .fallback = "1",
                                       .shows = Shows::kData,
                                       .sample = "0.5"})}},
          {.name = "cast",
           .about = "Another type; towards zero, saturating.",
           .options = {field::Required(
               option::Word("cast", {"f32", "f64", "i32", "i64", "u8"},
                            {.about = "The type.", .shows = Shows::kData, .sample = "f64"}))},
           .direct = true},
      }};
  return kMapOps;
}

}  // namespace meshtrain::manifest

#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

// Left and right, or it is said what else.
Field Horizontal() {
  Field field = option::Bool("horizontal", {.about = "Left and right change places.",
                                            .fallback = "true",
                                            .shows = Shows::kData,
                                            .sample = "false",
                                            .context = "{vertical: true}"});
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Node *across = in.Get("horizontal"), *down = in.Get("vertical");
    if (across == nullptr || across->AsBool() != false) return;
    if (down == nullptr || down->AsBool() == false) {
      in.Wrong("horizontal", "true, or `vertical: true` beside it");
    }
  };
  return field;
}

// [height, width], each of at least 1.
Field HeightAndWidth(const Says& says) {
  Field field = option::Ints("size", says);
  field.read = [](Fields& in, void* out) {
    const Node* node = in.Get("size");
    if (node == nullptr) return;
    const std::vector<int64_t> size = in.Ints("size");
    const bool two = node->IsList() && node->list.size() == 2;
    if (!two || (size.size() == 2 && (size[0] < 1 || size[1] < 1))) {
      in.Wrong("size", "[height, width], each at least 1");
    } else if (size.size() == 2) {
      static_cast<Options*>(out)->Set("size", size);
    }
  };
  field.type_text = "[height, width]";
  return field;
}

}  // namespace

const Catalogue& MapOps() {
  static const Catalogue kMapOps = {
      .noun = "map operation",
      .entries = {
          {.name = "scale",
           .about = "x times this, in f32 (f64 stays f64).",
           .options = {field::Required(
               option::Number("scale", {.not_zero = true},
                              {.about = "The factor.", .shows = Shows::kData, .sample = "0.5"}))},
           .direct = true},
          {.name = "normalize",
           .about = "(x - mean) / deviation, in f32 (f64 stays f64). A list has a number for each "
                    "channel: for each place in the last dimension.",
           .options = {option::NumberOrNumbers("mean", {},
                                               {.about = "What is taken off.",
                                                .fallback = "0",
                                                .shows = Shows::kData,
                                                .sample = "0.5"}),
                       option::NumberOrNumbers("deviation", {.above = 0},
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
          {.name = "random_flip",
           .about = "In training, each image is mirrored or not, as is drawn for each example in "
                    "each pass.",
           .options = {Horizontal(),
                       option::Bool("vertical", {.about = "Top and bottom change places, "
                                                          "drawn by itself.",
                                                 .fallback = "false",
                                                 .shows = Shows::kData,
                                                 .sample = "true"})}},
          {.name = "random_crop",
           .about = "In training, a part of the image from a place that is drawn for each example "
                    "in each pass; else the part in the middle.",
           .options = {field::Required(HeightAndWidth({.about = "The size of the part.",
                                                       .shows = Shows::kData,
                                                       .sample = "[4, 4]"})),
                       option::Int("padding", {.least = 0, .most = 1 << 20},
                                   {.about = "Rows and columns of zeros that are laid around the "
                                             "image first.",
                                    .fallback = "0",
                                    .shows = Shows::kData,
                                    .sample = "4"})}},
      }};
  return kMapOps;
}

}  // namespace meshtrain::manifest

#include "runtime/manifest/catalogue/rows.h"

namespace meshtrain::manifest::layers {
namespace {

Entry Of(std::string_view name, std::string_view about) {
  return {.name = name,
          .about = about,
          .options = {
              field::Required(option::Ints(
                  "pool_size", {.about = "The window's size in each spatial dimension; one number "
                                         "is for all.",
                                .sample = "[3]"})),
              option::Ints("strides", {.about = "The steps of the window, likewise.",
                                       .fallback = "the window's size",
                                       .sample = "[1]"}),
              option::Word("padding", {"valid", "same"},
                           {.about = "Whether windows lie inside, or the output has as many "
                                     "positions as strides fit into the input.",
                            .fallback = "valid",
                            .sample = "same"}),
          }};
}

Entry Global(std::string_view name, std::string_view about) {
  return {.name = name,
          .about = about,
          .options = {
              option::Bool("keep_dims", {.about = "Whether the spatial dimensions stay, of size 1.",
                                         .fallback = "false",
                                         .sample = "true"})}};
}

}  // namespace

Entry MaxPooling1d() { return Of("max_pooling_1d", "The largest of each window of a length."); }
Entry MaxPooling2d() { return Of("max_pooling_2d", "The largest of each window of a plane."); }
Entry MaxPooling3d() { return Of("max_pooling_3d", "The largest of each window of a volume."); }
Entry AveragePooling1d() {
  return Of("average_pooling_1d", "The mean of each window of a length.");
}
Entry AveragePooling2d() { return Of("average_pooling_2d", "The mean of each window of a plane."); }
Entry AveragePooling3d() {
  return Of("average_pooling_3d", "The mean of each window of a volume.");
}
Entry GlobalMaxPooling1d() { return Global("global_max_pooling_1d", "The largest of a length."); }
Entry GlobalMaxPooling2d() { return Global("global_max_pooling_2d", "The largest of a plane."); }
Entry GlobalMaxPooling3d() { return Global("global_max_pooling_3d", "The largest of a volume."); }
Entry GlobalAveragePooling1d() {
  return Global("global_average_pooling_1d", "The mean of a length.");
}
Entry GlobalAveragePooling2d() {
  return Global("global_average_pooling_2d", "The mean of a plane.");
}
Entry GlobalAveragePooling3d() {
  return Global("global_average_pooling_3d", "The mean of a volume.");
}

}  // namespace meshtrain::manifest::layers

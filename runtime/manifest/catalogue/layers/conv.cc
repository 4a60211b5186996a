#include <utility>

#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
namespace {

// What follows `own` in every convolution.
template <int kSpatial>
Entry Of(std::string_view name, std::string_view about, std::vector<Field> own) {
  for (Field& field : std::vector<Field>{
           field::Required(option::Ints(
               "kernel_size",
               {.about = "The window's size in each spatial dimension; one number is for all.",
               .sample = "[3]"})),
           option::Ints(
               "strides",
               {.about = "The steps of the window, likewise.", .fallback = "[1]", .sample = "[2]"}),
           option::Ints("dilation_rate",
                        {.about = "The distance between the window's taps, as `strides`.",
                        .fallback = "[1]",
                        .sample = "[2]"})}) {
    own.push_back(std::move(field));
  }
  return {
      .name = name,
      .about = about,
      .options = WithKernelAndBias(
          std::move(own), kSpatial == 1   ? "[unsharded, unsharded, batch]"
                          : kSpatial == 2 ? "[unsharded, unsharded, unsharded, batch]"
                                          : "[unsharded, unsharded, unsharded, unsharded, batch]"),
      .weights = KernelAndBias<kSpatial + 2>};
}

Field Filters() {
  return field::Required(option::Int("filters", {.least = 1},
                                     {.about = "The channels of its output.", .sample = "4"}));
}
Field Padded(std::string_view about) {
  return option::Word("padding", {"valid", "same"},
                      {.about = about, .fallback = "valid", .sample = "same"});
}
constexpr std::string_view kPadded =
    "Whether windows lie inside, or the output has as many positions as strides fit into the "
    "input.";

template <int kSpatial>
Entry ConvOf(std::string_view name, std::string_view about) {
  return Of<kSpatial>(name, about,
                      {Filters(), Padded(kPadded),
                       option::Int("groups", {.least = 1},
                                   {.about = "Groups of channels with filters of their own.",
                                    .fallback = "1",
                                    .sample = "2"})});
}

template <int kSpatial>
Entry TransposeOf(std::string_view name, std::string_view about) {
  return Of<kSpatial>(name, about,
                      {Filters(), Padded("same: the output is the input's size times the strides; "
                                         "valid: and what the last window reaches further.")});
}

template <int kSpatial>
Entry DepthwiseOf(std::string_view name, std::string_view about) {
  return Of<kSpatial>(
      name, about,
      {Padded(kPadded),
       option::Int("depth_multiplier", {.least = 1},
                   {.about = "Filters for each channel.", .fallback = "1", .sample = "2"})});
}

}  // namespace

Entry Conv1d() {
  return ConvOf<1>("conv_1d", "activation(conv(x, kernel) + bias) of [length, channels].");
}
Entry Conv2d() {
  return ConvOf<2>("conv_2d", "activation(conv(x, kernel) + bias) of [height, width, channels].");
}
Entry Conv3d() {
  return ConvOf<3>("conv_3d",
                   "activation(conv(x, kernel) + bias) of [depth, height, width, channels].");
}
Entry Conv1dTranspose() {
  return TransposeOf<1>("conv_1d_transpose", "The way back of `conv_1d`: longer by the strides.");
}
Entry Conv2dTranspose() {
  return TransposeOf<2>("conv_2d_transpose", "The way back of `conv_2d`: larger by the strides.");
}
Entry Conv3dTranspose() {
  return TransposeOf<3>("conv_3d_transpose", "The way back of `conv_3d`: larger by the strides.");
}
Entry DepthwiseConv1d() {
  return DepthwiseOf<1>("depthwise_conv_1d", "Each channel of a length with filters of its own.");
}
Entry DepthwiseConv2d() {
  return DepthwiseOf<2>("depthwise_conv_2d", "Each channel of a plane with filters of its own.");
}

}  // namespace meshtrain::manifest::layers

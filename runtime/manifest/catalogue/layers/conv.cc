#include "runtime/manifest/catalogue/rows.h"
#include "runtime/manifest/catalogue/shared.h"

namespace meshtrain::manifest::layers {
namespace {

template <int kSpatial>
Entry ConvOf(std::string_view name, std::string_view about) {
  return {
      .name = name,
      .about = about,
      .options = WithKernelAndBias(
          {field::Required(option::Int("filters", {.least = 1},
                                       {.about = "The channels of its output.", .sample = "4"})),
           field::Required(option::Ints(
               "kernel_size",
               {.about = "The window's size in each spatial dimension; one number is for all.",
                .sample = "[3]"})),
           option::Ints(
               "strides",
               {.about = "The steps of the window, likewise.", .fallback = "[1]", .sample = "[2]"}),
           option::Word("padding", {"valid", "same"},
                        {.about = "Whether windows lie inside, or the output has as many "
                                  "positions as strides fit into the input.",
                         .fallback = "valid",
                         .sample = "same"}),
           option::Ints("dilation_rate",
                        {.about = "The distance between the window's taps, as `strides`.",
                         .fallback = "[1]",
                         .sample = "[2]"}),
           option::Int("groups", {.least = 1},
                       {.about = "Groups of channels with filters of their own.",
                        .fallback = "1",
                        .sample = "2"})},
          kSpatial == 1   ? "[unsharded, unsharded, batch]"
          : kSpatial == 2 ? "[unsharded, unsharded, unsharded, batch]"
                          : "[unsharded, unsharded, unsharded, unsharded, batch]"),
      .weights = KernelAndBias<kSpatial + 2>};
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

}  // namespace meshtrain::manifest::layers

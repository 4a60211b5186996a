#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

Field Activation(const Says& says) {
  return option::Word("activation", {"linear", "relu", "gelu", "sigmoid", "tanh", "softmax"}, says);
}

Field Penalty(std::string_view name, std::string_view about) {
  return option::Group(
      name,
      {option::Number(
           "l1", {},
           {.about = "Factor of the sum of absolute values.", .fallback = "0", .sample = "0.1"}),
       option::Number(
           "l2", {}, {.about = "Factor of the sum of squares.", .fallback = "0", .sample = "0.1"})},
      {.about = about, .fallback = "none"});
}

Entry Dense() {
  return {
      .name = "dense",
      .about = "activation(x @ kernel + bias).",
      .options =
          {
              field::Required(option::Int(
                  "units", {.least = 1},
                  {.about = "The size of the last dimension of its output.", .sample = "12"})),
              Activation({.about = "What is done to each output.",
                          .fallback = "linear",
                          .sample = "gelu"}),
              option::Bool(
                  "use_bias",
                  {.about = "Whether there is a bias.", .fallback = "true", .sample = "false"}),
              option::OneOf("kernel_initializer", Initializers(),
                            {.about = "The kernel's first values.",
                             .fallback = "glorot_uniform",
                             .sample = "he_normal"}),
              option::OneOf(
                  "bias_initializer", Initializers(),
                  {.about = "The bias's first values.", .fallback = "zeros", .sample = "ones"}),
              Penalty("kernel_regularizer", "Added to the loss for the kernel."),
              Penalty("bias_regularizer", "Added to the loss for the bias."),
              option::Texts("kernel_layout",
                            {.about = "The kernel's layout: an axis of the mesh, or unsharded, for "
                                      "each dimension. It goes before `layout.rules`.",
                             .fallback = "the rules'",
                             .sample = "[unsharded, batch]"}),
              option::Texts(
                  "bias_layout",
                  {.about = "The bias's layout.", .fallback = "the rules'", .sample = "[batch]"}),
          },
      .weights = [](const Options& options) {
        std::vector<std::pair<std::string, int>> weights = {{"kernel", 2}};
        if (options.Bool("use_bias", true)) weights.emplace_back("bias", 1);
        return weights;
      }};
}

}  // namespace

const Catalogue& Layers() {
  static const Catalogue kLayers = {
      .noun = "layer",
      .entries = {
          Dense(),
          {.name = "flatten", .about = "One dimension for each example."},
          {.name = "reshape",
           .about = "Other dimensions for each example.",
           .options = {field::Required(
               option::Ints("dims", {.about = "The dimensions without the batch; one may be -1.",
                                     .sample = "[2, -1]"}))}},
          {.name = "activation",
           .about = "A function of each element.",
           .options = {field::Required(
               Activation({.about = "Which function.", .sample = "tanh"}))}},
          {.name = "dropout",
           .about = "In training some elements, drawn anew in each step, are 0.",
           .options = {field::Required(option::Number(
                           "rate", {.least = 0, .below = 1},
                           {.about = "The share of elements that are 0.", .sample = "0.25"})),
                       option::Int("seed", {},
                                   {.about = "What the draws follow from.",
                                    .fallback = "the program's seed and the layer's path",
                                    .sample = "9"})}},
          {.name = "add", .about = "The sum of its inputs.", .several_inputs = true},
          {.name = "concatenate",
           .about = "Its inputs, one behind the other.",
           .options = {option::Int(
               "axis", {},
               {.about = "The dimension along which.", .fallback = "-1", .sample = "1"})},
           .several_inputs = true},
      }};
  return kLayers;
}

}  // namespace meshtrain::manifest

#include "runtime/manifest/catalogue/shared.h"

#include <utility>

#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

// Of three ways to clip a text may choose one.
Field ClipValue() {
  Field field = option::Number("clipvalue", {.above = 0},
                               {.about = "Each element of a gradient is at most so far from 0.",
                                .fallback = "none",
                                .sample = "0.5"});
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Options& options = *static_cast<const Options*>(out);
    int given = 0;
    for (const char* name : {"clipnorm", "global_clipnorm", "clipvalue"}) {
      given += options.Find(name) != nullptr ? 1 : 0;
    }
    if (given > 1) {
      in.problems().Add(in.PlaceOf("clipvalue"), in.path(),
                        "takes one of clipnorm, global_clipnorm, clipvalue");
    }
  };
  return field;
}

}  // namespace

Field ActivationOption(const Says& says) {
  return option::Word("activation",
                      {"linear", "relu", "gelu", "sigmoid", "tanh", "softmax", "gelu_tanh", "silu",
                       "elu", "leaky_relu", "softplus"},
                      says);
}

Field RegularizerOption(std::string_view name, std::string_view about) {
  return option::Group(
      name,
      {option::Number(
           "l1", {.least = 0},
           {.about = "Factor of the sum of absolute values.", .fallback = "0", .sample = "0.1"}),
       option::Number(
           "l2", {.least = 0},
           {.about = "Factor of the sum of squares.", .fallback = "0", .sample = "0.1"})},
      {.about = about, .fallback = "none"});
}

Field LayoutOption(std::string_view name, std::string_view about, std::string_view sample) {
  return option::Texts(name, {.about = about, .fallback = "the rules'", .sample = sample});
}

std::vector<Field> WithKernelAndBias(std::vector<Field> own, std::string_view kernel_layout) {
  for (Field& field : std::vector<Field>{
           ActivationOption(
               {.about = "What is done to each output.", .fallback = "linear", .sample = "gelu"}),
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
           RegularizerOption("kernel_regularizer", "Added to the loss for the kernel."),
           RegularizerOption("bias_regularizer", "Added to the loss for the bias."),
           LayoutOption("kernel_layout",
                        "The kernel's layout: an axis of the mesh, or unsharded, for "
                        "each dimension. It goes before `layout.rules`.",
                        kernel_layout),
           LayoutOption("bias_layout", "The bias's layout.", "[batch]")}) {
    own.push_back(std::move(field));
  }
  return own;
}

Field Reduction() {
  return option::Word("reduction", {"mean", "sum"},
                      {.about = "What the gradient is of; the report is the mean.",
                       .fallback = "mean",
                       .sample = "sum"});
}

std::vector<Field> CrossentropyOptions() {
  return {Reduction(), option::Bool("from_logits",
                                    {.about = "Whether predictions are logits, not probabilities.",
                                     .fallback = "false",
                                     .sample = "true"})};
}

Field FigureNameOption(std::string_view sample, std::string_view context) {
  return option::Text("name", {.about = "What the figure is called.",
                               .fallback = "the metric's own",
                               .sample = sample,
                               .context = context});
}

Field ClassOption() {
  return option::Int("class", {.least = 0},
                     {.about = "Positive are the examples of this class, of those that the loss "
                               "tells apart. Without it labels are 0 or 1.",
                      .fallback = "none",
                      .shows = Shows::kPermits,
                      .sample = "1"});
}

std::vector<Field> FilesAndLabels(std::string_view images, std::string_view labels,
                                  std::string_view sample) {
  const auto file = [sample](std::string_view name, std::string_view about) {
    return field::Required(
        field::Path(option::Text(name, {.about = about, .shows = Shows::kData, .sample = sample})));
  };
  return {file("images", images), file("labels", labels),
          option::Word("labels_as", {"i32", "i64", "f32", "f64"},
                       {.about = "The type of labels. One that it would cut is an error.",
                        .fallback = "the file's, u8 as i32",
                        .shows = Shows::kData,
                        .sample = "i64"})};
}

std::vector<Field> OptimizerOptions(std::string_view rate, std::vector<Field> own) {
  std::vector<Field> all = {
      option::NumberOrOneOf("learning_rate", {.above = 0}, Schedules(),
                            {.about = "The length of a step.", .fallback = rate, .sample = "0.5"}),
      option::Number(
          "clipnorm", {.above = 0},
          {.about = "Each gradient is at most so long.", .fallback = "none", .sample = "0.5"}),
      option::Number("global_clipnorm", {.above = 0},
                     {.about = "All gradients together are at most so long.",
                      .fallback = "none",
                      .sample = "0.5"}),
      ClipValue(),
      option::Number("weight_decay", {.least = 0},
                     {.about = "Weights shrink by this share of the learning rate in each step.",
                      .fallback = "none (adamw: 0.004)",
                      .sample = "0.5"}),
      option::Texts("exclude_from_weight_decay",
                    {.about = "Not those whose path contains one of these.",
                     .fallback = "[]",
                     .sample = "[bias]",
                     .context = "{weight_decay: 0.5}"}),
  };
  for (Field& field : own) all.push_back(std::move(field));
  return all;
}

Field Beta(std::string_view name, std::string_view fallback) {
  return option::Number(name, {.least = 0, .below = 1},
                        {.about = "How much of the running figure stays in each step.",
                         .fallback = fallback,
                         .sample = "0.5"});
}
Field Epsilon() {
  return option::Number(
      "epsilon", {.least = 0},
      {.about = "Added where the update divides.", .fallback = "1e-7", .sample = "0.5"});
}
Field Momentum() {
  return option::Number(
      "momentum", {.least = 0, .most = 1},
      {.about = "How much of the last step goes into this one.", .fallback = "0", .sample = "0.5"});
}
Field FirstSum() {
  return option::Number(
      "initial_accumulator_value", {.least = 0},
      {.about = "Where the sum of squares begins.", .fallback = "0.1", .sample = "0.5"});
}

std::vector<Field> Betas(bool epsilon) {
  std::vector<Field> fields = {Beta("beta_1", "0.9"), Beta("beta_2", epsilon ? "0.999" : "0.99")};
  if (epsilon) fields.push_back(Epsilon());
  return fields;
}
std::vector<Field> AdamFields() {
  std::vector<Field> fields = Betas(true);
  fields.push_back(
      option::Bool("amsgrad", {.about = "Whether the largest second moment so far counts.",
                               .fallback = "false",
                               .sample = "true"}));
  return fields;
}

}  // namespace meshtrain::manifest

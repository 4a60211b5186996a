#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

// Of three ways to clip a text may choose one.
Field ClipValue() {
  Field field = option::Number("clipvalue", {},
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

// What every optimizer takes, and then its own.
std::vector<Field> With(std::string_view rate, std::vector<Field> own) {
  std::vector<Field> all = {
      option::Number("learning_rate", {.above = 0},
                     {.about = "The length of a step.", .fallback = rate, .sample = "0.5"}),
      option::Number(
          "clipnorm", {},
          {.about = "Each gradient is at most so long.", .fallback = "none", .sample = "0.5"}),
      option::Number("global_clipnorm", {},
                     {.about = "All gradients together are at most so long.",
                      .fallback = "none",
                      .sample = "0.5"}),
      ClipValue(),
      option::Number("weight_decay", {},
                     {.about = "Weights shrink by this share of the learning rate in each step.",
                      .fallback = "none (adamw: 0.004)",
                      .sample = "0.5"}),
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
      "epsilon", {},
      {.about = "Added where the update divides.", .fallback = "1e-7", .sample = "0.5"});
}
Field Momentum(const Bounds& bounds, std::string_view beside = "") {
  return option::Number("momentum", bounds,
                        {.about = "How much of the last step goes into this one.",
                         .fallback = "0",
                         .sample = "0.5",
                         .beside = beside});
}
Field FirstSum() {
  return option::Number(
      "initial_accumulator_value", {},
      {.about = "Where the sum of squares begins.", .fallback = "0.1", .sample = "0.5"});
}
Field Strength(std::string_view name, std::string_view about) {
  return option::Number(name, {}, {.about = about, .fallback = "0", .sample = "0.5"});
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

}  // namespace

const Catalogue& Optimizers() {
  static const Catalogue kOptimizers = {
      .noun = "optimizer",
      .entries = {
          {.name = "adam", .about = "Keras' Adam.", .options = With("0.001", AdamFields())},
          {.name = "adam_paper",
           .about = "Kingma & Ba 2014, as DTensor's tutorial writes it.",
           .options = With("0.001", Betas(true))},
          {.name = "adamw",
           .about = "Adam with weights that decay.",
           .options = With("0.001", AdamFields())},
          {.name = "adamax",
           .about = "Adam with the largest gradient.",
           .options = With("0.001", Betas(true))},
          {.name = "nadam",
           .about = "Adam with Nesterov's momentum.",
           .options = With("0.001", Betas(true))},
          {.name = "sgd",
           .about = "Gradient descent.",
           .options = With(
               "0.01", {Momentum({.least = 0, .most = 1}),
                        option::Bool("nesterov", {.about = "Whether the momentum is Nesterov's.",
                                                  .fallback = "false",
                                                  .sample = "true",
                                                  .beside = "{momentum: 0.5}"})})},
          {.name = "rmsprop",
           .about = "Hinton's RMSprop.",
           .options = With(
               "0.001",
               {Beta("rho", "0.9"), Momentum({}), Epsilon(),
                option::Bool("centered", {.about = "Whether the variance counts, not the square.",
                                          .fallback = "false",
                                          .sample = "true"})})},
          {.name = "adagrad",
           .about = "Duchi et al. 2011.",
           .options = With("0.001", {FirstSum(), Epsilon()})},
          {.name = "ftrl",
           .about = "McMahan et al. 2013.",
           .options =
               With("0.001",
                    {option::Number("learning_rate_power", {.most = 0},
                                    {.about = "How the rate falls with the sum of squares.",
                                     .fallback = "-0.5",
                                     .sample = "-0.25"}),
                     FirstSum(), Strength("l1_regularization_strength", "Of the absolute value."),
                     Strength("l2_regularization_strength", "Of the square."),
                     Strength("l2_shrinkage_regularization_strength",
                              "Of the square, with the gradient."),
                     Strength("beta", "Added to the root of the sum of squares.")})},
          {.name = "lion", .about = "Chen et al. 2023.", .options = With("0.001", Betas(false))},
      }};
  return kOptimizers;
}

}  // namespace meshtrain::manifest

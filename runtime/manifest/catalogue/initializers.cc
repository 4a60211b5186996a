#include "runtime/manifest/catalogue/catalogue.h"

namespace meshtrain::manifest {
namespace {

// Two whole numbers, [22, 23].
Field Seed() {
  Field field =
      option::Ints("seed", {.about = "Two whole numbers, [22, 23], that the values follow from.",
                            .fallback = "the program's seed and the weight's path",
                            .sample = "[22, 23]"});
  field.read = [](Fields& in, void* out) {
    const Node* node = in.Get("seed");
    if (node == nullptr) return;
    const std::vector<int64_t> seed = in.Ints("seed");
    if (node->IsList() && node->list.size() != 2) in.Wrong("seed", "two whole numbers, [22, 23]");
    if (seed.size() == 2) static_cast<Options*>(out)->Set("seed", seed);
  };
  field.type_text = "two whole numbers";
  return field;
}

// Not below `minval`, whichever of the two the text gives.
Field Maxval() {
  Field field = option::Number(
      "maxval", {}, {.about = "What all values are below.", .fallback = "0.05", .sample = "0.5"});
  const auto read = field.read;
  field.read = [read](Fields& in, void* out) {
    read(in, out);
    const Options& options = *static_cast<const Options*>(out);
    const double least = options.Number("minval", -0.05), below = options.Number("maxval", 0.05);
    const bool clean =
        in.problems().Clean(in.Path("minval")) && in.problems().Clean(in.Path("maxval"));
    if (!clean || least <= below) return;
    if (in.Get("maxval") != nullptr) {
      in.Wrong("maxval", "a number of at least minval, " + Node::Number(least).scalar);
    } else {
      in.Wrong("minval", "a number of at most maxval, " + Node::Number(below).scalar);
    }
  };
  field.type_text = "a number of at least minval";
  return field;
}

std::vector<Field> MeanAndDeviation() {
  return {option::Number("mean", {}, {.about = "The mean.", .fallback = "0", .sample = "0.5"}),
          option::Number("stddev", {.least = 0},
                         {.about = "The standard deviation.", .fallback = "0.05", .sample = "0.5"}),
          Seed()};
}

}  // namespace

const Catalogue& Initializers() {
  static const Catalogue kInitializers = {
      .noun = "initializer",
      .entries = {
          {.name = "zeros", .about = "All 0."},
          {.name = "ones", .about = "All 1."},
          {.name = "constant",
           .about = "All the same.",
           .options = {option::Number("value", {},
                                      {.about = "The value.", .fallback = "0", .sample = "0.5"})}},
          {.name = "random_uniform",
           .about = "Evenly between two numbers.",
           .options = {option::Number(
                           "minval", {},
                           {.about = "The least value.", .fallback = "-0.05", .sample = "-0.5"}),
                       Maxval(), Seed()}},
          {.name = "random_normal",
           .about = "A normal distribution.",
           .options = MeanAndDeviation()},
          {.name = "truncated_normal",
           .about = "A normal distribution, drawn again outside two deviations.",
           .options = MeanAndDeviation()},
          {.name = "glorot_uniform",
           .about = "Glorot & Bengio 2010, uniform; xavier_uniform is the same.",
           .options = {Seed()}},
          {.name = "glorot_normal",
           .about = "Glorot & Bengio 2010, normal; xavier_normal is the same.",
           .options = {Seed()}},
          {.name = "he_uniform", .about = "He et al. 2015, uniform.", .options = {Seed()}},
          {.name = "he_normal", .about = "He et al. 2015, normal.", .options = {Seed()}},
          {.name = "xavier_uniform", .about = "As glorot_uniform.", .options = {Seed()}},
          {.name = "xavier_normal", .about = "As glorot_normal.", .options = {Seed()}},
      }};
  return kInitializers;
}

}  // namespace meshtrain::manifest

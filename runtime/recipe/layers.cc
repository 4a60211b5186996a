// A layer of the catalogue with its options as nn has them. One row per layer.
#include "runtime/nn/layers.h"

#include "runtime/base/check.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Choice;
using manifest::Options;
using nn::Initializer;

std::optional<nn::Seed> SeedOf(const Options& o) {
  const auto seed = o.Ints("seed");
  if (!seed || seed->size() != 2) return std::nullopt;
  return nn::Seed{(*seed)[0], (*seed)[1]};
}

struct InitializerRow {
  std::string_view kind;
  Initializer (*make)(const Options& options);
};
constexpr InitializerRow kInitializers[] = {
    {"zeros", [](const Options&) { return Initializer::Zeros(); }},
    {"ones", [](const Options&) { return Initializer::Ones(); }},
    {"constant", [](const Options& o) { return Initializer::Constant(o.Number("value", 0)); }},
    {"random_uniform",
     [](const Options& o) {
       return Initializer::Uniform(o.Number("minval", -0.05), o.Number("maxval", 0.05), SeedOf(o));
     }},
    {"random_normal",
     [](const Options& o) {
       return Initializer::Normal(o.Number("mean", 0), o.Number("stddev", 0.05), SeedOf(o));
     }},
    {"truncated_normal",
     [](const Options& o) {
       return Initializer::TruncatedNormal(o.Number("mean", 0), o.Number("stddev", 0.05),
                                           SeedOf(o));
     }},
    {"glorot_uniform", [](const Options& o) { return Initializer::GlorotUniform(SeedOf(o)); }},
    {"glorot_normal", [](const Options& o) { return Initializer::GlorotNormal(SeedOf(o)); }},
    {"he_uniform", [](const Options& o) { return Initializer::HeUniform(SeedOf(o)); }},
    {"he_normal", [](const Options& o) { return Initializer::HeNormal(SeedOf(o)); }},
    {"xavier_uniform", [](const Options& o) { return Initializer::XavierUniform(SeedOf(o)); }},
    {"xavier_normal", [](const Options& o) { return Initializer::GlorotNormal(SeedOf(o)); }},
};

void Take(const Options& o, std::string_view name, Initializer* initializer) {
  const Choice* choice = o.Chosen(name);
  if (choice == nullptr) return;
  for (const InitializerRow& row : kInitializers) {
    if (row.kind == choice->kind) *initializer = row.make(choice->options);
  }
}

std::optional<nn::Regularizer> RegularizerOf(const Options& o, std::string_view name) {
  const Choice* group = o.Chosen(name);
  if (group == nullptr) return std::nullopt;
  return nn::Regularizer{.l1 = group->options.Number("l1", 0),
                         .l2 = group->options.Number("l2", 0)};
}

nn::ActivationKind ActivationOf(const Options& o) {
  return nn::ParseActivation(o.Text("activation", "linear")).value();
}

nn::LayerPtr MakeDense(const std::string& name, const Options& o) {
  nn::DenseOptions options{.name = name};
  options.activation = ActivationOf(o);
  options.use_bias = o.Bool("use_bias", options.use_bias);
  Take(o, "kernel_initializer", &options.kernel_initializer);
  Take(o, "bias_initializer", &options.bias_initializer);
  options.kernel_regularizer = RegularizerOf(o, "kernel_regularizer");
  options.bias_regularizer = RegularizerOf(o, "bias_regularizer");
  options.kernel_layout = o.Texts("kernel_layout");
  options.bias_layout = o.Texts("bias_layout");
  return nn::Make<nn::Dense>(o.Int("units", 1), std::move(options));
}

struct LayerRow {
  std::string_view kind;
  nn::LayerPtr (*make)(const std::string& name, const Options& options);
};
constexpr LayerRow kLayers[] = {
    {"dense", MakeDense},
    {"flatten",
     [](const std::string& name, const Options&) { return nn::Make<nn::Flatten>(name); }},
    {"reshape",
     [](const std::string& name, const Options& o) {
       return nn::Make<nn::Reshape>(o.Ints("dims").value_or(mesh::Dims{}), name);
     }},
    {"activation",
     [](const std::string& name, const Options& o) {
       return nn::Make<nn::Activation>(ActivationOf(o), name);
     }},
    {"dropout",
     [](const std::string& name, const Options& o) {
       return nn::Make<nn::Dropout>(o.Number("rate", 0), o.MaybeInt("seed"), name);
     }},
    {"add", [](const std::string& name, const Options&) { return nn::Make<nn::Add>(name); }},
    {"concatenate",
     [](const std::string& name, const Options& o) {
       return nn::Make<nn::Concatenate>(o.Int("axis", -1), name);
     }},
};

}  // namespace

nn::LayerPtr MakeLayer(const manifest::Layer& layer) {
  for (const LayerRow& row : kLayers) {
    if (row.kind == layer.kind) return row.make(layer.name, layer.options);
  }
  // A row of the catalogue has its row here: recipe_test looks.
  MT_CHECK(layer.kind.empty());
  return nullptr;
}

}  // namespace meshtrain::recipe

#include "runtime/nn/by_name.h"

namespace meshtrain::nn {
namespace {

std::optional<Seed> SeedOf(const Options& o) {
  const auto seed = o.Ints("seed");
  if (!seed || seed->size() != 2) return std::nullopt;
  return Seed{(*seed)[0], (*seed)[1]};
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

}  // namespace

Initializer InitializerOf(const Options& options, std::string_view name, Initializer fallback) {
  const choice::Choice* chosen = options.Chosen(name);
  if (chosen == nullptr) return fallback;
  for (const InitializerRow& row : kInitializers) {
    if (row.kind == chosen->kind) return row.make(chosen->options);
  }
  return fallback;
}

std::optional<Regularizer> RegularizerOf(const Options& options, std::string_view name) {
  const choice::Choice* group = options.Chosen(name);
  if (group == nullptr) return std::nullopt;
  return Regularizer{.l1 = group->options.Number("l1", 0), .l2 = group->options.Number("l2", 0)};
}

}  // namespace meshtrain::nn

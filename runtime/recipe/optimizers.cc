// Optimizers, losses and metrics of the catalogue with their options as train has them.
#include "runtime/base/check.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::recipe {
namespace {

using manifest::Options;

train::OptimizerOptions Common(const Options& o, train::OptimizerOptions common) {
  common.learning_rate = o.Number("learning_rate", common.learning_rate);
  common.clipnorm = o.MaybeNumber("clipnorm");
  common.global_clipnorm = o.MaybeNumber("global_clipnorm");
  common.clipvalue = o.MaybeNumber("clipvalue");
  common.weight_decay = o.MaybeNumber("weight_decay");
  return common;
}

// Options that several optimizers have, by the members of their structs.
template <typename T>
T Betas(const Options& o) {
  T out;
  out.common = Common(o, out.common);
  out.beta_1 = o.Number("beta_1", out.beta_1);
  out.beta_2 = o.Number("beta_2", out.beta_2);
  if constexpr (requires { out.epsilon; }) out.epsilon = o.Number("epsilon", out.epsilon);
  if constexpr (requires { out.amsgrad; }) out.amsgrad = o.Bool("amsgrad", out.amsgrad);
  return out;
}

std::unique_ptr<train::Optimizer> Sgd(const Options& o) {
  train::SgdOptions out;
  out.common = Common(o, out.common);
  out.momentum = o.Number("momentum", out.momentum);
  out.nesterov = o.Bool("nesterov", out.nesterov);
  return train::Sgd(out);
}
std::unique_ptr<train::Optimizer> Rmsprop(const Options& o) {
  train::RmspropOptions out;
  out.common = Common(o, out.common);
  out.rho = o.Number("rho", out.rho);
  out.momentum = o.Number("momentum", out.momentum);
  out.epsilon = o.Number("epsilon", out.epsilon);
  out.centered = o.Bool("centered", out.centered);
  return train::Rmsprop(out);
}
std::unique_ptr<train::Optimizer> Adagrad(const Options& o) {
  train::AdagradOptions out;
  out.common = Common(o, out.common);
  out.initial_accumulator_value =
      o.Number("initial_accumulator_value", out.initial_accumulator_value);
  out.epsilon = o.Number("epsilon", out.epsilon);
  return train::Adagrad(out);
}
std::unique_ptr<train::Optimizer> Ftrl(const Options& o) {
  train::FtrlOptions out;
  out.common = Common(o, out.common);
  out.learning_rate_power = o.Number("learning_rate_power", out.learning_rate_power);
  out.initial_accumulator_value =
      o.Number("initial_accumulator_value", out.initial_accumulator_value);
  out.l1_regularization_strength = o.Number("l1_regularization_strength", 0);
  out.l2_regularization_strength = o.Number("l2_regularization_strength", 0);
  out.l2_shrinkage_regularization_strength = o.Number("l2_shrinkage_regularization_strength", 0);
  out.beta = o.Number("beta", 0);
  return train::Ftrl(out);
}

struct OptimizerRow {
  std::string_view kind;
  std::unique_ptr<train::Optimizer> (*make)(const Options& options);
};
constexpr OptimizerRow kOptimizers[] = {
    {"adam", [](const Options& o) { return train::Adam(Betas<train::AdamOptions>(o)); }},
    {"adam_paper",
     [](const Options& o) { return train::AdamPaper(Betas<train::AdamPaperOptions>(o)); }},
    {"adamw", [](const Options& o) { return train::AdamW(Betas<train::AdamOptions>(o)); }},
    {"adamax", [](const Options& o) { return train::Adamax(Betas<train::AdamLikeOptions>(o)); }},
    {"nadam", [](const Options& o) { return train::Nadam(Betas<train::AdamLikeOptions>(o)); }},
    {"sgd", Sgd},
    {"rmsprop", Rmsprop},
    {"adagrad", Adagrad},
    {"ftrl", Ftrl},
    {"lion", [](const Options& o) { return train::Lion(Betas<train::LionOptions>(o)); }},
};

}  // namespace

std::shared_ptr<train::Optimizer> MakeOptimizer(const manifest::Choice& optimizer) {
  for (const OptimizerRow& row : kOptimizers) {
    if (row.kind == optimizer.kind) return row.make(optimizer.options);
  }
  // A row of the catalogue has its row here: recipe_test looks.
  MT_CHECK(optimizer.kind.empty());
  return nullptr;
}

train::Loss LossOf(const manifest::Choice& choice) {
  train::Loss loss;
  loss.kind = train::ParseLoss(choice.kind).value_or(loss.kind);
  loss.from_logits = choice.options.Bool("from_logits", loss.from_logits);
  if (choice.options.Text("reduction") == "sum") loss.reduction = train::LossReduction::kSum;
  return loss;
}

}  // namespace meshtrain::recipe

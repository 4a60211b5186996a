// `optimizer` and `loss`: names with options, as Keras spells them in snake case.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/spec/parse.h"

namespace meshtrain::spec {
namespace {

train::OptimizerOptions Common(Fields& f, double learning_rate = 0.001) {
  train::OptimizerOptions o;
  o.learning_rate = f.Number("learning_rate", learning_rate);
  if (o.learning_rate <= 0) f.Wrong("learning_rate", "a number above 0");
  o.clipnorm = f.MaybeNumber("clipnorm");
  o.global_clipnorm = f.MaybeNumber("global_clipnorm");
  o.clipvalue = f.MaybeNumber("clipvalue");
  o.weight_decay = f.MaybeNumber("weight_decay");
  if (o.clipnorm.has_value() + o.global_clipnorm.has_value() + o.clipvalue.has_value() > 1) {
    f.problems().Add(f.PlaceOf("clipvalue"), f.path(),
                     "takes one of clipnorm, global_clipnorm, clipvalue");
  }
  return o;
}

double Beta(Fields& f, std::string_view key, double fallback) {
  const double beta = f.Number(key, fallback);
  if (!(beta >= 0 && beta < 1)) f.Wrong(key, "a number of at least 0 and below 1");
  return beta;
}

OptimizerOptions ReadAdam(Fields& f) {
  train::AdamOptions o{.common = Common(f)};
  o.beta_1 = Beta(f, "beta_1", o.beta_1);
  o.beta_2 = Beta(f, "beta_2", o.beta_2);
  o.epsilon = f.Number("epsilon", o.epsilon);
  o.amsgrad = f.Bool("amsgrad", o.amsgrad);
  return o;
}
OptimizerOptions ReadAdamPaper(Fields& f) {
  train::AdamPaperOptions o{.common = Common(f)};
  o.beta_1 = Beta(f, "beta_1", o.beta_1);
  o.beta_2 = Beta(f, "beta_2", o.beta_2);
  o.epsilon = f.Number("epsilon", o.epsilon);
  return o;
}
OptimizerOptions ReadAdamLike(Fields& f) {
  train::AdamLikeOptions o{.common = Common(f)};
  o.beta_1 = Beta(f, "beta_1", o.beta_1);
  o.beta_2 = Beta(f, "beta_2", o.beta_2);
  o.epsilon = f.Number("epsilon", o.epsilon);
  return o;
}
OptimizerOptions ReadSgd(Fields& f) {
  train::SgdOptions o{.common = Common(f, 0.01)};
  o.momentum = f.Number("momentum", o.momentum);
  if (!(o.momentum >= 0 && o.momentum <= 1)) f.Wrong("momentum", "a number in [0, 1]");
  o.nesterov = f.Bool("nesterov", o.nesterov);
  return o;
}
OptimizerOptions ReadRmsprop(Fields& f) {
  train::RmspropOptions o{.common = Common(f)};
  o.rho = Beta(f, "rho", o.rho);
  o.momentum = f.Number("momentum", o.momentum);
  o.epsilon = f.Number("epsilon", o.epsilon);
  o.centered = f.Bool("centered", o.centered);
  return o;
}
OptimizerOptions ReadAdagrad(Fields& f) {
  train::AdagradOptions o{.common = Common(f)};
  o.initial_accumulator_value = f.Number("initial_accumulator_value", o.initial_accumulator_value);
  o.epsilon = f.Number("epsilon", o.epsilon);
  return o;
}
OptimizerOptions ReadFtrl(Fields& f) {
  train::FtrlOptions o{.common = Common(f)};
  o.learning_rate_power = f.Number("learning_rate_power", o.learning_rate_power);
  if (o.learning_rate_power > 0) f.Wrong("learning_rate_power", "a number of at most 0");
  o.initial_accumulator_value = f.Number("initial_accumulator_value", o.initial_accumulator_value);
  o.l1_regularization_strength = f.Number("l1_regularization_strength", 0);
  o.l2_regularization_strength = f.Number("l2_regularization_strength", 0);
  o.l2_shrinkage_regularization_strength = f.Number("l2_shrinkage_regularization_strength", 0);
  o.beta = f.Number("beta", 0);
  return o;
}
OptimizerOptions ReadLion(Fields& f) {
  train::LionOptions o{.common = Common(f)};
  o.beta_1 = Beta(f, "beta_1", o.beta_1);
  o.beta_2 = Beta(f, "beta_2", o.beta_2);
  return o;
}

struct OptimizerRow {
  std::string_view kind;
  OptimizerOptions (*read)(Fields& fields);
};
constexpr OptimizerRow kOptimizers[] = {
    {"adam", ReadAdam},       {"adam_paper", ReadAdamPaper}, {"adamw", ReadAdam},
    {"adamax", ReadAdamLike}, {"nadam", ReadAdamLike},       {"sgd", ReadSgd},
    {"rmsprop", ReadRmsprop}, {"adagrad", ReadAdagrad},      {"ftrl", ReadFtrl},
    {"lion", ReadLion},
};

}  // namespace

OptimizerSpec ParseOptimizer(Problems& problems, const Node& node, const std::string& path) {
  OptimizerSpec spec;
  const auto named = ReadNamed(problems, node, path, "optimizer");
  if (!named) return spec;
  std::vector<std::string> known;
  for (const OptimizerRow& row : kOptimizers) {
    known.emplace_back(row.kind);
    if (row.kind != named->name) continue;
    Fields fields(problems, named->options, path + "." + named->name, "option");
    spec.kind = named->name;
    spec.options = row.read(fields);
    return spec;
  }
  problems.Add(named->place, path,
               "unknown optimizer `" + Excerpt(named->name) + "`" + Suggest(named->name, known));
  return spec;
}

train::Loss ParseLossSpec(Problems& problems, const Node& node, const std::string& path) {
  train::Loss loss;
  const auto named = ReadNamed(problems, node, path, "loss");
  if (!named) return loss;
  const auto kind = train::ParseLoss(named->name);
  if (!kind) {
    problems.Add(
        named->place, path,
        "unknown loss `" + Excerpt(named->name) + "`" + Suggest(named->name, train::LossNames()));
    return loss;
  }
  loss.kind = *kind;
  Fields fields(problems, named->options, path + "." + named->name, "option");
  const std::vector<std::string> reductions = {"mean", "sum"};
  if (fields.Choice("reduction", reductions, "mean") == "sum") {
    loss.reduction = train::LossReduction::kSum;
  }
  if (*kind != train::LossKind::kMeanSquaredError && *kind != train::LossKind::kMeanAbsoluteError) {
    loss.from_logits = fields.Bool("from_logits", false);
  }
  return loss;
}

}  // namespace meshtrain::spec

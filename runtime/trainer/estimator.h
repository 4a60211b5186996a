// LinearRegressor: a linear model over numeric feature columns, trained and evaluated as
// tf.estimator's.
//
//   LinearRegressor regressor({NumericColumn("feats")}, train::Sgd({.common = {.learning_rate =
//   0.2}}),
//                             {.train_distribute = mirrored.get(), .eval_distribute =
//                             mirrored.get()});
//   MT_RETURN_IF_ERROR(regressor.Train(input_fn, 10));
//   MT_ASSIGN_OR_RETURN(const Evaluation figures, regressor.Evaluate(input_fn, 10));
//
// The batches of an input function are per replica, as with Estimators: a step takes one for each.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/data/pipeline.h"
#include "runtime/strategy/strategy.h"
#include "runtime/train/optimizer.h"
#include "runtime/trainer/model.h"

namespace meshtrain::trainer {

// A feature of `size` numbers per example: [N, size], or [N] for one.
struct NumericColumn {
  std::string key;
  int64_t size = 1;
};

// What an input function gives: components of `pipeline` are the features that `names` names, then
// the labels, [N] or [N, 1]. Features that no column asks for are left alone.
struct Examples {
  std::vector<std::string> names;
  std::unique_ptr<data::Pipeline> pipeline;
};
using InputFn = std::function<Result<Examples>()>;

// Strategies outlive the estimator; null: the thread's own (GetStrategy).
struct RunConfig {
  strategy::Strategy* train_distribute = nullptr;
  strategy::Strategy* eval_distribute = nullptr;
  // Where Train goes on from and saves to, and what Evaluate loads before there was a Train; "":
  // nowhere. With several processes a folder that all of them share.
  std::string model_dir;
};

// The figures that Estimators print, each a mean over the examples.
struct Evaluation {
  double average_loss = 0;  // of (prediction - label)^2
  double loss = 0;  // the same: Estimators print the mean of the batches' means, in which a short
                    // last batch weighs too much
  int64_t global_step = 0;
  double label_mean = 0;       // "label/mean"
  double prediction_mean = 0;  // "prediction/mean"
  // By their names: "average_loss", "global_step", "label/mean", "loss", "prediction/mean".
  std::map<std::string, double> ByName() const;
};

class LinearRegressor {
 public:
  LinearRegressor(std::vector<NumericColumn> columns, std::shared_ptr<train::Optimizer> optimizer,
                  RunConfig config = {});
  ~LinearRegressor();

  // Trains for `steps` more steps, through the ends of passes. Errors: kInvalidArgument naming the
  // column that the input function does not give, or gives in another size; kAborted where the loss
  // is not finite.
  Status Train(const InputFn& input_fn, int64_t steps);
  // Of `steps` batches for each replica, -1: of a pass.
  Result<Evaluation> Evaluate(const InputFn& input_fn, int64_t steps = -1);
  int64_t global_step() const { return global_step_; }
  // Weights by column, then the bias; made by the first Train or Evaluate.
  const std::vector<nn::Parameter>& parameters() const;

 private:
  class Linear;
  // What runs under one strategy. The two have weights of their own, which Evaluate copies over.
  struct Side {
    strategy::Strategy* strategy = nullptr;
    std::shared_ptr<Linear> layer;
    std::unique_ptr<Model> model;
  };
  Status Open(Side& side, std::shared_ptr<train::Optimizer> optimizer);
  // The newest checkpoint of model_dir, if there is one.
  Status Load(Side& side);
  Status CopyWeights();

  std::vector<NumericColumn> columns_;
  std::shared_ptr<train::Optimizer> optimizer_;
  RunConfig config_;
  Side train_, eval_;
  bool trained_ = false;  // by us: what counts is in train_
  int64_t global_step_ = 0;
};

}  // namespace meshtrain::trainer

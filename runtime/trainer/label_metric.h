// A metric of labels and predictions as an object, for loops of one's own: what a train::Metric
// says of all examples since it was reset. So short batches weigh what they hold, under any layout.
//
//   MT_ASSIGN_OR_RETURN(const LabelMetric accuracy,
//                       LabelMetric::Create(session, mesh, train::metrics::Accuracy(), loss));
//   accuracy.Update(y, model(x));                               // in a Function's body
//   MT_ASSIGN_OR_RETURN(const double share, accuracy.Result()); // between steps
//   MT_RETURN_IF_ERROR(accuracy.Reset());
//
// What is added up are f64 variables of the session, so a bad step does not change it: those of an
// execute::MeanMetric, or `metrics.NAME.sums` and `.batches`. Copies are the same metric.
#pragma once

#include <utility>

#include "runtime/base/status.h"
#include "runtime/execute/function.h"
#include "runtime/train/loss.h"

namespace meshtrain::trainer {

class LabelMetric {
 public:
  // `loss`: what says which accuracy `accuracy` is, and where a prediction says 1.
  static meshtrain::Result<LabelMetric> Create(execute::Session& session, const mesh::Mesh& mesh,
                                               train::Metric metric, train::Loss loss);
  // Records that the step adds a batch: labels [N, ...], predictions [N, ...]. Labels that the loss
  // or the metric cannot take are the builder's error.
  void Update(const program::Value& labels, const program::Value& predictions) const;
  // NaN where there was no batch since Reset.
  meshtrain::Result<double> Result() const;
  Status Reset() const;

 private:
  LabelMetric(train::Metric metric, train::Loss loss)
      : metric_(std::move(metric)), loss_(std::move(loss)) {}
  train::Metric metric_;
  train::Loss loss_;
  execute::MeanMetric mean_;  // of a mean metric; of another:
  execute::DVariable sums_, batches_;
};

}  // namespace meshtrain::trainer

// What training makes small, and what it reports beside it. Definitions are Keras'; each loss has
// its own file in losses/, each metric in metrics/.
//
//   Loss loss = losses::BinaryCrossentropy({.from_logits = true});
//
// One's own are a LossFunction, and a name with a function:
//
//   class Huber final : public LossFunction {
//    public:
//     std::string_view name() const override { return "huber"; }
//     Value PerExample(const Value& labels, const Value& predictions) const override { ... }
//   };
//   Loss loss{std::make_shared<Huber>()};
//   Metric bias{"bias", [](const Value& y, const Value& p, const Loss&) {
//                 return ReduceMean(p - y);
//               }};
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/ops.h"
#include "runtime/train/figures.h"

namespace meshtrain::train {

using program::Value;

inline constexpr std::string_view kLabelName = "y";

enum class LossReduction : uint8_t { kMean, kSum };

// Records ops; holds nothing that changes. Thread-safe.
class LossFunction {
 public:
  virtual ~LossFunction() = default;
  virtual std::string_view name() const = 0;  // as the manifest spells it
  // [N, ...], one value per example (and position).
  virtual Value PerExample(const Value& labels, const Value& predictions) const = 0;

  // Whether labels of this type can be this loss's, whatever the predictions. Errors:
  // kInvalidArgument (Refuse).
  virtual Status CheckLabels(const program::TensorType& labels) const;
  // The dimensions that the labels of such predictions may have; errors ask for the first. Here:
  // the predictions' own, and [N] for [N, 1].
  virtual std::vector<program::Dims> LabelDims(const program::TensorType& predictions) const;
  // The labels are numbers from 0 to n - 1; 0, as here: any numbers.
  virtual int64_t Classes(const program::TensorType& predictions) const;
  // Of each class, what predictions say as logits. Here: no value, since labels are no classes of
  // which one is right.
  virtual Value Logits(const Value& predictions) const;
  // What the metric `accuracy` is beside this loss, an f32 scalar. Here: binary accuracy.
  virtual Value Accuracy(const Value& labels, const Value& predictions) const;
  // A prediction above it says 1; below, 0.
  virtual double decision() const { return 0.5; }
  // What predictions of 0 or 1 say as probabilities of 1. Here: themselves.
  virtual Value Probability(const Value& predictions) const { return predictions; }

 protected:
  // "huber takes TAKES, got: labels f32[8]".
  Status Refuse(std::string_view takes, const program::TensorType& labels) const;
};

// A loss and how a batch's values become one. Copies share the function.
struct Loss {
  std::shared_ptr<const LossFunction> function;
  // What the gradient is taken of: the mean over the batch, or its sum. The report is the mean in
  // both cases.
  LossReduction reduction = LossReduction::kMean;
  // What was recorded for these labels and predictions, so that a metric need not record it again.
  struct Known {
    Value labels, predictions, per_example;
  };
  std::optional<Known> known = {};

  // Whether labels of this type can be this loss's, and of the predictions' shape. Errors:
  // kInvalidArgument: "sparse_categorical_crossentropy takes ..., got: labels f32[8]".
  Status CheckLabels(const program::TensorType& labels) const;
  Status CheckLabels(const program::TensorType& labels,
                     const program::TensorType& predictions) const;
  int64_t Classes(const program::TensorType& predictions) const;
  Value PerExample(const Value& labels, const Value& predictions) const;
};

namespace losses {

// Probabilities (from_logits false) are cut to [1e-7, 1 - 1e-7].
struct CrossentropyOptions {
  bool from_logits = false;
  LossReduction reduction = LossReduction::kMean;
};
// Labels [N] of class numbers, predictions [N, C].
Loss SparseCategoricalCrossentropy(CrossentropyOptions options = {});
// Labels [N, C], shares of the classes.
Loss CategoricalCrossentropy(CrossentropyOptions options = {});
// Labels like the predictions, or [N] with predictions [N, 1].
Loss BinaryCrossentropy(CrossentropyOptions options = {});
// Labels as BinaryCrossentropy's; the mean over the features of an example.
Loss MeanSquaredError(LossReduction reduction = LossReduction::kMean);
Loss MeanAbsoluteError(LossReduction reduction = LossReduction::kMean);

}  // namespace losses

// What a batch's examples say. Of a mean metric (no `finish`) an f32 scalar, the mean over them; of
// the others `sums` numbers, f64[sums], which are added up over batches, and `finish` says what
// they come to. So perplexity is exp(sum of losses / their count) over all examples, however they
// are divided among batches, devices and processes.
struct Metric {
  std::string name;  // of the program's output
  // Of labels that CheckLabels lets through. Errors are the builder's.
  std::function<Value(const Value& labels, const Value& predictions, const Loss& loss)> of_batch;
  int64_t sums = 0;
  Finish finish = nullptr;
  bool larger_is_better = false;
  std::string place = {};  // what errors say in front; "": the metric's name
  // The dimensions that the labels beside such predictions may have; errors ask for the first. None
  // of them: such predictions are not for it. Not given: whatever the loss takes.
  std::function<std::vector<program::Dims>(const program::TensorType& predictions)> label_dims = {};

  // Errors: kInvalidArgument: "categorical_accuracy: expected labels i32[8,4] beside predictions
  // f32[8,4], got: labels i32[8]".
  Status CheckLabels(const program::TensorType& labels,
                     const program::TensorType& predictions) const;
};

// What is trained and measured of one of a model's outputs.
struct Head {
  std::string output = {};                       // nn::Layer::outputs; "": of a model of one output
  std::string labels = std::string(kLabelName);  // the component that the loss compares with
  Loss loss = {};
  double weight = 1;  // of this loss in the sum that is made small; at least 0
  std::vector<Metric> metrics = {};
  std::string place = {};  // what errors say in front; "": the output's name

  // What a step's output is called: `figure`, or with the name of the head's output before it, as
  // Keras does: "accuracy", "digit_accuracy", "digit_loss".
  std::string FigureName(std::string_view figure) const;
};

namespace metrics {

// The share that is right; of which kind, the loss says (LossFunction::Accuracy), as Keras does.
Metric Accuracy(std::string name = "accuracy");
Metric SparseCategoricalAccuracy(std::string name = "sparse_categorical_accuracy");
Metric CategoricalAccuracy(std::string name = "categorical_accuracy");
// Whether the label is among the five classes with the largest predictions.
Metric SparseTopKCategoricalAccuracy(std::string name = "sparse_top_k_categorical_accuracy",
                                     int64_t k = 5);
Metric TopKCategoricalAccuracy(std::string name = "top_k_categorical_accuracy", int64_t k = 5);
// Predictions above the loss's `decision` say 1.
Metric BinaryAccuracy(std::string name = "binary_accuracy");
Metric MeanSquaredError(std::string name = "mean_squared_error");
Metric MeanAbsoluteError(std::string name = "mean_absolute_error");
// tf.estimator's label/mean and prediction/mean, of labels that are as the predictions: their mean,
// and that of the predictions, or of the probabilities that they say (LossFunction::Probability).
Metric LabelMean(std::string name = "label_mean");
Metric PredictionMean(std::string name = "prediction_mean");

// --- sums over the examples, and what they come to

// e to the mean of the loss over the examples (and positions), of a loss of classes of which one is
// right; at most e^709, the largest f64.
Metric Perplexity(std::string name = "perplexity");

// Which examples are positive, and which are said to be. Without `class_id` labels are 0 or 1, and
// predictions say 1 by a probability above `threshold`, 0.5 where there is none. With it, of a loss
// of classes of which one is right: labels of that class are positive, and the class that is
// predicted by the largest number is said; or that class, where its probability is above
// `threshold`.
struct ConfusionOptions {
  std::optional<double> threshold = {};
  std::optional<int64_t> class_id = {};
};
// Of those that are said to be positive, the share that is; 0 where none is said to be.
Metric Precision(std::string name = "precision", ConfusionOptions options = {});
// Of the positive ones, the share that is said to be; 0 where there is none.
Metric Recall(std::string name = "recall", ConfusionOptions options = {});

enum class Curve : uint8_t { kRoc, kPrecisionRecall };
// Thresholds at i / (num_thresholds - 1), the first and the last a little outside [0, 1], as
// Keras'. Probabilities below 0 count as 0, those above 1 as 1.
struct AucOptions {
  Curve curve = Curve::kRoc;
  int64_t num_thresholds = 200;  // from 2
  std::optional<int64_t> class_id = {};
};
// The area under the curve through the points of the thresholds: between two of them, trapezoids
// (ROC); true and false positives linear in each other (precision and recall: Davis, Goadrich, The
// Relationship Between Precision-Recall and ROC Curves). 0 where an area has no sense: for want of
// positive examples, and under ROC of negative ones.
Metric Auc(std::string name = "auc", AucOptions options = {});

}  // namespace metrics
}  // namespace meshtrain::train

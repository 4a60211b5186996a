#include "runtime/trainer/label_metric.h"

namespace meshtrain::trainer {

Result<LabelMetric> LabelMetric::Create(execute::Session& session, const mesh::Mesh& mesh,
                                        train::Metric metric, train::Loss loss) {
  if (!metric.of_batch || loss.function == nullptr) {
    return InvalidArgument("metric: expected a metric and a loss, got: none");
  }
  MT_ASSIGN_OR_RETURN(execute::MeanMetric mean,
                      execute::MeanMetric::Create(session, metric.name, mesh));
  return LabelMetric(std::move(metric), std::move(loss), std::move(mean));
}

void LabelMetric::Update(const program::Value& labels, const program::Value& predictions) const {
  const Status fits = loss_.CheckLabels(labels.type(), predictions.type());
  if (!fits.ok()) {
    labels.builder()->Fail(fits.At(metric_.name));
    return;
  }
  const mesh::Dims& dims = predictions.dims();
  mean_.Update(metric_.of_batch(labels, predictions, loss_),
               dims.empty() ? 1.0 : static_cast<double>(dims[0]));
}

}  // namespace meshtrain::trainer

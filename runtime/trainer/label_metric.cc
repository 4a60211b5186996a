#include "runtime/trainer/label_metric.h"

#include <limits>
#include <source_location>
#include <vector>

namespace meshtrain::trainer {

Result<LabelMetric> LabelMetric::Create(execute::Session& session, const mesh::Mesh& mesh,
                                        train::Metric metric, train::Loss loss) {
  if (!metric.of_batch || loss.function == nullptr) {
    return InvalidArgument("metric: expected a metric and a loss, got: none");
  }
  LabelMetric made(std::move(metric), std::move(loss));
  const std::string& name = made.metric_.name;
  if (made.metric_.finish == nullptr) {
    MT_ASSIGN_OR_RETURN(made.mean_, execute::MeanMetric::Create(session, name, mesh));
    return made;
  }
  const auto whole = [&](const std::string& what, mesh::Dims dims) {
    return execute::DVariable::Create(
        session, "metrics." + name + "." + what,
        mesh::Layout::Replicated(mesh, static_cast<int>(dims.size())),
        [dims] { return program::Zeros(dims, mesh::DType::kF64); }, /*trainable=*/false);
  };
  MT_ASSIGN_OR_RETURN(made.sums_, whole("sums", {made.metric_.sums}));
  MT_ASSIGN_OR_RETURN(made.batches_, whole("batches", {}));
  return made;
}

void LabelMetric::Update(const program::Value& labels, const program::Value& predictions) const {
  Status fits = loss_.CheckLabels(labels.type(), predictions.type()).At(metric_.name);
  if (fits.ok()) fits = metric_.CheckLabels(labels.type(), predictions.type());
  if (!fits.ok()) {
    labels.builder()->Fail(fits, std::source_location());  // no line of ours is named
    return;
  }
  const program::Value made = metric_.of_batch(labels, predictions, loss_);
  if (metric_.finish != nullptr) {
    if (!made.valid()) return;  // the builder has its error
    program::AssignAdd(sums_, made);
    program::AssignAdd(batches_, 1);
    return;
  }
  const mesh::Dims& dims = predictions.dims();
  mean_.Update(made, dims.empty() ? 1.0 : static_cast<double>(dims[0]));
}

meshtrain::Result<double> LabelMetric::Result() const {
  if (metric_.finish == nullptr) return mean_.Result();
  MT_ASSIGN_OR_RETURN(const mesh::Tensor batches, batches_.ToHost());
  if (batches.Item() == 0) return std::numeric_limits<double>::quiet_NaN();
  MT_ASSIGN_OR_RETURN(const mesh::Tensor sums, sums_.ToHost());
  return metric_.finish(sums.values<double>());
}

Status LabelMetric::Reset() const {
  if (metric_.finish == nullptr) return mean_.Reset();
  const std::vector<double> zeros(static_cast<size_t>(metric_.sums));
  MT_RETURN_IF_ERROR(sums_.Assign(mesh::Tensor::Of<double>({metric_.sums}, zeros)));
  return batches_.Assign(mesh::Tensor::Scalar(0.0));
}

}  // namespace meshtrain::trainer

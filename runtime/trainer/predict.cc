#include "runtime/trainer/predict.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace meshtrain::trainer {

using mesh::Tensor;
using mesh::TensorType;

namespace {

// The tensors of one output, of batch after batch, as one.
Result<Tensor> Joined(const std::vector<std::vector<Tensor>>& parts, size_t output) {
  TensorType type = parts[0][output].type();
  if (type.rank() == 0) {
    return InvalidArgument("predict: expected predictions [N, ...], got: " + type.ToString());
  }
  type.dims[0] = 0;
  for (const auto& part : parts) type.dims[0] += part[output].dims()[0];
  Tensor all(type);
  mesh::Dims at(type.dims.size(), 0);
  for (const auto& part : parts) {
    all.Paste(part[output], at);
    at[0] += part[output].dims()[0];
  }
  return all;
}

}  // namespace

Result<std::vector<Tensor>> PredictPass(Engine& engine, data::Pipeline& data,
                                        const std::function<Status(const data::Batch& batch)>& send,
                                        std::stop_token stop) {
  std::vector<std::vector<Tensor>> parts;  // by batch, by output
  int64_t sent = 0;
  bool pass_over = false;
  const auto next = [&]() -> Status {  // sends one more batch, or takes one
    if (!pass_over && sent - static_cast<int64_t>(parts.size()) < engine.ahead()) {
      MT_ASSIGN_OR_RETURN(const std::optional<data::Batch> batch, data.Next(stop));
      pass_over = !batch;
      if (!batch) return OkStatus();
      MT_RETURN_IF_ERROR(send(*batch));
      ++sent;
      return OkStatus();
    }
    MT_ASSIGN_OR_RETURN(std::vector<Tensor> part, engine.TakePrediction(stop));
    parts.push_back(std::move(part));
    return OkStatus();
  };
  while (!pass_over || static_cast<int64_t>(parts.size()) < sent) {
    if (const Status status = next(); !status.ok()) {
      engine.DropPredictions();
      return status;
    }
  }
  if (parts.empty()) return InvalidArgument("predict: expected at least one batch, got: none");
  std::vector<Tensor> all;
  for (size_t output = 0; output < parts[0].size(); ++output) {
    MT_ASSIGN_OR_RETURN(all.emplace_back(), Joined(parts, output));
  }
  return all;
}

}  // namespace meshtrain::trainer

#include "runtime/trainer/generate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/device/cpu/philox.h"

namespace meshtrain::trainer {

using mesh::DType;
using mesh::Tensor;

namespace {

double UniformOf(int64_t seed, int64_t index) {
  double number = 0;
  device::cpu::FillUniform(device::cpu::PhiloxFromSeed(seed, index), 0.0, 1.0, 0, {&number, 1});
  return number;
}

// Ids [1, T].
Tensor Window(const mesh::TensorType& type, std::span<const int64_t> ids, int64_t filling) {
  Tensor window(type);
  const auto fill = [&](auto values) {
    using T = typename decltype(values)::value_type;
    std::fill(values.begin(), values.end(), static_cast<T>(filling));
    std::transform(ids.begin(), ids.end(), values.begin(),
                   [](int64_t id) { return static_cast<T>(id); });
  };
  if (type.dtype == DType::kU8) fill(window.mutable_values<uint8_t>());
  if (type.dtype == DType::kI32) fill(window.mutable_values<int32_t>());
  if (type.dtype == DType::kI64) fill(window.mutable_values<int64_t>());
  return window;
}

// What a program of train::BuildNext or BuildNextById says comes behind the id at `at`.
Result<std::vector<double>> Predict(Engine& engine, size_t prediction, Tensor ids, int64_t at) {
  const Tensor inputs[] = {std::move(ids), Tensor::Of<int64_t>({1}, {&at, 1})};
  MT_RETURN_IF_ERROR(engine.SendPrediction(prediction, inputs));
  MT_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, engine.TakePrediction({}));
  const Tensor& logits = outputs.front();
  std::vector<double> out;
  if (logits.type().dtype == DType::kF64) {
    out.assign(logits.values<double>().begin(), logits.values<double>().end());
  } else {
    MT_CHECK(logits.type().dtype == DType::kF32);
    out.assign(logits.values<float>().begin(), logits.values<float>().end());
  }
  return out;
}

}  // namespace

Result<int64_t> ChooseId(std::span<const double> logits, const GenerateOptions& options,
                         int64_t index) {
  MT_CHECK(!logits.empty());
  const auto finite = [](double logit) { return std::isfinite(logit); };
  if (!std::all_of(logits.begin(), logits.end(), finite)) {
    return InvalidArgument("generate: character " + std::to_string(index) +
                           ": expected finite logits, got: one that is not")
        .From(Origin::kNumbers);
  }
  const auto largest = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (options.temperature == 0) return largest - logits.begin();
  double sum = 0;
  std::vector<double> until;  // the sum of shares up to each
  until.reserve(logits.size());
  for (const double logit : logits) {
    until.push_back(sum += std::exp((logit - *largest) / options.temperature));
  }
  const double drawn = UniformOf(options.seed, index) * sum;
  const auto chosen = std::upper_bound(until.begin(), until.end(), drawn);
  // Rounding may carry `drawn` up to the sum itself.
  return chosen == until.end() ? largest - logits.begin() : chosen - until.begin();
}

Result<std::vector<int64_t>> WriteIds(std::vector<int64_t> prompt, const GenerateOptions& options,
                                      const NextLogits& next, std::stop_token stop) {
  std::vector<int64_t> text = std::move(prompt);
  const size_t begin = text.size();
  for (int64_t index = 0; index < options.length; ++index) {
    if (stop.stop_requested()) return Cancelled("generate: stopped").From(Origin::kStop);
    MT_ASSIGN_OR_RETURN(const std::vector<double> logits, next(text));
    MT_ASSIGN_OR_RETURN(const int64_t id, ChooseId(logits, options, index));
    text.push_back(id);
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin));
  return text;
}

Result<std::vector<double>> WindowLogits::operator()(std::span<const int64_t> text) {
  MT_CHECK(!text.empty());
  const auto window = static_cast<size_t>(window_.dims[1]);
  if (text.size() > window) text = text.last(window);
  MT_ASSIGN_OR_RETURN(std::vector<double> logits, Run(text, 0));
  if (looked_ || text.size() == window || classes_ < 2) return logits;
  looked_ = true;
  MT_ASSIGN_OR_RETURN(const std::vector<double> other, Run(text, classes_ - 1));
  if (logits == other) return logits;
  return InvalidArgument(
             "generate: expected a model whose predictions depend on what stands before them "
             "alone, got: one that looks ahead")
      .From(Origin::kManifest);
}

Result<std::vector<double>> WindowLogits::Run(std::span<const int64_t> text, int64_t filling) {
  return Predict(engine_, prediction_, Window(window_, text, filling),
                 static_cast<int64_t>(text.size()) - 1);
}

Result<std::vector<double>> KeptLogits::operator()(std::span<const int64_t> text) {
  MT_CHECK(!text.empty());
  const mesh::TensorType& window = windows_.window();
  if (static_cast<int64_t>(text.size()) > window.dims[1]) return windows_(text);
  const auto same = std::mismatch(kept_.begin(), kept_.end(), text.begin(), text.end()).first;
  // The last one is asked again where it was seen already: what it keeps stays the same.
  size_t at = std::min(static_cast<size_t>(same - kept_.begin()), text.size() - 1);
  kept_.resize(std::min(at, kept_.size()));  // if one fails
  std::vector<double> logits;
  for (; at < text.size(); ++at) {
    MT_ASSIGN_OR_RETURN(logits, Predict(engine_, prediction_,
                                        Window({window.dtype, {1, 1}}, text.subspan(at, 1), 0),
                                        static_cast<int64_t>(at)));
  }
  kept_.assign(text.begin(), text.end());
  return logits;
}

}  // namespace meshtrain::trainer

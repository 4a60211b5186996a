#include "runtime/train/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace meshtrain::train {

using program::AssignAdd;
using program::AssignSub;
using program::Builder;
using program::TensorType;

namespace {

Value SquaredLength(const Value& g) { return program::ReduceSum(program::Square(g)); }

// g, scaled down where `squared_length` is beyond that of `limit`. A zero gradient stays zero: 0 *
// (limit / limit).
Value ClipTo(const Value& g, const Value& squared_length, double limit) {
  return g * (limit / program::Maximum(program::Sqrt(squared_length), limit));
}

// A limit of 0 would stop the training, and one below turn its gradients around. Of two kinds of
// clip it would be a guess which one comes first.
Status CheckClips(const OptimizerOptions& options) {
  const std::pair<const char*, std::optional<double>> clips[] = {
      {"clipnorm", options.clipnorm},
      {"global_clipnorm", options.global_clipnorm},
      {"clipvalue", options.clipvalue}};
  const char* given = nullptr;
  for (const auto& [name, limit] : clips) {
    if (!limit) continue;
    if (!(*limit > 0)) {
      return InvalidArgument(
          fmt::format("optimizer: {}: expected a number above 0, got: {}", name, *limit));
    }
    if (given != nullptr) {
      return InvalidArgument(fmt::format(
          "optimizer: expected one of clipnorm, global_clipnorm, clipvalue, got: {} and {}", given,
          name));
    }
    given = name;
  }
  return OkStatus();
}

// This thread's innermost scope; set and restored by GradientScope only.
thread_local GradientScope* current_scope = nullptr;

}  // namespace

std::string LearningRate::ToString() const {
  return is_constant() ? fmt::format("{}", constant_) : text_;
}

bool OptimizerOptions::Decays(std::string_view path) const {
  return weight_decay &&
         std::none_of(
             exclude_from_weight_decay.begin(), exclude_from_weight_decay.end(),
             [&](const std::string& part) { return path.find(part) != std::string_view::npos; });
}

GradientScope::GradientScope(Reduce reduce)
    : reduce_(std::move(reduce)), previous_(std::exchange(current_scope, this)) {}
GradientScope::~GradientScope() { current_scope = previous_; }

void Optimizer::Apply(std::span<const Parameter> weights, std::span<const Value> gradients) {
  MT_CHECK(weights.size() == gradients.size());
  if (const Status clips = CheckClips(common_); !clips.ok()) {
    if (Builder* builder = Builder::Current()) builder->Fail(clips);
    return;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (gradients[i].valid()) gradients[i].builder()->WatchGradient(weights[i], gradients[i]);
  }
  std::vector<Value> clipped(gradients.begin(), gradients.end());
  if (current_scope != nullptr) {
    clipped = current_scope->reduce_(gradients);
    MT_CHECK(clipped.size() == weights.size());
  }
  if (common_.clipnorm) {
    for (Value& g : clipped) g = ClipTo(g, SquaredLength(g), *common_.clipnorm);
  } else if (common_.global_clipnorm && !clipped.empty()) {
    Value squares = SquaredLength(clipped[0]);
    for (size_t i = 1; i < clipped.size(); ++i) squares = squares + SquaredLength(clipped[i]);
    for (Value& g : clipped) g = ClipTo(g, squares, *common_.global_clipnorm);
  } else if (common_.clipvalue) {
    for (Value& g : clipped) g = program::ClipByValue(g, -*common_.clipvalue, *common_.clipvalue);
  }
  rates_.clear();
  if (common_.weight_decay) {
    for (const Parameter& w : weights) {
      if (!common_.Decays(w.name())) continue;
      const program::Operand rate = learning_rate(w.type().dtype);
      AssignSub(w, rate.is_number() ? w * (*common_.weight_decay * rate.number())
                                    : w * (*common_.weight_decay * rate));
    }
  }
  Begin();
  for (size_t i = 0; i < weights.size(); ++i) Update(weights[i], clipped[i]);
  End();
  for (const Parameter& slot : slots_) {
    if (slot.name() == "optimizer.iterations") AssignAdd(slot, 1);
  }
}

program::Operand Optimizer::learning_rate(DType dtype) {
  const LearningRate& rate = common_.learning_rate;
  if (rate.is_constant()) return rate.constant();
  const auto find = [this](DType type, const auto& make) {
    const auto [it, is_new] = rates_.try_emplace(type);
    if (is_new) it->second = make();
    return it->second;
  };
  const Value whole = find(DType::kF64, [&] { return rate.Record(StepNumber() - 1.0); });
  if (dtype == DType::kF64) return whole;
  return find(dtype, [&] { return program::Cast(whole, dtype); });
}

void Optimizer::Minimize(const Value& loss, std::span<const Parameter> weights) {
  std::vector<Parameter> trained;
  std::vector<program::Variable> variables;
  for (const Parameter& weight : weights) {
    if (!weight.trainable()) continue;
    trained.push_back(weight);
    variables.push_back(weight);
  }
  const std::vector<Value> gradients = program::Gradient(loss, variables);
  // After an error of the trace nothing more is worth recording.
  if (loss.builder()->status().ok()) Apply(trained, gradients);
}

Value Optimizer::StepNumber() {
  return program::Cast(Scalar("iterations", DType::kI64, 0) + 1, DType::kF64);
}

Parameter Optimizer::Slot(std::string_view kind, const Parameter& weight, nn::Initializer initial) {
  std::string path = "optimizer." + std::string(kind) + "." + weight.name();
  Owner& owner = owners_[path + " " + weight.type().ToString()];
  // On parameter servers a weight is made for each program.
  if (owner.holders.expired()) owner = {weight.key(), weight.holders()};
  Builder* const builder = Builder::Current();
  if (owner.key != weight.key() && builder != nullptr) {
    builder->Fail(InvalidArgument(
        fmt::format("optimizer: slot `{}`: expected the weight that it was made for, got: another "
                    "one of that path; a second model takes an optimizer of its own",
                    path)));
  }
  return Find(std::move(path), weight.type(), initial,
              {.layout = weight.layout(), .trainable = false});
}

Parameter Optimizer::Scalar(std::string_view name, DType dtype, double initial) {
  return Find("optimizer." + std::string(name), TensorType{dtype, {}},
              nn::Initializer::Constant(initial),
              {.layout = nn::LayoutSpecs{}, .trainable = false});
}

Parameter Optimizer::Find(std::string path, TensorType type, nn::Initializer initial,
                          nn::ParameterOptions options) {
  const auto [it, is_new] = place_of_.emplace(path + " " + type.ToString(), slots_.size());
  if (!is_new) return slots_[it->second];
  return slots_.emplace_back(std::move(path), std::move(type), initial, std::move(options));
}

}  // namespace meshtrain::train

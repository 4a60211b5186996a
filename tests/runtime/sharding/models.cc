#include "tests/runtime/sharding/models.h"

#include <algorithm>
#include <random>

#include "runtime/base/check.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::sharding {

using program::Builder;
using program::DType;
using program::Value;
using program::Variable;

std::vector<std::string> MlpLayers(const MlpSizes& sizes) {
  std::vector<std::string> names;
  for (size_t i = 0; i + 2 < sizes.widths.size(); ++i) {
    names.push_back("hidden_" + std::to_string(i + 1));
  }
  names.push_back("logits");
  return names;
}

program::Program MlpTrainStep(const MlpSizes& sizes) {
  Builder b("train_step");
  Builder::Scope scope(b);
  const std::vector<std::string> layers = MlpLayers(sizes);
  std::vector<Variable> weights;
  for (size_t i = 0; i < layers.size(); ++i) {
    weights.emplace_back(layers[i] + ".kernel",
                         program::TensorType{sizes.dtype, {sizes.widths[i], sizes.widths[i + 1]}});
    weights.emplace_back(layers[i] + ".bias",
                         program::TensorType{sizes.dtype, {sizes.widths[i + 1]}});
  }
  Value h = b.Input("x", {sizes.dtype, {sizes.batch, sizes.widths[0]}});
  const Value y = b.Input("y", {DType::kI64, {sizes.batch}});
  for (size_t i = 0; i < layers.size(); ++i) {
    Builder::NameScope name(b, layers[i]);
    h = MatMul(h, weights[2 * i]) + weights[2 * i + 1];
    if (i + 1 < layers.size()) h = Relu(h);
  }
  const Value loss = ReduceMean(SparseSoftmaxCrossEntropy(h, y));
  const Value accuracy = ReduceMean(Cast(Equal(ArgMax(h, -1), y), sizes.dtype));

  const std::vector<Value> gradients = b.Gradient(loss, std::span<const Variable>(weights));
  Builder::NameScope name(b, "adam");
  const Variable t("t", {sizes.dtype, {}});
  Assign(t, t + 1.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    const Variable m(weights[i].name() + ".m", weights[i].type());
    const Variable v(weights[i].name() + ".v", weights[i].type());
    Assign(m, 0.9 * Value(b.Read(m)) + 0.1 * gradients[i]);
    Assign(v, 0.999 * Value(b.Read(v)) + 0.001 * Square(gradients[i]));
    const Value m_hat = m / (1.0 - Pow(Value(b.Constant(0.9, sizes.dtype)), t));
    const Value v_hat = v / (1.0 - Pow(Value(b.Constant(0.999, sizes.dtype)), t));
    AssignSub(weights[i], 1e-3 * (m_hat / (Sqrt(v_hat) + 1e-7)));
  }
  b.Output("loss", loss);
  b.Output("accuracy", accuracy);
  auto program = b.Build();
  MT_CHECK(program.ok());
  return *std::move(program);
}

void GiveLayer(Given& given, const std::string& layer, const Layout& kernel) {
  for (const std::string slot : {"", ".m", ".v"}) {
    given.states.insert_or_assign(layer + ".kernel" + slot, kernel);
    given.states.insert_or_assign(layer + ".bias" + slot, kernel.Delete({0}));
  }
}

std::string MovesText(const Partitioned& partitioned) {
  std::string text;
  for (const program::Op& op : partitioned.local.ops) {
    if (!op.attrs.Has("axes") || !op.attrs.Has("group")) {
      if (op.kind != "mask_pad") continue;
    }
    const ValueId from = op.operands[0];
    const ValueId to = op.results[0];
    const program::TensorType global{partitioned.local.type(to).dtype, partitioned.global_dims[to]};
    text += op.kind + " " + global.ToString() + " " + partitioned.layouts[from].ToString();
    if (op.kind != "mask_pad") text += " -> " + partitioned.layouts[to].ToString();
    text += "\n";
  }
  return text;
}

Result<double> DifferenceFromUnsharded(const program::Program& program,
                                       const Partitioned& partitioned, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto made_up = [&](const program::TensorType& type, bool positive) {
    testing::Array array(type);
    for (testing::Number& v : array.at) {
      const auto step = static_cast<double>(random() % 2001) / 1000 - 1;  // [-1, 1]
      v = mesh::IsFloat(type.dtype) ? (positive ? step * step : step)
                                    : static_cast<double>(random() % 2);
      v = testing::RoundTo(type.dtype, v);
    }
    return array;
  };
  testing::StepInput input;
  for (const program::Port& p : program.inputs) {
    input.inputs[p.name] = made_up(program.type(p.value), false);
  }
  for (const program::State& s : program.states) {
    // Second moments are squares, and t counts steps.
    const bool positive = s.name.ends_with(".v") || s.name == "t";
    input.states[s.name] = made_up(program.type(s.entry), positive);
  }
  MT_ASSIGN_OR_RETURN(const testing::StepResult want, testing::Interpret(program, input));
  MT_ASSIGN_OR_RETURN(const testing::StepResult got, testing::Interpret(partitioned, input, seed));
  double most = 0;
  for (const auto& [name, array] : want.outputs) {
    most = std::max(most, Difference(got.outputs.at(name), array));
  }
  for (const auto& [name, array] : want.states) {
    most = std::max(most, Difference(got.states.at(name), array));
  }
  return most;
}

}  // namespace meshtrain::sharding

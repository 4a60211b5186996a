// A server's store with a small job on it: w [5,2] in two shards under Adam, and a count of steps.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/parameter/chief/planner.h"
#include "runtime/parameter/server/store.h"
#include "runtime/train/optimizer.h"

namespace meshtrain::parameter::testing_store {

using mesh::DType;
using mesh::Tensor;
using mesh::TensorType;

inline std::vector<Definition> SampleDefinitions() {
  Planner planner(FixedShards{2}, 1, 7);
  const std::vector<Parameter> variables = {
      Parameter("w", TensorType{DType::kF32, {5, 2}}, nn::Initializer::Uniform(-1, 1)),
      Parameter("n", TensorType{DType::kI64, {}}, nn::Initializer::Zeros(), {.trainable = false})};
  std::vector<Definition> definitions;
  definitions.push_back(planner.AddVariables(variables).value()[0]);
  const std::vector<Pushed> pushed = {{"w", true, 0}, {"n", false, 1}};
  const std::shared_ptr<train::Optimizer> adam = train::Adam({.common = {.learning_rate = 0.01}});
  definitions.push_back(planner.AddUpdate("train", pushed, UpdaterOf(adam)).value()[0]);
  return definitions;
}

inline Status SetUpSample(Store& store, int64_t term, const std::string& restore = "",
                          int64_t bound = -1) {
  MT_RETURN_IF_ERROR(store.SetUp({.term = term, .restore = restore, .staleness_bound = bound}));
  const std::vector<Definition> definitions = SampleDefinitions();
  for (size_t i = 0; i < definitions.size(); ++i) {
    MT_RETURN_IF_ERROR(store.Define({term, static_cast<int64_t>(i), definitions[i]}));
  }
  return OkStatus();
}

// A push of gradient `g` everywhere, of one step.
inline Push SamplePush(int64_t term, PushId id, float g, int64_t settled = 0,
                       int64_t based_on = -1) {
  Push push{{term, id, settled, "train", {}, based_on}, {}};
  push.values.push_back(Tensor::Of<float>({3, 2}, std::vector<float>(6, g)));
  push.values.push_back(Tensor::Of<float>({2, 2}, std::vector<float>(4, g)));
  push.values.push_back(Tensor::Scalar<int64_t>(1));
  return push;
}

// Every state of the store, as text of its bytes: equal for equal states.
inline std::string Fingerprint(Store& store) {
  std::string text;
  for (const auto& [name, type] : store.catalogue()->states) {
    const auto value = store.Read({name});
    EXPECT_TRUE(value.ok()) << value.status().ToString();
    const auto bytes = (*value)[0].bytes();
    text +=
        name + "=" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + "\n";
  }
  return text;
}

inline int64_t CountOf(Store& store) {
  return static_cast<int64_t>(store.Read({"n"}).value()[0].Item());
}

}  // namespace meshtrain::parameter::testing_store

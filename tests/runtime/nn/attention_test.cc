// Attention against its formula in loops: results, gradients by finite differences of the loops,
// and the same numbers in every layout. Positions; what each refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "runtime/nn/model.h"
#include "runtime/program/ops.h"
#include "runtime/sharding/sharding.h"
#include "tests/support/interpreter/interpreter.h"

namespace meshtrain::nn {
namespace {

using mesh::Layout;
using mesh::Mesh;
using program::Builder;
using program::DType;
using program::Program;
using testing::Array;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 2, kLength = 4, kFeatures = 6;
const TensorType kX{DType::kF64, {kBatch, kLength, kFeatures}};
const TensorType kMask{DType::kBool, {kBatch, kLength}};
// The first example is padded behind its second position; of the second one, where it looks back
// alone, the first position sees nothing.
const std::vector<double> kSeen = {1, 1, 0, 0, 0, 1, 1, 0};

struct Case {
  std::string name;
  int64_t heads, groups, key_dim;
  bool causal = false;
  double wavelength = 0;  // 0: not turned
  bool bias = true;
  bool masked = false;

  MultiHeadAttention Make() const {
    AttentionOptions options{.name = "it", .key_value_heads = groups, .key_dim = key_dim};
    options.causal = causal;
    if (wavelength > 0) options.rope_max_wavelength = wavelength;
    options.use_bias = bias;
    return MultiHeadAttention(heads, options);
  }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"plain", 2, 2, 3, false, 0, false},
    {"causal", 2, 2, 3, true},
    {"grouped", 4, 2, 2, true, 100},
    {"masked", 2, 2, 3, false, 0, true, true},
    {"masked_causal", 2, 2, 3, true, 0, false, true},
    {"masked_grouped", 4, 2, 2, true, 100, true, true},
};

using Numbers = std::vector<double>;
using Weights = std::map<std::string, Numbers>;

// x [T, in] times the kernel, plus the bias.
Numbers Projected(const Numbers& x, const Weights& weights, const std::string& name, int64_t in,
                  int64_t out) {
  const Numbers& kernel = weights.at("it." + name + ".kernel");
  const auto bias = weights.find("it." + name + ".bias");
  Numbers y(kLength * out);
  for (int64_t t = 0; t < kLength; ++t) {
    for (int64_t j = 0; j < out; ++j) {
      double sum = bias == weights.end() ? 0 : bias->second[j];
      for (int64_t i = 0; i < in; ++i) sum += x[t * in + i] * kernel[i * out + j];
      y[t * out + j] = sum;
    }
  }
  return y;
}

// Each head's pairs of [T, heads * K] turned by their position.
void Turn(Numbers& x, int64_t heads, int64_t key_dim, double wavelength) {
  const int64_t half = key_dim / 2;
  for (int64_t t = 0; t < kLength; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        double& a = x[(t * heads + h) * key_dim + i];
        double& b = x[(t * heads + h) * key_dim + half + i];
        const double angle =
            static_cast<double>(t) *
            std::pow(wavelength, -2 * static_cast<double>(i) / static_cast<double>(key_dim));
        const double first = a, second = b;
        a = first * std::cos(angle) - second * std::sin(angle);
        b = second * std::cos(angle) + first * std::sin(angle);
      }
    }
  }
}

// The layer's result for x [N, T, D].
Numbers Loops(const Case& c, const Weights& weights, const Numbers& all) {
  Numbers out;
  const int64_t wide = c.heads * c.key_dim, narrow = c.groups * c.key_dim;
  for (int64_t n = 0; n < kBatch; ++n) {
    const auto begin = all.begin() + n * kLength * kFeatures;
    const Numbers x(begin, begin + kLength * kFeatures);
    Numbers query = Projected(x, weights, "query", kFeatures, wide);
    Numbers key = Projected(x, weights, "key", kFeatures, narrow);
    const Numbers value = Projected(x, weights, "value", kFeatures, narrow);
    if (c.wavelength > 0) {
      Turn(query, c.heads, c.key_dim, c.wavelength);
      Turn(key, c.groups, c.key_dim, c.wavelength);
    }
    Numbers sums(kLength * wide);
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t g = h / (c.heads / c.groups);
      for (int64_t t = 0; t < kLength; ++t) {
        Numbers share(kLength);
        double total = 0;
        for (size_t s = 0; s < share.size(); ++s) {
          if (c.causal && static_cast<int64_t>(s) > t) continue;
          if (c.masked && kSeen[static_cast<size_t>(n * kLength) + s] == 0) continue;
          double score = 0;
          for (int64_t k = 0; k < c.key_dim; ++k) {
            score += query[t * wide + h * c.key_dim + k] *
                     key[static_cast<int64_t>(s) * narrow + g * c.key_dim + k];
          }
          share[s] = std::exp(score / std::sqrt(static_cast<double>(c.key_dim)));
          total += share[s];
        }
        if (total == 0) total = 1;  // nothing is seen: every share is 0
        for (size_t s = 0; s < share.size(); ++s) {
          for (int64_t k = 0; k < c.key_dim; ++k) {
            sums[t * wide + h * c.key_dim + k] +=
                share[s] / total * value[static_cast<int64_t>(s) * narrow + g * c.key_dim + k];
          }
        }
      }
    }
    const Numbers y = Projected(sums, weights, "output", wide, kFeatures);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

// `y`, and the gradients of sum(y * pull) by the name of what they are of.
Program Trace(Layer& layer, bool masked = false) {
  Builder b("attention");
  const Builder::Scope scope(b);
  const Value x = b.Input("x", kX);
  const Value y = masked ? layer(std::vector<Value>{x, b.Input("mask", kMask)}) : layer(x);
  b.Output("y", y);
  std::vector<Value> wrt = {x};
  std::vector<std::string> names = {"x"};
  for (const Parameter& p : layer.parameters()) {
    wrt.push_back(b.Read(p));
    names.push_back(p.name());
  }
  const auto gradients =
      b.Gradient(program::ReduceSum(y * b.Input("pull", kX)), std::span<const Value>(wrt));
  for (size_t i = 0; i < names.size(); ++i) b.Output("grad " + names[i], gradients[i]);
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return program.ok() ? *std::move(program) : Program();
}

testing::StepInput Feed(const Program& program) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> numbers(-1, 1);
  testing::StepInput feed;
  const auto drawn = [&](const TensorType& type) {
    Array a(type);
    for (testing::Number& v : a.at) v = numbers(random);
    return a;
  };
  for (const char* name : {"x", "pull"}) feed.inputs[name] = drawn(kX);
  feed.inputs["mask"] = Array(kMask, kSeen);
  for (const program::State& s : program.states) feed.states[s.name] = drawn(program.type(s.entry));
  return feed;
}

Numbers Plain(const Array& array) { return {array.at.begin(), array.at.end()}; }

class AttentionTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Attention, AttentionTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(AttentionTest, GivesTheNumbersAndGradientsOfItsFormula) {
  const Case& c = GetParam();
  MultiHeadAttention layer = c.Make();
  const Program program = Trace(layer, c.masked);
  EXPECT_EQ(layer.parameters().size(), c.bias ? 8u : 4u);
  const testing::StepInput feed = Feed(program);
  const auto got = testing::Interpret(program, feed);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  Weights weights;
  for (const auto& [name, array] : feed.states) weights[name] = Plain(array);
  Numbers x = Plain(feed.inputs.at("x"));
  const Numbers pull = Plain(feed.inputs.at("pull"));
  const Numbers want = Loops(c, weights, x);
  const Array& y = got->outputs.at("y");
  ASSERT_EQ(y.at.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(y.at[i]), want[i], 1e-12) << i;
  }
  const auto pulled = [&] {
    const Numbers now = Loops(c, weights, x);
    double sum = 0;
    for (size_t i = 0; i < now.size(); ++i) sum += now[i] * pull[i];
    return sum;
  };
  const auto check = [&](const std::string& name, Numbers& at) {
    const Array& gradient = got->outputs.at("grad " + name);
    ASSERT_EQ(gradient.at.size(), at.size()) << name;
    for (size_t i = 0; i < at.size(); ++i) {
      const double was = at[i], step = 1e-5;
      at[i] = was + step;
      const double above = pulled();
      at[i] = was - step;
      const double slope = (above - pulled()) / (2 * step);
      at[i] = was;
      EXPECT_NEAR(static_cast<double>(gradient.at[i]), slope, 1e-8) << name << " " << i;
    }
  };
  check("x", x);
  for (auto& [name, at] : weights) check(name, at);
}

struct Placing {
  std::string mesh;
  std::string x;
  bool by_heads = false;
};

TEST_P(AttentionTest, LayoutsDoNotChangeItsNumbers) {
  const Case& c = GetParam();
  MultiHeadAttention layer = c.Make();
  const Program program = Trace(layer, c.masked);
  const testing::StepInput feed = Feed(program);
  const auto want = testing::Interpret(program, feed);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  const Placing placings[] = {
      {"batch=2", "{batch, *, *}"},
      {"model=2", "{*, *, *}", true},
      {"batch=2,model=2", "{batch, *, *}", true},
      {"sequence=4", "{*, sequence, *}"},
      {"sequence=3,model=2", "{*, sequence, *}", true},  // uneven
  };
  for (const Placing& placing : placings) {
    SCOPED_TRACE(placing.mesh);
    const Mesh mesh = *Mesh::Parse(placing.mesh);
    sharding::Given given{.outputs_stay = true};
    for (const char* name : {"x", "pull"}) {
      given.inputs.insert_or_assign(name, *Layout::Parse(placing.x, mesh));
    }
    if (c.masked) {
      const std::string of_positions = placing.x.substr(0, placing.x.rfind(',')) + "}";
      given.inputs.insert_or_assign("mask", *Layout::Parse(of_positions, mesh));
    }
    for (const Parameter& p : layer.parameters()) {
      if (!placing.by_heads) continue;
      LayoutSpecs specs(static_cast<size_t>(p.type().rank()), "unsharded");
      const bool output = p.name().find("output") != std::string::npos;
      if (!output) specs.back() = "model";
      if (output && p.type().rank() == 2) specs.front() = "model";
      const auto layout = p.LayoutOn(mesh, specs);
      ASSERT_TRUE(layout.ok()) << layout.status().ToString();
      given.states.insert_or_assign(p.name(), *layout);
    }
    // Of so few numbers bytes count, not calls.
    const auto partitioned =
        sharding::Shard(program, mesh, given,
                        {.cost = {.link_bytes_per_second = 1e4, .collective_latency_seconds = 0}});
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    // Of heads and batches nothing is gathered (the weights of so few features may be): what
    // travels is a pending sum.
    if (placing.mesh.find("sequence") == std::string::npos) {
      for (const program::Op& op : partitioned->local.ops) {
        if (op.kind != "all_gather" && op.kind != "all_to_all") continue;
        EXPECT_LT(partitioned->local.type(op.results[0]).rank(), 4)
            << partitioned->local.ToString();
      }
    }
    const auto got = testing::Interpret(*partitioned, feed, 1);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, array] : want->outputs) {
      EXPECT_LT(Difference(got->outputs.at(name), array), 1e-12) << name;
    }
  }
}

TEST(AttentionMaskTest, WhatIsHiddenHasNoPartHoweverLargeItsScore) {
  Case c{"huge", 1, 1, 6, true, 0, false};
  MultiHeadAttention layer = c.Make();
  const Program program = Trace(layer);
  testing::StepInput feed = Feed(program);
  for (auto& [name, array] : feed.states) {
    for (size_t i = 0; i < array.at.size(); ++i) array.at[i] = i % 7 == 0;  // the identity
  }
  const auto before = testing::Interpret(program, feed);
  for (int64_t i = 0; i < kFeatures; ++i) {  // the last position of the first example
    feed.inputs["x"].at[(kLength - 1) * kFeatures + i] = 1e6;
  }
  const auto after = testing::Interpret(program, feed);
  ASSERT_TRUE(before.ok() && after.ok());
  for (int64_t i = 0; i < kLength * kFeatures; ++i) {
    const auto now = after->outputs.at("y").at[i];
    EXPECT_TRUE(std::isfinite(now));
    if (i < (kLength - 1) * kFeatures) {
      EXPECT_EQ(now, before->outputs.at("y").at[i]);
    }
  }
  for (const auto v : after->outputs.at("grad it.key.kernel").at) EXPECT_TRUE(std::isfinite(v));
}

TEST(AttentionMaskTest, DroppedWeightsAreDrawnAnewInEachStepOfTraining) {
  AttentionOptions options{.name = "it", .dropout = 0.5};
  MultiHeadAttention layer(2, options);
  const auto draws = [&](bool training) {
    Builder b("attention");
    const Builder::Scope scope(b);
    const program::Variable step("step", {DType::kI64, {}}, false);
    const ContextScope context({.training = training, .step = step});
    b.Output("y", layer(b.Input("x", kX)));
    const auto program = b.Build();
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return std::count_if(program->ops.begin(), program->ops.end(), [](const program::Op& op) {
      return op.kind.find("dropout") != std::string::npos;
    });
  };
  EXPECT_GT(draws(true), 0);
  EXPECT_EQ(draws(false), 0);
}

// A mask may be numbers; where nothing of it is false it hides nothing.
TEST(AttentionMaskTest, AMaskOfAnyTypeHidesWhereItIsZero) {
  const Case c{"numbers", 2, 2, 3, true};
  const auto result = [&](std::optional<DType> dtype, double seen) {
    MultiHeadAttention layer = c.Make();
    Builder b("attention");
    const Builder::Scope scope(b);
    const Value x = b.Input("x", kX);
    b.Output("y", dtype ? layer(std::vector<Value>{x, b.Input("mask", {*dtype, kMask.dims})})
                        : layer(x));
    const auto program = b.Build();
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    testing::StepInput feed = Feed(*program);
    if (dtype) {
      Array mask({*dtype, kMask.dims}, kSeen);
      for (testing::Number& v : mask.at) v = v == 0 ? 1 - seen : 1;
      feed.inputs["mask"] = mask;
    }
    const auto got = testing::Interpret(*program, feed);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return Plain(got->outputs.at("y"));
  };
  const Numbers hidden = result(DType::kBool, 1), all = result(std::nullopt, 0);
  EXPECT_NE(hidden, all);
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kI32, DType::kI64, DType::kF32}) {
    EXPECT_EQ(result(dtype, 1), hidden) << mesh::DTypeName(dtype);
    EXPECT_EQ(result(dtype, 0), all) << mesh::DTypeName(dtype);
  }
}

// The heads that an axis cannot share out are told where a layout is made of the specs.
TEST(AttentionLayoutTest, HeadsThatAnAxisDoesNotDivideAreRefused) {
  MultiHeadAttention layer(4, {.name = "it", .key_value_heads = 2, .key_dim = 4});
  ASSERT_TRUE(!Trace(layer).ops.empty());
  const Mesh mesh = *Mesh::Parse("model=4");
  const auto error = [&](const std::string& name, LayoutSpecs specs) {
    for (const Parameter& p : layer.parameters()) {
      if (p.name() == name) return std::string(p.LayoutOn(mesh, specs).status().message());
    }
    return std::string("no such weight");
  };
  EXPECT_EQ(error("it.query.kernel", {"unsharded", "model"}),
            "expected axes that divide its 2 key/value heads, got: {*, model} of mesh model=4");
  EXPECT_THAT(error("it.output.kernel", {"model", "unsharded"}), HasSubstr("2 key/value heads"));
  EXPECT_THAT(error("it.value.bias", {"model"}), HasSubstr("2 key/value heads"));
  EXPECT_EQ(error("it.query.kernel", {"model", "unsharded"}), "");
  EXPECT_EQ(error("it.output.bias", {"model"}), "");
}

std::string ErrorOf(Layer& layer, TensorType type) {
  Builder b("model");
  const Builder::Scope scope(b);
  layer(b.Input("x", std::move(type)));
  return std::string(b.Build().status().message());
}

TEST(AttentionErrorsTest, SaysWhatItTakes) {
  const auto error = [](int64_t heads, AttentionOptions options, TensorType type = kX) {
    MultiHeadAttention layer(heads, std::move(options));
    return ErrorOf(layer, std::move(type));
  };
  EXPECT_THAT(error(4, {}),
              HasSubstr("without key_dim num_heads must divide the 6 features, got: 4"));
  EXPECT_THAT(error(0, {}), HasSubstr("num_heads must be at least 1, got: 0"));
  EXPECT_THAT(error(3, {.key_value_heads = 2}),
              HasSubstr("num_key_value_heads must divide num_heads, 3, got: 2"));
  EXPECT_THAT(error(2, {.rope_max_wavelength = 100}), HasSubstr("an even key_dim, got: 3"));
  EXPECT_THAT(error(2, {.dropout = 1}), HasSubstr("dropout must be in [0, 1)"));
  EXPECT_THAT(error(2, {}, {DType::kI32, {2, 3, 4}}),
              HasSubstr("takes floats [N, T, D], got: i32[2,3,4]"));
}

TEST(AttentionErrorsTest, AMaskHasAnElementForEachPosition) {
  const auto error = [](const std::vector<TensorType>& more) {
    MultiHeadAttention layer(2, {.name = "it"});
    Builder b("model");
    const Builder::Scope scope(b);
    std::vector<Value> inputs = {b.Input("x", kX)};
    for (const TensorType& type : more) {
      inputs.push_back(b.Input("mask" + std::to_string(inputs.size()), type));
    }
    layer(inputs);
    return std::string(b.Build().status().message());
  };
  EXPECT_EQ(error({kMask}), "");
  EXPECT_THAT(error({{DType::kF32, {2, 5}}}),
              HasSubstr("it: mask: expected [2,4], one for each position, got: f32[2,5]"));
  EXPECT_THAT(error({kX}), HasSubstr("got: f64[2,4,6]"));
  EXPECT_THAT(error({kMask, kMask}),
              HasSubstr("takes a sequence and perhaps a mask, got: 3 inputs"));
}

TEST(PositionEmbeddingTest, AddsARowForEachPosition) {
  for (const int64_t rows : {kLength, kLength + 3}) {
    PositionEmbedding layer(rows, {.name = "it"});
    const Program program = Trace(layer);
    const testing::StepInput feed = Feed(program);
    const auto whole = testing::Interpret(program, feed);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    const Array& x = feed.inputs.at("x");
    const Array& table = feed.states.at("it.embeddings");
    Array gradient(table.type);
    for (int64_t i = 0; i < kX.num_elements(); ++i) {
      const int64_t at = i % (kLength * kFeatures);
      EXPECT_NEAR(static_cast<double>(whole->outputs.at("y").at[i] - x.at[i] - table.at[at]), 0,
                  1e-15);
      gradient.at[at] += feed.inputs.at("pull").at[i];
    }
    EXPECT_LT(Difference(whole->outputs.at("grad it.embeddings"), gradient), 1e-12);
    for (const auto& [axes, layout] :
         {std::pair{"sequence=2,batch=2", "{batch, sequence, *}"}, {"model=2", "{*, *, model}"}}) {
      const Mesh mesh = *Mesh::Parse(axes);
      sharding::Given given;
      given.inputs.insert_or_assign("x", *Layout::Parse(layout, mesh));
      const auto partitioned = sharding::Shard(program, mesh, given);
      ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
      const auto got = testing::Interpret(*partitioned, feed, 1);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      for (const auto& [name, array] : whole->outputs) {
        EXPECT_LT(Difference(got->outputs.at(name), array), 1e-12) << axes << " " << name;
      }
    }
  }
  PositionEmbedding short_one(kLength - 1);
  EXPECT_THAT(ErrorOf(short_one, kX),
              HasSubstr("expected sequences of at most sequence_length, 3, got: f64[2,4,6]"));
  PositionEmbedding of_ids(4);
  EXPECT_THAT(ErrorOf(of_ids, {DType::kI32, {2, 4}}), HasSubstr("takes floats [N, T, D]"));
}

}  // namespace
}  // namespace meshtrain::nn

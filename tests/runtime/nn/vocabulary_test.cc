// A small language model whose embedding, logits and loss are split by vocabulary and by sequence:
// the numbers of one device, and nothing of the vocabulary or the sequence gathered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

constexpr int64_t kBatch = 4, kLength = 6, kVocabulary = 90, kWidth = 3;

// Ids but for the last of each sequence are fed, ids but for the first are what follows them.
Program Model() {
  Embedding embedding(kVocabulary, kWidth, {.name = "embedding", .dtype = DType::kF64});
  Dense logits(kVocabulary, {.name = "logits"});
  Builder b("lm");
  const Builder::Scope scope(b);
  const Value text = b.Input("text", {DType::kI32, {kBatch, kLength + 1}});
  const Value ids = program::Slice(text, {0, 0}, {kBatch, kLength});
  const Value next = program::Slice(text, {0, 1}, {kBatch, kLength});
  const Value y = logits(program::Gelu(embedding(ids)));
  const Value loss = program::ReduceMean(program::SparseSoftmaxCrossEntropy(y, next));
  const std::vector<program::Variable> weights = {embedding.embeddings(), logits.kernel(),
                                                  logits.bias()};
  const auto gradients = b.Gradient(loss, std::span<const program::Variable>(weights));
  b.Output("loss", loss);
  b.Output("likeliest", program::ArgMax(y, -1));
  b.Output("probabilities", program::Softmax(y));
  for (size_t i = 0; i < weights.size(); ++i) b.Output(weights[i].name(), gradients[i]);
  auto program = b.Build();
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  return program.ok() ? *std::move(program) : Program();
}

testing::StepInput Feed(const Program& program) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> numbers(-1, 1);
  testing::StepInput feed;
  Array text({DType::kI32, {kBatch, kLength + 1}});
  for (testing::Number& v : text.at) v = static_cast<double>(random() % kVocabulary);
  feed.inputs["text"] = text;
  for (const program::State& s : program.states) {
    Array a(program.type(s.entry));
    for (testing::Number& v : a.at) v = numbers(random);
    feed.states[s.name] = a;
  }
  return feed;
}

struct Placing {
  std::string mesh;
  std::string text;
  std::map<std::string, std::string> weights;
};

TEST(VocabularyTest, SplitByVocabularyAndSequenceNothingIsGathered) {
  const Program program = Model();
  const testing::StepInput feed = Feed(program);
  const auto want = testing::Interpret(program, feed);
  ASSERT_TRUE(want.ok()) << want.status().ToString();
  const std::map<std::string, std::string> by_vocabulary = {{"embedding.embeddings", "{model, *}"},
                                                            {"logits.kernel", "{*, model}"},
                                                            {"logits.bias", "{model}"}};
  const Placing placings[] = {
      {"model=4", "{*, *}", by_vocabulary},
      {"batch=2,model=2", "{batch, *}", by_vocabulary},
      {"sequence=2,batch=2", "{batch, sequence}", {}},
  };
  for (const Placing& placing : placings) {
    SCOPED_TRACE(placing.mesh);
    const Mesh mesh = *Mesh::Parse(placing.mesh);
    sharding::Given given{.outputs_stay = true};
    given.inputs.insert_or_assign("text", *Layout::Parse(placing.text, mesh));
    for (const auto& [name, layout] : placing.weights) {
      given.states.insert_or_assign(name, *Layout::Parse(layout, mesh));
    }
    // Of so few numbers bytes count, not calls.
    const auto partitioned =
        sharding::Shard(program, mesh, given,
                        {.cost = {.link_bytes_per_second = 1e4, .collective_latency_seconds = 0}});
    ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
    // Neither the table, its gradient, the logits nor what follows of them. Ids and their rows'
    // gradients may be: where they are fewer than the table's elements that costs less.
    for (const program::Op& op : partitioned->local.ops) {
      if (op.kind != "all_gather") continue;
      const program::Dims& dims = partitioned->local.type(op.results[0]).dims;
      EXPECT_EQ(std::count(dims.begin(), dims.end(), kVocabulary), 0)
          << partitioned->local.ToString();
    }
    const auto got = testing::Interpret(*partitioned, feed, 1);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (const auto& [name, array] : want->outputs) {
      EXPECT_LT(Difference(got->outputs.at(name), array), 1e-9) << name;
    }
  }
}

// An id that no device has is no other's row, and not a row of zeros.
TEST(VocabularyTest, AnIdOutsideGivesNan) {
  const Program program = Model();
  testing::StepInput feed = Feed(program);
  for (const double id : {-1.0, static_cast<double>(kVocabulary)}) {
    feed.inputs["text"].at[1] = id;
    for (const char* axes : {"model=1", "model=4"}) {
      const Mesh mesh = *Mesh::Parse(axes);
      sharding::Given given;
      given.states.insert_or_assign("embedding.embeddings", *Layout::Parse("{model, *}", mesh));
      const auto partitioned = sharding::Shard(program, mesh, given);
      ASSERT_TRUE(partitioned.ok()) << partitioned.status().ToString();
      const auto got = testing::Interpret(*partitioned, feed, 1);
      ASSERT_TRUE(got.ok()) << got.status().ToString();
      EXPECT_TRUE(std::isnan(got->outputs.at("loss").at[0])) << axes << ", id " << id;
    }
  }
}

TEST(VocabularyTest, SaysWhatItTakes) {
  const auto error = [](Embedding&& layer, DType dtype) {
    Builder b("model");
    const Builder::Scope scope(b);
    layer(b.Input("x", {dtype, {2, 3}}));
    return std::string(b.Build().status().message());
  };
  EXPECT_NE(error(Embedding(4, 2), DType::kF32)
                .find("embedding takes ids of i32, i64 or u8, got: f32[2,3] (cast the input)"),
            std::string::npos);
  EXPECT_NE(error(Embedding(0, 2), DType::kI32).find("input_dim must be at least 1, got: 0"),
            std::string::npos);
}

}  // namespace
}  // namespace meshtrain::nn

// The text that a manifest's `generate` asks for, written by small models with their first weights:
// the same in every layout, and what the model says of the text alone, whatever stands behind it in
// the window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/recipe/recipe.h"
#include "runtime/trainer/generate.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/strategy.h"

namespace meshtrain::trainer {
namespace {

using ::testing::HasSubstr;

constexpr char kCharacters[] = R"(
program:
  seed: 4
  MESH
  data:
    train: {text: {file: none.txt, length: 8, alphabet: "abcdefghijklmnop"}}
    batch: 8
  model:
    layers:
      - embedding: {name: token, input_dim: 16, output_dim: 16, dtype: DTYPE}
      - position_embedding: {name: place, sequence_length: 8}
      - repeat:
          name: blocks
          times: 2
          layers:
            - layer_normalization: {name: ln}
            - multi_head_attention: {name: attention, num_heads: HEADS, use_causal_mask: CAUSAL,
                                     kernel_initializer: {random_normal: {stddev: 0.6}}}
            - add: {name: attended, inputs: [attention, input]}
      - MORE
      - dense: {name: logits, units: 16, kernel_initializer: {random_normal: {stddev: 0.6}}}
  loss: {sparse_categorical_crossentropy: {from_logits: true}}
  optimizer: sgd
  GENERATE
)";

std::string Replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

struct Says {
  std::string mesh = "mesh: {}";
  std::string dtype = "f64";
  std::string generate = "generate: {prompt: dabei, length: 24, temperature: 1, seed: 9}";
  std::string causal = "true";
  std::string more = "dense: {name: more, units: 16}";
  std::string heads = "4";
};

Result<manifest::Manifest> Read(const Says& says) {
  std::string text = kCharacters;
  for (const auto& [from, to] :
       {std::pair{"MESH", says.mesh}, std::pair{"DTYPE", says.dtype},
        std::pair{"GENERATE", says.generate}, std::pair{"CAUSAL", says.causal},
        std::pair{"MORE", says.more}, std::pair{"HEADS", says.heads}}) {
    text = Replaced(std::move(text), from, to);
  }
  return recipe::ParseManifest(text, "job.yaml");
}

// A model with its first weights, on the manifest's mesh, each device by itself.
class Written {
 public:
  explicit Written(const Says& says) {
    config_.isolated = true;
    config_.threads = 2;
    status_ = Begin(says);
  }
  const Status& status() const { return status_; }
  Result<std::string> Text() { return write_({}); }

  Status NegateWeights() {
    MT_ASSIGN_OR_RETURN(execute::Session * session, strategy_->session());
    for (const program::Variable& v : engine_->states()) {
      if (v.type().dtype != mesh::DType::kF64) continue;
      MT_ASSIGN_OR_RETURN(mesh::Tensor value, session->ReadToHost(v));
      for (double& number : value.mutable_values<double>()) number = -number;
      MT_RETURN_IF_ERROR(session->Write(v, value));
    }
    return OkStatus();
  }

  // What the model predicts for a text as it stands, without a window around it.
  Result<int64_t> LargestBehind(const std::string& text) {
    const auto length = static_cast<int64_t>(text.size());
    MT_ASSIGN_OR_RETURN(
        const recipe::TracedPrediction traced,
        declared_->TracePrediction(mesh::TensorType{mesh::DType::kU8, {1, length}}));
    MT_ASSIGN_OR_RETURN(const size_t number,
                        engine_->AddPrediction(traced.prediction, /*whole=*/true));
    mesh::Tensor ids({mesh::DType::kU8, {1, length}});
    std::transform(text.begin(), text.end(), ids.mutable_values<uint8_t>().begin(),
                   [](char c) { return static_cast<uint8_t>(c - 'a'); });
    MT_RETURN_IF_ERROR(engine_->SendPrediction(number, {&ids, 1}));
    MT_ASSIGN_OR_RETURN(const std::vector<mesh::Tensor> outputs, engine_->TakePrediction({}));
    const mesh::Tensor& logits = outputs.front();
    const auto last = logits.values<double>().last(16);
    return std::max_element(last.begin(), last.end()) - last.begin();
  }

  // The logits behind each of the text's characters: id by id where `by_id`, else by windows.
  Result<std::vector<double>> LogitsOf(const std::string& text, bool by_id) {
    if (by_id_ == nullptr) {
      const program::Program& traced = next_.prediction.program;
      MT_ASSIGN_OR_RETURN(const size_t whole, engine_->AddPrediction(next_.prediction, true));
      const WindowLogits windows(*engine_, whole, traced.type(traced.inputs[0].value), 16);
      if (!next_.by_id) return Internal("expected a program that takes ids one by one, got: none");
      MT_ASSIGN_OR_RETURN(const size_t one, engine_->AddPrediction(*next_.by_id, true));
      windows_ = windows;
      by_id_ = KeptLogits(*engine_, one, windows);
    }
    std::vector<double> all;
    std::vector<int64_t> ids;
    for (const char c : text) {
      ids.push_back(c - 'a');
      MT_ASSIGN_OR_RETURN(const std::vector<double> some, (by_id ? by_id_ : windows_)(ids));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  bool has_by_id() const { return next_.by_id.has_value(); }

 private:
  Status Begin(const Says& says) {
    MT_ASSIGN_OR_RETURN(manifest_, Read(says));
    MT_ASSIGN_OR_RETURN(declared_, recipe::Declared::Create(manifest_.program));
    MT_ASSIGN_OR_RETURN(strategy_, MakeMeshStrategy(config_, manifest_, *declared_, nullptr));
    engine_ = MakeMeshEngine(*strategy_, {.declare_only = true});
    const mesh::TensorType x{mesh::DType::kU8, {8, 8}}, y{mesh::DType::kI32, {8, 8}};
    engine_->Compile(declared_->recipe(), TraceOf(*declared_));
    MT_RETURN_IF_ERROR(engine_->Prepare({x, y}));
    MT_RETURN_IF_ERROR(engine_->BeginAnew({}));
    MT_ASSIGN_OR_RETURN(next_, declared_->TraceNext(OneText(x)));
    MT_ASSIGN_OR_RETURN(write_, PlanText(manifest_.program, next_, *engine_));
    // Its variables are in use there; what follows has some of its own.
    MT_ASSIGN_OR_RETURN(next_, declared_->TraceNext(OneText(x)));
    return OkStatus();
  }

  JobConfig config_;
  manifest::Manifest manifest_;
  std::optional<recipe::Declared> declared_;
  std::unique_ptr<strategy::MeshStrategy> strategy_;
  std::unique_ptr<Engine> engine_;
  recipe::TracedPrediction next_;
  NextLogits windows_, by_id_;  // made by LogitsOf
  WriteText write_;
  Status status_;
};

std::string TextOf(const Says& says) {
  Written written(says);
  EXPECT_TRUE(written.status().ok()) << written.status().ToString();
  if (!written.status().ok()) return "";
  const auto text = written.Text();
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : "";
}

TEST(TextTest, IsTheSameInEveryLayout) {
  const std::string alone = TextOf({});
  EXPECT_EQ(alone.size(), 29);
  EXPECT_EQ(alone.substr(0, 5), "dabei");
  constexpr char kHeads[] =
      "mesh: {batch: 2, model: 2}\n"
      "  layout:\n"
      "    rules:\n"
      "      - {match: 'token', spec: [model, unsharded]}\n"
      "      - {match: '.*(query|key|value)\\.kernel|logits\\.kernel', spec: [unsharded, model]}\n"
      "      - {match: '.*output\\.kernel', spec: [model, unsharded]}";
  constexpr char kSequence[] =
      "mesh: {sequence: 4, batch: 2}\n"
      "  layout: {inputs: {x: [batch, sequence], y: [batch, sequence]}}";
  constexpr char kZero[] =
      "mesh: {batch: 4}\n"
      "  layout: {rules: [{match: '.*(kernel|embeddings)', spec: [batch, unsharded]}]}";
  for (const char* mesh : {"mesh: {batch: 8}", kHeads, kSequence, kZero}) {
    EXPECT_EQ(TextOf({.mesh = mesh}), alone) << mesh;
    EXPECT_EQ(TextOf({.mesh = mesh, .dtype = "f32"}), TextOf({.dtype = "f32"})) << mesh;
  }
}

// Nothing is left of a text that was written before: after a loss, new processes know nothing of
// it.
TEST(TextTest, EachIsWrittenFromTheStart) {
  Written once({}), again({});
  ASSERT_TRUE(once.status().ok() && again.status().ok());
  const auto before = again.Text();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  for (Written* written : {&once, &again}) {
    const Status turned = written->NegateWeights();
    ASSERT_TRUE(turned.ok()) << turned.ToString();
  }
  const auto want = once.Text(), got = again.Text();
  ASSERT_TRUE(want.ok() && got.ok());
  EXPECT_NE(*want, *before);
  EXPECT_EQ(*got, *want);
}

TEST(TextTest, FollowsFromSeedAndTemperature) {
  const auto text = [](const std::string& options) {
    return TextOf({.generate = "generate: {prompt: dabei, length: 24" + options + "}"});
  };
  const std::string likeliest = text("");
  EXPECT_EQ(text(", seed: 7"), likeliest);
  EXPECT_EQ(text(", temperature: 1.0e-6, seed: 7"), likeliest);
  const std::string drawn = text(", temperature: 1, seed: 7");
  EXPECT_NE(drawn, likeliest);
  EXPECT_EQ(text(", temperature: 1, seed: 7"), drawn);
  EXPECT_NE(text(", temperature: 1, seed: 8"), drawn);
  EXPECT_EQ(text(", temperature: 1"), text(", temperature: 1, seed: 4"));  // the program's
}

// Also where the text is longer than the window: then its last eight characters count.
TEST(TextTest, EachCharacterIsWhatTheModelSaysOfThoseBeforeIt) {
  Written written({.generate = "generate: {prompt: pa, length: 12}"});
  ASSERT_TRUE(written.status().ok()) << written.status().ToString();
  const std::string text = written.Text().value();
  ASSERT_EQ(text.size(), 14);
  for (size_t i = 2; i < text.size(); ++i) {
    const size_t from = i < 8 ? 0 : i - 8;
    EXPECT_EQ(written.LargestBehind(text.substr(from, i - from)).value(), text[i] - 'a') << i;
  }
}

TEST(TextTest, IdByIdTheLogitsAreThoseOfTheWindow) {
  for (const char* heads :
       {"4", "4, num_key_value_heads: 2", "4, num_key_value_heads: 1, use_bias: false",
        "2, rope_max_wavelength: 10000",
        "4, num_key_value_heads: 2, key_dim: 6, rope_max_wavelength: 100"}) {
    for (const char* mesh :
         {"mesh: {}",
          "mesh: {batch: 2}\n  layout: {rules: [{match: 'logits\\.kernel', "
          "spec: [unsharded, batch]}, {match: token, spec: [batch, unsharded]}]}"}) {
      Written written({.mesh = mesh, .heads = heads});
      ASSERT_TRUE(written.status().ok()) << written.status().ToString();
      // The last two are longer than the window. A text that goes on otherwise is begun anew there.
      const std::string texts[] = {"pabedilomk", "pabcd", "pabcda"};
      for (const std::string& text : texts) {
        const std::vector<double> want = written.LogitsOf(text, false).value();
        const auto got = written.LogitsOf(text, true);
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        ASSERT_EQ(got->size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR((*got)[i], want[i], 1e-12) << heads << " " << text << " " << i / 16;
        }
      }
    }
  }
}

TEST(TextTest, LayersThatLookAtOtherPositionsAreLeftToWindows) {
  EXPECT_TRUE(Written({}).has_by_id());
  for (const char* more :
       {"group_normalization: {groups: 1}", "layer_normalization: {axis: [1, 2]}",
        "conv_1d: {name: near, filters: 16, kernel_size: [1]}"}) {
    const Written written({.more = more});
    ASSERT_TRUE(written.status().ok()) << written.status().ToString();
    EXPECT_FALSE(written.has_by_id()) << more;
  }
}

TEST(TextTest, AModelThatLooksAheadIsRefused) {
  const Status attention = Read({.causal = "false"}).status();
  EXPECT_THAT(attention.message(), HasSubstr("program.generate: expected attention that looks back "
                                             "alone, got: blocks.0.attention"));
  // What no rule knows of shows when it runs.
  Written convolved(
      {.more = "conv_1d: {name: ahead, filters: 16, kernel_size: [3], padding: same}"});
  ASSERT_TRUE(convolved.status().ok()) << convolved.status().ToString();
  const Status status = convolved.Text().status();
  EXPECT_EQ(status.origin(), Origin::kManifest);
  EXPECT_THAT(status.message(), HasSubstr("got: one that looks ahead"));
}

TEST(TextTest, WhatCannotBeWrittenIsRefusedBeforeTheRun) {
  const auto refusal = [](const Says& says) {
    Written written(says);
    return written.status().message();
  };
  EXPECT_THAT(refusal({.generate = "generate: {prompt: \"day\"}"}),
              HasSubstr("program.generate.prompt: expected characters of data.train's alphabet, "
                        "got: `y` at byte 2"));
  EXPECT_THAT(refusal({.generate = "generate: {prompt: \"\"}"}),
              HasSubstr("generate.prompt: expected at least one character, got: none"));
  EXPECT_THAT(refusal({.generate = "generate: {prompt: a}\n  train: {early_stopping: {monitor: "
                                   "loss, restore_best_weights: true}}"}),
              HasSubstr("program.generate: expected a run that leaves its last weights"));
}

}  // namespace
}  // namespace meshtrain::trainer

// A manifest that uses all samples: read, checked, written and trained as if they were built in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "operator/api/crd.h"
#include "runtime/data/pipeline.h"
#include "runtime/manifest/reference.h"
#include "runtime/recipe/recipe.h"
#include "runtime/strategy/dataset.h"
#include "runtime/train/loop.h"
#include "runtime/trainer/engine.h"
#include "runtime/trainer/job/choices.h"
#include "runtime/trainer/job/strategy.h"
#include "tests/samples/rows.h"

namespace meshtrain::samples {
namespace {

using ::testing::HasSubstr;

constexpr char kManifest[] = R"(
kind: TrainingJob
apiVersion: meshtrain.dev/v1
metadata: {name: samples}
spec:
  strategy: STRATEGY
  replicaSpecs: {worker: {replicas: 1}}
  program:
    seed: 3
    MESH
    data:
      train: {waves: {points: 512}}
      batch: 64
    model: [dense: {units: 16}, swish: {beta: 2}, dense: {units: 1}]
    loss: {huber: {delta: 0.5}}
    optimizer: {signum: {learning_rate: 0.01, momentum: 0.8}}
    metrics: [bias]
    loss_scale: 4
    train: {epochs: 1}
)";

// With the first `from` replaced by `to`.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}
std::string Job(const std::string& strategy, const std::string& mesh) {
  return With(With(kManifest, "STRATEGY", strategy), "MESH", mesh);
}
const std::string kMesh = "mesh: {batch: 2}";
const std::string kDevices = "devices: {count: 2}";

std::string MistakeOf(const std::string& from, const std::string& to) {
  const auto read = recipe::ParseManifest(With(Job("Mesh", kMesh), from, to), "job.yaml");
  return read.ok() ? "no mistake" : read.status().message();
}

struct Loss {
  double first = 0, last = 0;
};
// Thirty epochs of 8 steps, by the strategy and the engine of a job.
Result<Loss> Train(const std::string& text) {
  MT_ASSIGN_OR_RETURN(const manifest::Manifest manifest, recipe::ParseManifest(text, "job.yaml"));
  MT_ASSIGN_OR_RETURN(const recipe::Declared declared, recipe::Declared::Create(manifest.program));
  MT_ASSIGN_OR_RETURN(auto data, data::Pipeline::Create(recipe::TrainPipeline(manifest.program)));
  MT_ASSIGN_OR_RETURN(const auto strategy,
                      trainer::MakeMeshStrategy({.threads = 1}, manifest, declared, nullptr));
  const auto engine = trainer::MakeMeshEngine(*strategy, {.declare_only = true});
  engine->Compile(declared.recipe(), trainer::TraceOf(declared));
  MT_RETURN_IF_ERROR(engine->Prepare(data->BatchTypes(data->batch_size())));
  MT_RETURN_IF_ERROR(engine->Plan("", data->batch_sizes(), {}));
  MT_RETURN_IF_ERROR(engine->BeginAnew({}));
  strategy::PipelineBatches batches(*data);
  MT_ASSIGN_OR_RETURN(const train::FitResult result,
                      engine->Fit({.batches = &batches, .options = {.epochs = 30}}, {}));
  const auto& epochs = result.history;
  EXPECT_EQ(epochs.size(), 30u);
  for (const manifest::Choice& metric : manifest.program.metrics) {
    EXPECT_TRUE(train::FindScalar(epochs.back().train, metric.kind).has_value()) << metric.kind;
  }
  return Loss{*train::FindScalar(epochs.front().train, "loss"),
              *train::FindScalar(epochs.back().train, "loss")};
}

class SamplesTest : public ::testing::Test {
 protected:
  // Before anything is read, as a program's main does.
  static void SetUpTestSuite() {
    // What is refused adds nothing.
    const auto refusal = [](auto row, auto change) {
      change(row);
      return std::string(recipe::AddRows({std::move(row)}).message());
    };
    std::vector<recipe::Row> rows = Rows();
    const auto layer = std::get<recipe::LayerRow>(rows[0]);
    refusals_ = {
        refusal(layer, [](auto& row) { row.entry.name = "dense"; }),
        refusal(layer, [](auto& row) { row.entry.name = "Swish"; }),
        refusal(layer, [](auto& row) { row.entry.about = ""; }),
        refusal(layer, [](auto& row) { row.make = nullptr; }),
        refusal(layer, [](auto& row) { row.entry.options[0].name = "inputs"; }),
        refusal(std::get<recipe::FieldRow>(rows[5]), [](auto& row) { row.field.name = "train"; }),
    };
    const auto pairs = std::get<recipe::SourceRow>(rows[6]);
    refusals_.push_back(refusal(pairs, [](auto& row) { row.entry.components = {"a", "b"}; }));
    refusals_.push_back(refusal(pairs, [](auto& row) { row.entry.components = {"y", "y"}; }));
    const Status added = recipe::AddRows(Rows());
    ASSERT_TRUE(added.ok()) << added.message();
    refusals_.emplace_back(recipe::AddRows({layer}).message());
  }
  static std::vector<std::string> refusals_;
};
std::vector<std::string> SamplesTest::refusals_;

TEST_F(SamplesTest, RowsThatCannotBeAddedSayWhy) {
  EXPECT_THAT(
      refusals_,
      ::testing::ElementsAre(
          "rows: layer `dense`: the name is taken",
          "rows: layer `Swish`: expected a name of small letters, digits and _",
          "rows: layer `swish`: expected a sentence about it, got: none",
          "rows: `swish`: expected a function that makes it or lets it act, got: none",
          "rows: layer `swish`, option `inputs`: the name is taken",
          "rows: field `train`: the name is taken",
          "rows: source `pairs`: expected components, the labels `y` among them",
          "rows: component `y`: the name is taken", "rows: layer `swish`: the name is taken"));
}

TEST_F(SamplesTest, OnceAManifestIsReadNoRowIsAdded) {
  ASSERT_TRUE(recipe::ParseManifest(Job("Mesh", kMesh), "job.yaml").ok());
  auto row = std::get<recipe::LayerRow>(Rows()[0]);
  row.entry.name = "later";
  const Status late = recipe::AddRows({row});
  EXPECT_EQ(late.code(), StatusCode::kFailedPrecondition) << late.message();
  EXPECT_THAT(late.message(), HasSubstr("before the first manifest is read"));
}

TEST_F(SamplesTest, MistakesAreToldWithPathAndNearestName) {
  EXPECT_EQ(MistakeOf("beta: 2", "beta: 2"), "no mistake");
  EXPECT_THAT(MistakeOf("swish: {beta", "swich: {beta"),
              HasSubstr("program.model[1]: unknown layer `swich`, did you mean `swish`?"));
  EXPECT_THAT(MistakeOf("beta: 2", "bete: 2"),
              HasSubstr("program.model[1].swish: unknown option `bete`, did you mean `beta`?"));
  EXPECT_THAT(MistakeOf("beta: 2", "beta: 0"),
              HasSubstr("program.model[1].swish.beta: expected a number above 0, got: 0"));
  EXPECT_THAT(MistakeOf("huber: ", "hubert: "),
              HasSubstr("program.loss: unknown loss `hubert`, did you mean `huber`?"));
  EXPECT_THAT(
      MistakeOf("momentum: 0.8", "momentum: 1"),
      HasSubstr("program.optimizer.signum.momentum: expected a number of at least 0 and below 1"));
  EXPECT_THAT(MistakeOf("{points: 512}", "{point: 512}"),
              HasSubstr("program.data.train.waves: unknown field `point`, did you mean `points`?"));
  EXPECT_THAT(MistakeOf("[bias]", "[biass]"),
              HasSubstr("program.metrics[0]: unknown metric `biass`, did you mean `bias`?"));
  EXPECT_THAT(MistakeOf("loss_scale: 4", "loss_scal: 4"),
              HasSubstr("program: unknown field `loss_scal`, did you mean `loss_scale`?"));
  EXPECT_THAT(MistakeOf("loss_scale: 4", "loss_scale: -4"),
              HasSubstr("program.loss_scale: expected a number above 0, got: -4"));
}

TEST_F(SamplesTest, ASourceOfOnesOwnIsRefusedBesideServers) {
  const std::string text = With(Job("ParameterServer", ""), "worker: {replicas: 1}",
                                "chief: {replicas: 1}, worker: {replicas: 2}, ps: {replicas: 1}");
  EXPECT_THAT(recipe::ParseManifest(text, "job.yaml").status().message(),
              HasSubstr("program.data.train.waves: expected one of idx, npy, image_folder under "
                        "ParameterServer"));
}

TEST_F(SamplesTest, WhatIsReadIsWrittenAndReadsTheSame) {
  const auto read = recipe::ParseManifest(Job("Mesh", kMesh), "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const manifest::Node written = manifest::WriteProgram(read->program);
  manifest::Problems problems("written");
  const manifest::Program again = manifest::ReadProgram(problems, written, "program");
  EXPECT_TRUE(problems.empty()) << problems.ToStatus().message();
  EXPECT_TRUE(again == read->program) << manifest::ToYaml(written);
  ASSERT_NE(written.Find("loss_scale"), nullptr) << manifest::ToYaml(written);
  EXPECT_EQ(written.Find("loss_scale")->scalar, "4");
}

TEST_F(SamplesTest, TheReferencePageAndTheCrdHaveThem) {
  const std::string page = manifest::ReferencePage();
  for (const char* line :
       {"| `loss_scale` | a number above 0 | The loss times this. | 1 |",
        "`swish`: x * sigmoid(beta * x); beta is a weight.", "| `beta` | a number above 0 |",
        "`huber`: ", "`signum`: ", "`waves`: ", "`bias`: "}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  EXPECT_THAT(api::CrdYaml(), HasSubstr("loss_scale"));
}

TEST_F(SamplesTest, TrainUnderMeshAndMirrored) {
  const auto mesh = Train(Job("Mesh", kMesh));
  ASSERT_TRUE(mesh.ok()) << mesh.status().message();
  EXPECT_LT(mesh->last, 0.8 * mesh->first);
  const auto mirrored = Train(Job("Mirrored", kDevices));
  ASSERT_TRUE(mirrored.ok()) << mirrored.status().message();
  EXPECT_LT(mirrored->last, 0.8 * mirrored->first);
  // The field acts: an optimizer of signs takes the same steps whatever the loss is multiplied by.
  const auto plain = Train(With(Job("Mesh", kMesh), "loss_scale: 4", "loss_scale: 1"));
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_NEAR(4 * plain->first, mesh->first, 1e-6 * mesh->first);
}

constexpr char kPairs[] = R"(
  mesh: {batch: 2}
  data: {train: {pairs: {pairs: 64}}, batch: 8}
  model:
    layers:
      - dense: {name: plus, units: 1, inputs: left}
      - dense: {name: minus, units: 1, inputs: right}
      - add: {name: both, inputs: [plus, minus]}
  layout: {inputs: {right: [batch, unsharded]}}
  loss: mean_squared_error
  optimizer: {sgd: {learning_rate: 0.05}}
  train: {epochs: 1}
)";

TEST_F(SamplesTest, AModelTakesTheComponentsOfItsSourceByName) {
  const std::string text = "program:" + std::string(kPairs);
  const auto trained = Train(text);
  ASSERT_TRUE(trained.ok()) << trained.status().message();
  EXPECT_LT(trained->last, 0.05 * trained->first);
  const auto mistake = [&](const std::string& from, const std::string& to) {
    return recipe::ParseManifest(With(text, from, to), "p.yaml").status().message();
  };
  EXPECT_THAT(mistake("inputs: left", "inputs: lefd"),
              HasSubstr("no layer before this one is named `lefd`, did you mean `left`?"));
  EXPECT_THAT(mistake("{right: [", "{rihgt: ["),
              HasSubstr("program.layout.inputs: unknown input `rihgt`, did you mean `right`?"));
  EXPECT_THAT(mistake("name: plus", "name: left"), HasSubstr("`left` names the model's input"));
}

}  // namespace
}  // namespace meshtrain::samples

#include "runtime/trainer/job/environment.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "runtime/base/file.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain::trainer {
namespace {

Environment Of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto it = variables.find(std::string(name));
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
}

constexpr char kProgram[] =
    R"({"mesh":{"batch":4},"data":{"train":{"idx":{"images":"a.gz","labels":"b.gz"}},"batch":128},)"
    R"("model":["flatten",{"dense":{"units":10}}],"loss":{"sparse_categorical_crossentropy":{"from_logits":true}},)"
    R"("optimizer":"adam"})";

TEST(EnvironmentTest, AJobsEnvironmentIsAManifest) {
  const auto job = ReadEnvironment(Of({
      {"MESHTRAIN_PROGRAM", kProgram},
      {"MESHTRAIN_CHECKPOINT", R"({"path":"/ckpt","everySteps":10,"resume":"Never"})"},
      {"MESHTRAIN_STRATEGY", "Mesh"},
      {"MESHTRAIN_JOB", "ml/mnist"},
      {"MESHTRAIN_ATTEMPT", "3"},
      {"TF_CONFIG", R"({"cluster":{"chief":["c:1"],"worker":["w0:1","w1:1","w2:1"],"ps":["p:1"]},)"
                    R"("task":{"type":"worker","index":1},"environment":"cloud"})"},
  }));
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->attempt, 3);
  EXPECT_EQ(job->mesh_processes(), 4);
  EXPECT_EQ(job->process(), 2);  // the chief is 0
  const auto manifest = recipe::ParseManifest(job->manifest, "MESHTRAIN_PROGRAM", {.processes = 4});
  ASSERT_TRUE(manifest.ok()) << manifest.status().message();
  EXPECT_EQ(manifest->name, "mnist");
  EXPECT_EQ(manifest->name_space, "ml");
  EXPECT_EQ(manifest->strategy, "Mesh");
  EXPECT_EQ(manifest->checkpoint.path, "/ckpt");
  EXPECT_EQ(manifest->checkpoint.every_steps, 10);
  EXPECT_FALSE(manifest->checkpoint.resume);
  // The order of the mesh's axes is the text's.
  ASSERT_EQ(manifest->program.mesh.size(), 1u);
}

TEST(EnvironmentTest, TheOrderOfAxesSurvives) {
  std::string program = kProgram;
  program.replace(program.find(R"({"batch":4})"), 11, R"({"zeta":2,"batch":2})");
  const auto job = ReadEnvironment(Of({{"MESHTRAIN_PROGRAM", program}}));
  ASSERT_TRUE(job.ok());
  EXPECT_LT(job->manifest.find("zeta"), job->manifest.find(R"("batch":2)"));
}

TEST(EnvironmentTest, NothingMeansALoneProcessWithoutAProgram) {
  const auto job = ReadEnvironment(Of({}));
  ASSERT_TRUE(job.ok());
  EXPECT_FALSE(job->tf_config);
  EXPECT_EQ(job->mesh_processes(), 1);
  EXPECT_EQ(job->process(), 0);
  EXPECT_EQ(job->manifest, "");
}

TEST(EnvironmentTest, PsAndEvaluatorStandOutsideTheMesh) {
  const auto job = ReadEnvironment(
      Of({{"TF_CONFIG",
           R"({"cluster":{"chief":["c:1"],"ps":["p:1"]},"task":{"type":"ps","index":0}})"}}));
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->process(), std::nullopt);
}

TEST(EnvironmentTest, ALargeClusterLiesInAFile) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("cluster-" + std::to_string(::getpid()));
  ASSERT_TRUE(WriteFileAtomically(path, R"({"cluster":{"worker":["a:1","b:1"]}})").ok());
  const std::map<std::string, std::string> variables = {
      {"MESHTRAIN_CLUSTER_FILE", path}, {"MESHTRAIN_ROLE", "worker"}, {"MESHTRAIN_INDEX", "1"}};
  const auto job = ReadEnvironment(Of(variables));
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->process(), 1);
  auto wrong = variables;
  wrong["MESHTRAIN_INDEX"] = "one";
  EXPECT_EQ(ReadEnvironment(Of(wrong)).status().message(),
            "MESHTRAIN_INDEX: expected a number from 0, got: one");
  std::filesystem::remove(path);
}

TEST(EnvironmentTest, WhatIsWrongIsNamed) {
  EXPECT_EQ(ReadEnvironment(Of({{"MESHTRAIN_PROGRAM", "{"}})).status().message(),
            "MESHTRAIN_PROGRAM: expected a JSON object, got: {");
  EXPECT_EQ(ReadEnvironment(Of({{"MESHTRAIN_ATTEMPT", "x"}})).status().message(),
            "MESHTRAIN_ATTEMPT: expected a number from 0, got: x");
  EXPECT_EQ(
      ReadEnvironment(Of({{"TF_CONFIG", "{}"}, {"MESHTRAIN_PROGRAM", kProgram}})).status().code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshtrain::trainer

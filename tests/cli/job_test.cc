// A file as the job that it stands for.
#include "cli/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/manifests.h"

namespace meshtrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class JobTest : public ManifestTest {};

TEST_F(JobTest, AProgramAloneIsAJobOfOneWorkerNamedAfterItsFile) {
  struct {
    const char *file, *name;
  } const cases[] = {{"mnist.yaml", "mnist"},
                     {"MNIST MLP_v2.yaml", "mnist-mlp-v2"},
                     {"2024-digits.yaml", "digits"},
                     {"--.yaml", "job"},
                     {"a-.yaml", "a"},
                     {"an-extraordinarily-long-name-of-a-file-that-says-it-all.yaml",
                      "an-extraordinarily-long-name-of-a-file-t"}};
  for (const auto& c : cases) {
    const auto job = ReadJob(Write(c.file, ProgramText()));
    ASSERT_TRUE(job.ok()) << job.status().message();
    EXPECT_EQ(job->job.metadata.name, c.name);
    EXPECT_EQ(job->job.metadata.namespace_name, "default");
    ASSERT_EQ(job->job.spec.replica_specs.size(), 1u);
    EXPECT_EQ(job->job.spec.replica_specs.at(cluster::Role::kWorker).replicas, 1);
    EXPECT_TRUE(ReadsDataHere(*job));
    EXPECT_EQ(job->text, ProgramText()) << "the text is kept as it is";
  }
}

TEST_F(JobTest, AProgramsStrategyAndCheckpointAreTheJobs) {
  const auto job =
      ReadJob(Write("p.yaml", Replaced(ProgramText(), "mesh: {batch: 2}",
                                       "strategy: Mirrored\ndevices: {count: 2}\n"
                                       "checkpoint: {path: out/ckpt, everySteps: 7}")));
  ASSERT_TRUE(job.ok()) << job.status().message();
  ASSERT_TRUE(job->job.spec.checkpoint);
  EXPECT_EQ(job->job.spec.checkpoint->path, "out/ckpt");
  EXPECT_EQ(job->job.spec.checkpoint->every_steps, 7);
  ASSERT_TRUE(job->program);
  ASSERT_EQ(job->program->program.mesh.size(), 1u);
  EXPECT_EQ(job->program->program.mesh[0].size, 2) << "Mirrored over both devices";
}

TEST_F(JobTest, AMistakeOfACheckpointIsToldOnce) {
  const auto mistakes = [&](const std::string& text) {
    return Replaced(ReadJob(Write("p.yaml", text)).status().message(), folder_.path() + "/", "");
  };
  const std::string program =
      Replaced(ProgramText(), "mesh: {batch: 2}", "checkpoint: {everysteps: 7}\nmesh: {batch: 2}");
  EXPECT_THAT(mistakes(program),
              ::testing::MatchesRegex(
                  "p.yaml:[0-9]+:14: checkpoint: unknown field `everysteps`, did you mean "
                  "`everySteps`\\?"));
}

TEST_F(JobTest, TheProgramKeepsTheOrderOfTheTextsKeys) {
  const auto job = ReadJob(Write("job.yaml", JobText()));
  ASSERT_TRUE(job.ok()) << job.status().message();
  const std::string& program = job->job.spec.program;
  EXPECT_LT(program.find("\"seed\""), program.find("\"mesh\""));
  EXPECT_LT(program.find("\"model\""), program.find("\"loss\""));
  EXPECT_LT(program.find("\"hidden\""), program.find("\"logits\""));
  EXPECT_EQ(nlohmann::json::parse(program)["data"]["batch"], 64);
}

TEST_F(JobTest, EachReadIsAJobOfItsOwn) {
  const std::string file = Write("job.yaml", JobText());
  const auto a = ReadJob(file), b = ReadJob(file);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->job.metadata.uid, b->job.metadata.uid);
  EXPECT_EQ(a->job.metadata.generation, 1);
}

TEST_F(JobTest, ATemplateMayHaveItsDataElsewhere) {
  const auto job = ReadJob(Write(
      "job.yaml",
      Replaced(JobText(), "{replicas: 2}",
               "{replicas: 2, template: {spec: {containers: [{name: trainer, image: mine}]}}}")));
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_FALSE(ReadsDataHere(*job));
}

TEST_F(JobTest, ATemplateIsReadAsKubectlReadsIt) {
  const auto job = ReadJob(Write(
      "job.yaml",
      Replaced(JobText(), "{replicas: 2}",
               "{replicas: 2, template: {spec: {hostIPC: no, priority: 1_000, volumes: ["
               "{name: a, secret: {secretName: s, defaultMode: 0400}}, "
               "{name: b, secret: {secretName: s, defaultMode: 0o440, note: \"0400\"}}], "
               "containers: [{name: trainer, image: mine, resources: {limits: {cpu: 1.0, b: 0.5}}}"
               "]}}}")));
  ASSERT_TRUE(job.ok()) << job.status().message();
  const auto object = nlohmann::json::parse(job->object);
  const auto& spec = object["spec"]["replicaSpecs"]["worker"]["template"]["spec"];
  EXPECT_EQ(spec["volumes"][0]["secret"]["defaultMode"].dump(), "256");
  EXPECT_EQ(spec["volumes"][1]["secret"]["defaultMode"].dump(), "288");
  EXPECT_EQ(spec["volumes"][1]["secret"]["note"], "0400");
  EXPECT_EQ(spec["hostIPC"], false);
  EXPECT_EQ(spec["priority"], 1000);
  EXPECT_EQ(spec["containers"][0]["resources"]["limits"].dump(), R"({"b":0.5,"cpu":1})");
  // What a run here starts is of the same template.
  EXPECT_EQ(nlohmann::json::parse(
                job->job.spec.replica_specs.at(cluster::Role::kWorker).pod_template.json),
            object["spec"]["replicaSpecs"]["worker"]["template"]);
}

struct Mistake {
  std::string name;
  std::string from, to;  // in JobText
  std::string says;      // behind "job.yaml"
};

class MistakeTest : public ManifestTest, public ::testing::WithParamInterface<Mistake> {};

TEST_P(MistakeTest, IsOfTheManifestAndHasItsPlace) {
  const Mistake& c = GetParam();
  const std::string file = Write("job.yaml", Replaced(JobText(), c.from, c.to));
  const auto job = ReadJob(file);
  ASSERT_FALSE(job.ok());
  EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(job.status().origin(), Origin::kManifest);
  EXPECT_THAT(job.status().message(), HasSubstr(file + c.says));
}

INSTANTIATE_TEST_SUITE_P(
    Places, MistakeTest,
    ::testing::Values(
        Mistake{"OfTheOperatorsRules", "replicas: 2", "replicas: -1",
                ":5:37: spec.replicaSpecs.worker.replicas: expected a whole number of at least 0, "
                "got: -1"},
        Mistake{"OfAnItemOfAList", "  program:",
                "  failurePolicy: {rules: [{action: Ignore}, {action: Perhaps}]}\n  program:",
                ":6:46: spec.failurePolicy.rules[1].action: must be one of"},
        Mistake{"OfTheProgram", "- flatten", "- flaten",
                ":15:9: program.model[0]: unknown layer `flaten`, did you mean `flatten`?"},
        Mistake{"OfAKeyThatIsThereTwice", "    seed: 3", "    seed: 3\n    seed: 4",
                ":9:5: key `seed` is here twice"},
        Mistake{"OfANumberOfATemplate", "{replicas: 2}",
                "{replicas: 2, template: {spec: {priority: 12345678901234567890}}}",
                ":5:68: spec.replicaSpecs.worker.template.spec.priority: expected a whole number "
                "of 64 bits (or a text in quotes), got: 12345678901234567890"},
        Mistake{"OfANumberThatKubectlReadsAsAnother", "batch: 64", "batch: 064",
                ":13:14: spec.program.data.batch: expected a number without a 0 before it, since "
                "kubectl reads 52, got: 064"},
        Mistake{"OfANamespaceThatIsNoText", "{name: digits}", "{name: digits, namespace: 5}",
                ":3:26: metadata.namespace: must be a string, got: 5"},
        Mistake{"OfTheText", "{batch: 2}", "{batch: 2", ":"}),
    [](const auto& info) { return info.param.name; });

TEST_F(JobTest, EachMistakeIsToldOnceInTheOrderOfTheText) {
  std::string text = Replaced(JobText(), "replicas: 2", "replicas: -1");
  text = Replaced(text, "- flatten", "- flaten");
  const auto job = ReadJob(Write("job.yaml", text));
  ASSERT_FALSE(job.ok());
  const std::string said = job.status().message();
  EXPECT_LT(said.find(":5:37: "), said.find(":15:9: "));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST_F(JobTest, WhatIsNoTrainingJobIsNamed) {
  struct {
    const char *text, *says;
  } const cases[] = {
      {"", "job.yaml"},
      {"[1, 2]", "job.yaml:1:1: expected a TrainingJob or a program, got: a list"},
      {"apiVersion: v1\nkind: Pod\nspec: {}\n",
       "job.yaml:2:7: kind: expected TrainingJob, got: Pod"},
  };
  for (const auto& c : cases) {
    const auto job = ReadJob(Write("job.yaml", c.text));
    ASSERT_FALSE(job.ok()) << c.text;
    EXPECT_THAT(job.status().message(), HasSubstr(c.says));
    EXPECT_EQ(job.status().origin(), Origin::kManifest);
  }
}

}  // namespace
}  // namespace meshtrain::cli

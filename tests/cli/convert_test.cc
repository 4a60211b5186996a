// `meshtrain convert` over TFJobs in the shapes of Kubeflow's examples (tests/testdata/tfjob).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "cli/job.h"
#include "cli/tfjob.h"
#include "cli/verbs.h"
#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "runtime/base/file.h"
#include "runtime/cluster/contract.h"
#include "tests/cli/manifests.h"

namespace meshtrain::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::string kFolder = std::string(MT_TESTDATA) + "/tfjob/";

class ConvertTest : public ManifestTest {
 protected:
  int Convert(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {"meshtrain", "convert"});
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    std::istringstream in(input);
    const int code =
        RunCommand(static_cast<int>(argv.size()), argv.data(), {.out = out, .err = err, .in = in});
    out_ = out.str();
    err_ = err.str();
    return code;
  }
  std::string out_, err_;
};

std::vector<std::string> Corpus() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = file.path().filename();
    if (name.ends_with(".yaml") && !name.ends_with(".want.yaml")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST_F(ConvertTest, EveryJobOfTheCorpusIsTheTrainingJobThatWeWant) {
  const std::vector<std::string> corpus = Corpus();
  EXPECT_GE(corpus.size(), 11u);
  for (const std::string& name : corpus) {
    SCOPED_TRACE(name);
    const std::string stem = kFolder + name.substr(0, name.size() - 5);
    // From standard input, so that no path of this machine is in the notes.
    ASSERT_EQ(Convert({"-f", "-"}, ReadFile(kFolder + name).value()), 0) << err_;
    if (std::getenv("MT_UPDATE") != nullptr) {
      ASSERT_TRUE(WriteFileAtomically(stem + ".want.yaml", out_).ok());
      ASSERT_TRUE(WriteFileAtomically(stem + ".notes", err_).ok());
    }
    EXPECT_EQ(out_, ReadFile(stem + ".want.yaml").value());
    EXPECT_EQ(err_, ReadFile(stem + ".notes").value());
  }
}

// Every scalar of a TFJob is in the TrainingJob, or its field or one above it is in a note.
void Missing(const manifest::Node& node, const std::string& path, const std::string& job,
             const std::set<std::string>& noted, std::vector<std::string>* missing) {
  if (noted.contains(path)) return;
  for (const manifest::Node::Member& m : node.members) {
    Missing(m.value, path.empty() ? m.key : path + "." + m.key, job, noted, missing);
  }
  for (const manifest::Node& item : node.list) Missing(item, path, job, noted, missing);
  if (!node.IsScalar() || node.scalar.empty()) return;
  // As JSON has it, so that line ends and quotes look alike.
  const std::string word = JsonText(node);
  if (job.find(word) == std::string::npos) missing->push_back(path + ": " + node.scalar);
}

TEST_F(ConvertTest, NothingIsLostSilently) {
  // Kinds and versions change; a last-applied copy, what is at its default and a null say nothing.
  const std::set<std::string> same = {
      "apiVersion", "kind", "spec.enableDynamicWorker",
      "metadata.annotations.kubectl.kubernetes.io/last-applied-configuration"};
  int jobs = 0;
  for (const std::string& name : Corpus()) {
    SCOPED_TRACE(name);
    const auto documents = manifest::ParseDocuments(ReadFile(kFolder + name).value(), name);
    ASSERT_TRUE(documents.ok());
    std::vector<manifest::Node> objects = *documents;
    if (const manifest::Node* items = objects[0].Find("items")) objects = items->list;
    for (const manifest::Node& object : objects) {
      if (!IsTfJob(object)) continue;
      ++jobs;
      const auto converted = FromTfJob(object, {});
      ASSERT_TRUE(converted.ok()) << converted.status().message();
      std::set<std::string> noted = same;
      for (const TfJobNote& note : converted->notes) {
        EXPECT_FALSE(note.says.empty());
        EXPECT_GT(note.place.line, 0) << note.path;
        if (note.left_out || note.path == "status" || note.path.starts_with("metadata.") ||
            note.path.ends_with(".managedBy")) {
          noted.insert(note.path);
        }
      }
      std::vector<std::string> missing;
      Missing(object, "", JsonText(converted->job), noted, &missing);
      EXPECT_THAT(missing, IsEmpty());
      const auto job = api::FromJson(JsonText(converted->job));
      ASSERT_TRUE(job.ok()) << job.status().message();
      EXPECT_THAT(job->problems, IsEmpty());
    }
  }
  EXPECT_GE(jobs, 12);
}

TEST_F(ConvertTest, HostNamesMayStay) {
  EXPECT_EQ(Convert({"-f", kFolder + "one-worker.yaml", "--keep-host-names"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("compat: kubeflow-v1"));
}

TEST_F(ConvertTest, StrictPrintsNothingWhereSomethingWouldBeLeftOut) {
  EXPECT_EQ(Convert({"-f", kFolder + "slips.yaml", "--strict"}), cluster::kExitBadConfig);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_THAT(err_, HasSubstr(":6:3: spec.mlPolicy: is no field of TFJob: left out"));
  EXPECT_EQ(Convert({"-f", kFolder + "estimator.yaml", "--strict"}), 0) << err_;
}

std::string TfJob(const std::string& spec, const std::string& worker = "replicas: 1") {
  return "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: two, namespace: ml}\nspec:\n"
         "  tfReplicaSpecs:\n    Worker: {" +
         worker + ", template: {spec: {containers: [{name: tensorflow, image: i}]}}}\n  " + spec +
         "\n";
}

TEST_F(ConvertTest, AValueOfAnotherKindIsRefusedWithItsPlace) {
  const struct {
    std::string text, says;
  } cases[] = {
      {TfJob("enableDynamicWorker: perhaps"),
       "7:24: spec.enableDynamicWorker: expected true or false, got: perhaps"},
      {TfJob("runPolicy: [a]"), "7:14: spec.runPolicy: expected a map, got: a list"},
      {TfJob("runPolicy: {schedulingPolicy: gang}"),
       "7:33: spec.runPolicy.schedulingPolicy: expected a map, got: gang"},
      {TfJob("runPolicy: {cleanPodPolicy: [All]}"),
       "7:31: spec.runPolicy.cleanPodPolicy: expected a text or a number, got: a list"},
      {TfJob("runPolicy: {suspend: 1}"),
       "7:24: spec.runPolicy.suspend: expected true or false, got: 1"},
      {TfJob("successPolicy: {a: b}"),
       "7:18: spec.successPolicy: expected a text or a number, got: a map"},
      {TfJob("", "replicas: [5], restartPolicy: [Always]"),
       "6:24: spec.tfReplicaSpecs.Worker.replicas: expected a text or a number, got: a list\n"
       "-:6:44: spec.tfReplicaSpecs.Worker.restartPolicy: expected a text or a number, got: a "
       "list"},
      {Replaced(TfJob(""), "{name: two, namespace: ml}", "{name: two, annotations: [foo]}"),
       "3:36: metadata.annotations: expected a map, got: a list"},
      {Replaced(TfJob(""), "{name: two, namespace: ml}", "[two]"),
       "3:11: metadata: expected a map, got: a list"},
      {Replaced(TfJob(""), "{spec: {containers: [{name: tensorflow, image: i}]}}", "[a]"),
       "6:37: spec.tfReplicaSpecs.Worker.template: expected a map, got: a list"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Convert({"-f", "-"}, c.text), cluster::kExitBadConfig) << c.text;
    EXPECT_EQ(err_, "meshtrain convert: -:" + c.says + "\n");
    EXPECT_THAT(out_, IsEmpty());
  }
}

TEST_F(ConvertTest, ABooleanMayBeKubectls) {
  EXPECT_EQ(Convert({"-f", "-"}, TfJob("enableDynamicWorker: yes\n  runPolicy: {suspend: off}")), 0)
      << err_;
  EXPECT_THAT(out_, HasSubstr("elastic: {minReplicas: 1, maxReplicas: 1}"));
  EXPECT_THAT(out_, HasSubstr("suspend: false"));
}

TEST_F(ConvertTest, OfSeveralJobsItSaysWhich) {
  const std::string wrong = Replaced(TfJob("", "replicas: -1"), "two", "wrong");
  EXPECT_EQ(Convert({"-f", "-"}, TfJob("") + "---\n" + wrong), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("-:9: ml/wrong: spec.replicaSpecs.worker.replicas: "));
  const std::string told = Replaced(TfJob(""), "{spec: {", "{spec: {restartPolicy: Always, ");
  EXPECT_EQ(Convert({"-f", "-"}, TfJob("") + "---\n" + told), 0) << err_;
  EXPECT_THAT(err_,
              HasSubstr("-:9: ml/two: spec.replicaSpecs.worker.template.spec.restartPolicy: "));
}

TEST_F(ConvertTest, WhatStandsBesideTheJobsKeepsItsKeys) {
  const std::string data = "data: {\"010\": \"eight?\", \"yes\": \"a\", \"1.0\": \"c\"}\n";
  EXPECT_EQ(Convert({"-f", "-"}, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\n" + data +
                                     "---\n" + TfJob("")),
            0)
      << err_;
  EXPECT_THAT(out_, HasSubstr(data));
}

TEST_F(ConvertTest, AStatusIsNothingThatIsLost) {
  const std::string live = TfJob("runPolicy: {}") + "status: {startTime: 2026-01-01}\n";
  EXPECT_EQ(Convert({"-f", "-", "--strict"}, live), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("-:8:1: status: is the operator's to write\n"));
}

TEST_F(ConvertTest, SaysWhatItCannotConvert) {
  const std::string other = Write("torch.yaml", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n");
  EXPECT_EQ(Convert({"-f", other}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, StartsWith("meshtrain convert: " + other +
                               ":2:7: kind: expected TFJob, got: "
                               "PyTorchJob"));
  const std::string empty =
      Write("empty.yaml", "apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {}\n");
  EXPECT_EQ(Convert({"-f", empty}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("spec.tfReplicaSpecs: expected a map of roles, got: nothing"));
  EXPECT_EQ(Convert({"-f", folder_.path() + "/none"}), cluster::kExitNoInput);
  // What the operator would refuse is told here, not there.
  const std::string two = Write("two.yaml", R"(apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: two}
spec:
  tfReplicaSpecs:
    Chief: {replicas: 2, template: {spec: {containers: [{name: tensorflow, image: i}]}}}
)");
  EXPECT_EQ(Convert({"-f", two}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("spec.replicaSpecs.chief.replicas: must be at most 1, got: 2"));
}

}  // namespace
}  // namespace meshtrain::cli

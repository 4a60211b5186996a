// What a user sees through kubectl. MT_CAPTURE=FILE keeps the transcript; docs/reference/kubectl.md
// shows one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "tests/integration/operator/operator_fixture.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class KubectlTest : public OperatorTest {
 protected:
  // Runs kubectl and keeps command and output as a terminal would show them.
  std::string Shown(const std::string& arguments) {
    std::vector<std::string> words;
    for (const std::string& word : Split(arguments, ' ')) words.push_back(word);
    std::string out = Kubectl(words);
    transcript_ += "$ kubectl " + arguments + "\n" + out + (out.ends_with('\n') ? "" : "\n") + "\n";
    commands_.push_back("$ kubectl " + arguments + "\n");
    return out;
  }
  std::string transcript_;
  std::vector<std::string> commands_;
};

TEST_F(KubectlTest, ShowsWaitsForAndScalesAJob) {
  // A chief that serves its progress, where the kubelet says it is.
  httplib::Server chief;
  chief.Get("/progress", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(
        R"({"step":1200,"totalSteps":4000,"epoch":3.0,"loss":0.0412,"accuracy":0.9871,)"
        R"("examplesPerSecond":25210,"etaSeconds":14,"checkpoint":{"step":1000,"path":"/checkpoints"}})",
        "application/json");
  });
  const int port = chief.bind_to_any_port("127.0.0.1");
  ASSERT_GT(port, 0);
  std::jthread serving([&] { chief.listen_after_bind(); });
  // Also where an expectation ends the test.
  const std::shared_ptr<void> stops(nullptr, [&](void*) { chief.stop(); });

  OperatorProcess& process = StartOperator();
  const json pod = {{"spec",
                     {{"containers",
                       {{{"name", "trainer"},
                         {"image", "registry.example/mnist:1"},
                         {"ports", {{{"name", "meshtrain-http"}, {"containerPort", port}}}}}}}}}};
  json role = {{"replicas", 1}, {"restartPolicy", "ExitCode"}, {"template", pod}};
  json job = {{"apiVersion", "meshtrain.dev/v1"},
              {"kind", "TrainingJob"},
              {"metadata", {{"name", "mnist"}}},
              {"spec",
               {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}},
                {"replicaSpecs", {{"chief", role}}}}}};
  role["replicas"] = 2;
  job["spec"]["replicaSpecs"]["worker"] = role;
  Kubectl({"create", "-f", "-"}, job.dump());
  ASSERT_TRUE(WaitForPods("mnist", 3));
  for (const char* name : {"mnist-chief-0", "mnist-worker-0", "mnist-worker-1"}) SetRunning(name);
  ASSERT_TRUE(api()
                  .client()
                  .Patch(kube::Pods(), ns_, "mnist-chief-0", "status", kube::PatchType::kMerge,
                         R"({"status":{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}})", {})
                  .ok());
  ASSERT_TRUE(Eventually(
      [&] {
        const json status = Get(control::TrainingJobs(), "mnist")["status"];
        return status.value("ready", "") == "3/3" && status.contains("progress");
      },
      std::chrono::seconds(40)));

  EXPECT_THAT(Shown("get tj"), AllOf(ContainsRegex("NAME +PHASE +READY +STEP"),
                                     ContainsRegex("mnist +Running +3/3 +1200 .*0.0412 +0.9871")));
  // The same for Prometheus, also when the job has ended.
  EXPECT_DOUBLE_EQ(process.Metric("meshtrain_job_loss{job=\"mnist\",namespace=\"" + ns_), 0.0412);
  Shown("get pods -l meshtrain.dev/job-name=mnist -L meshtrain.dev/replica-type");
  EXPECT_THAT(Shown("scale tj mnist --replicas=4"), HasSubstr("scaled"));
  ASSERT_TRUE(WaitForPods("mnist", 5));
  // They know each other, so all were made again.
  for (const json& made : Pods("mnist")) SetRunning(made["metadata"]["name"]);
  ASSERT_TRUE(Eventually(
      [&] { return Get(control::TrainingJobs(), "mnist")["status"]["ready"] == "5/5"; }));
  EXPECT_THAT(Shown("get tj mnist"), ContainsRegex("mnist +Running +5/5"));
  SetEnded("mnist-chief-0", 0);
  EXPECT_THAT(Shown("wait --for=condition=Succeeded tj/mnist --timeout=60s"),
              HasSubstr("trainingjob.meshtrain.dev/mnist condition met"));
  EXPECT_DOUBLE_EQ(process.Metric("meshtrain_job_step{job=\"mnist\",namespace=\"" + ns_), 1200);
  ASSERT_TRUE(Eventually([&] {
    const std::string out = TryKubectl({"describe", "tj", "mnist"}).out;
    return out.find("JobSucceeded  ") != std::string::npos &&
           out.find("JobCreated  ") != std::string::npos;
  }));
  EXPECT_THAT(Shown("describe tj mnist"),
              AllOf(HasSubstr("Events:"), ContainsRegex("Phase: +Succeeded"),
                    ContainsRegex("Normal +JobRunning"), ContainsRegex("Step: +1200")));
  EXPECT_THAT(Shown("explain trainingjob.spec"),
              AllOf(HasSubstr("replicaSpecs"), HasSubstr("-required-"), HasSubstr("runPolicy")));
  EXPECT_THAT(Shown("explain trainingjob.spec.runPolicy.cleanPodPolicy"),
              AllOf(HasSubstr("ENUM:"), HasSubstr("Running")));
  const CommandResult negative = TryKubectl({"scale", "tj", "mnist", "--replicas=99"});
  EXPECT_NE(negative.exit_code, 0) << "elastic.maxReplicas is 8";

  if (const char* file = std::getenv("MT_CAPTURE")) {
    EXPECT_TRUE(WriteFileAtomically(file, transcript_).ok());
  }
  const auto docs = ReadFile(std::string(MT_SOURCE_DIR) + "/docs/reference/kubectl.md");
  ASSERT_TRUE(docs.ok());
  for (const std::string& command : commands_) {
    EXPECT_THAT(*docs, HasSubstr(command)) << "capture it again";
  }
}

}  // namespace
}  // namespace meshtrain::testing

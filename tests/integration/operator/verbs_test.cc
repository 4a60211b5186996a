// The verbs of the command line that speak to a cluster, against a real API server and a real
// operator. The test plays kubelet: it says how pods are, and serves their logs where the node says
// that its kubelet is.
#include "cli/verbs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"
#include "tests/integration/operator/operator_fixture.h"
#include "tests/support/small_program.h"
#include "tests/support/temp_folder.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VerbsTest : public OperatorTest {
 protected:
  void SetUp() override {
    OperatorTest::SetUp();
    if (!IsSkipped()) StartOperator();
  }

  int Verb(std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), "meshtrain");
    if (arguments.size() > 1 && arguments[1] != "completion") {
      arguments.insert(arguments.begin() + 2, {"--kubeconfig", api().kubeconfig(), "-n", ns_});
    }
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out, err;
    std::istringstream in(input);
    const int code = cli::RunCommand(static_cast<int>(argv.size()), argv.data(),
                                     {.out = out, .err = err, .in = in});
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string Manifest(const std::string& name, int workers) {
    return json{{"apiVersion", "meshtrain.dev/v1"},
                {"kind", "TrainingJob"},
                {"metadata", {{"name", name}}},
                {"spec",
                 {{"elastic", {{"minReplicas", 1}, {"maxReplicas", 8}}},
                  {"replicaSpecs",
                   {{"worker",
                     {{"replicas", workers},
                      {"restartPolicy", "ExitCode"},
                      {"template",
                       {{"spec",
                         {{"containers",
                           {{{"name", "trainer"},
                             {"image", "i"},
                             {"env",
                              {{{"name", "API_TOKEN"}, {"value", "tiger"}},
                               {{"name", "STEPS"}, {"value", "20"}}}}}}}}}}}}}}}}}}
        .dump();
  }

  // A node whose kubelet is this test.
  void ServeLogs() {
    const std::string pki = api().config().ca_file.substr(0, api().config().ca_file.rfind('/'));
    kubelet_ = std::make_unique<httplib::SSLServer>((pki + "/apiserver.crt").c_str(),
                                                    (pki + "/apiserver.key").c_str());
    ASSERT_TRUE(kubelet_->is_valid());
    kubelet_->Get(
        R"(/containerLogs/.*)", [](const httplib::Request& request, httplib::Response& response) {
          if (request.has_param("previous")) {
            response.status = 400;
            return;
          }
          const bool one = request.path.find("worker-1") != std::string::npos;
          response.set_content(one ? "one: step 1\none: step 2\n"
                                   : "zero: step 1\nzero: api_token=tiger\nzero: the last line",
                               "text/plain");
        });
    const int port = kubelet_->bind_to_any_port("127.0.0.1");
    ASSERT_GT(port, 0);
    serving_ = std::jthread([this] { kubelet_->listen_after_bind(); });
    Kubectl({"apply", "-f", "-"},
            json{{"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", "here"}}}}.dump());
    const json status = {
        {"addresses", {{{"type", "InternalIP"}, {"address", "127.0.0.1"}}}},
        {"daemonEndpoints", {{"kubeletEndpoint", {{"Port", port}}}}},
        {"conditions",
         {{{"type", "Ready"}, {"status", "True"}, {"reason", "r"}, {"message", "m"}}}}};
    Kubectl({"patch", "node", "here", "--subresource=status", "--type=merge", "-p",
             json{{"status", status}}.dump()});
  }
  void TearDown() override {
    if (kubelet_) kubelet_->stop();
    if (serving_.joinable()) serving_.join();
    OperatorTest::TearDown();
  }
  void Bind(const std::string& pod) {
    const json binding = {{"apiVersion", "v1"},
                          {"kind", "Binding"},
                          {"metadata", {{"name", pod}}},
                          {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", "here"}}}};
    ASSERT_TRUE(api()
                    .client()
                    .Create({"", "v1", "pods/" + pod + "/binding"}, ns_, binding.dump(), {})
                    .ok());
  }

  std::string out_, err_;
  std::unique_ptr<httplib::SSLServer> kubelet_;
  std::jthread serving_;
  testing_folder::TempFolder folder_;
};

TEST_F(VerbsTest, SubmitsListsTellsScalesSuspendsAndResumes) {
  EXPECT_EQ(Verb({"list"}), 0);
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_THAT(err_, HasSubstr("no TrainingJobs in namespace " + ns_));

  EXPECT_EQ(Verb({"submit", "-f", "-", "--dry-run"}, Manifest("mnist", 2)), 0) << err_;
  EXPECT_EQ(Verb({"status", "mnist"}), cluster::kExitNoInput) << "nothing was stored";
  EXPECT_THAT(err_, HasSubstr("meshtrain status: trainingjob \"mnist\" in namespace " + ns_));
  EXPECT_EQ(Verb({"submit", "-f", "-"}, Manifest("mnist", 2)), 0) << err_;
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/mnist created\n");
  EXPECT_EQ(Verb({"submit", "-f", "-"}, Manifest("mnist", 2)), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("expected a new name"));
  // A mistake is told with its place, and nothing is sent.
  EXPECT_EQ(Verb({"submit", "-f", "-"},
                 "apiVersion: meshtrain.dev/v1\nkind: TrainingJob\nmetadata: {name: a}\nspec:\n"
                 "  replicaSpecs: {worker: {replicas: -1}}\n"),
            cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("meshtrain submit: -:5:"));

  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) SetRunning(pod);
  ASSERT_TRUE(Eventually([&] {
    // There is no status yet where the operator is slow.
    const auto job = Get(control::TrainingJobs(), "mnist");
    return job.contains("status") && job["status"].value("ready", "") == "2/2";
  }));
  EXPECT_EQ(Verb({"list"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(ContainsRegex("NAME +PHASE +READY +STEP"),
                          ContainsRegex("\nmnist +Running +2/2 ")));
  EXPECT_EQ(Verb({"list", "-q", "-o", "name"}), 0);
  EXPECT_EQ(out_, "trainingjob.meshtrain.dev/mnist\n");
  EXPECT_EQ(Verb({"list", "-A", "-o", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["items"][0]["kind"], "TrainingJob");
  EXPECT_EQ(Verb({"status", "mnist", "-o", "yaml"}), 0);
  EXPECT_THAT(out_, HasSubstr("kind: TrainingJob\n"));
  EXPECT_EQ(Verb({"status", "mnist"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(ContainsRegex("Phase: +Running"), ContainsRegex("worker +2 +2 +0"),
                          ContainsRegex("Running +yes")));

  EXPECT_EQ(Verb({"scale", "mnist", "--workers", "3"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("mnist scaled to 3 workers"));
  EXPECT_EQ(Verb({"scale", "mnist", "--workers", "9"}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("must lie between elastic.minReplicas and elastic.maxReplicas"));
  EXPECT_EQ(Verb({"suspend", "mnist", "none"}), cluster::kExitNoInput);
  EXPECT_THAT(out_, HasSubstr("mnist suspended"));
  EXPECT_THAT(err_, HasSubstr("\"none\""));
  EXPECT_TRUE(WaitForCondition("mnist", "Suspended"));
  EXPECT_EQ(Verb({"resume", "mnist", "-q"}), 0) << err_;
  EXPECT_THAT(out_, IsEmpty());
  EXPECT_TRUE(WaitForPods("mnist", 3));
  EXPECT_TRUE(Eventually([&] {
    return Verb({"events", "mnist"}) == 0 && out_.find("JobResumed") != std::string::npos;
  })) << out_;
  EXPECT_THAT(out_, ContainsRegex("AGE +TYPE +REASON +OBJECT +MESSAGE"));
  EXPECT_LT(out_.find("JobSuspended"), out_.find("JobResumed")) << "oldest first";
}

TEST_F(VerbsTest, LogsAndTheReportComeFromTheNodes) {
  ServeLogs();
  ASSERT_EQ(Verb({"submit", "-f", "-"}, Manifest("mnist", 2)), 0) << err_;
  ASSERT_TRUE(WaitForPods("mnist", 2));
  for (const char* pod : {"mnist-worker-0", "mnist-worker-1"}) {
    Bind(pod);
    SetRunning(pod);
  }
  EXPECT_EQ(Verb({"logs", "mnist"}), 0) << err_;
  EXPECT_EQ(out_, "zero: step 1\nzero: api_token=tiger\nzero: the last line\n") << "the leader's";
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "worker", "--index", "1"}), 0) << err_;
  EXPECT_EQ(out_, "one: step 1\none: step 2\n");
  EXPECT_EQ(Verb({"logs", "mnist", "--all"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("[worker-0] zero: step 1\n"));
  EXPECT_THAT(out_, HasSubstr("[worker-1] one: step 2\n"));
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "ps"}), cluster::kExitNoInput);
  EXPECT_EQ(Verb({"logs", "mnist", "--role", "boss"}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("expected chief, worker, ps or evaluator, got: boss"));

  const std::string file = folder_.path() + "/r.tar.gz";
  EXPECT_EQ(Verb({"report", "mnist", "-f", file}), 0) << err_;
  EXPECT_EQ(out_, file + "\n");
  const CommandResult unpacked = RunCommand({"tar", "-C", folder_.path(), "-xzf", file});
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.out;
  const std::string root = folder_.path() + "/mnist-report/";
  EXPECT_THAT(ReadFile(root + "logs/worker-0.log").value(),
              AllOf(HasSubstr("zero: step 1"), Not(HasSubstr("tiger"))));
  const std::string job = ReadFile(root + "job.json").value();
  EXPECT_THAT(job, AllOf(HasSubstr("STEPS"), HasSubstr("\"20\""), Not(HasSubstr("tiger"))));
  EXPECT_THAT(ReadFile(root + "pods/worker-1.json").value(),
              AllOf(HasSubstr("mnist-worker-1"), Not(HasSubstr("tiger"))));
  EXPECT_TRUE(ReadFile(root + "events.json").ok());
}

TEST_F(VerbsTest, SubmitWaitsForTheEndAndEndsAsTheJobDoes) {
  ServeLogs();
  const auto play = [&](const std::string& job, int code) {
    return std::jthread([this, job, code] {
      if (!WaitForPods(job, 1)) return;
      Bind(job + "-worker-0");
      TrySetRunning(job + "-worker-0");
      WaitForCondition(job, "Running");
      TrySetEnded(job + "-worker-0", code);
    });
  };
  {
    const std::jthread kubelet = play("good", 0);
    EXPECT_EQ(Verb({"submit", "-f", "-", "--follow"}, Manifest("good", 1)), 0) << err_;
    EXPECT_THAT(out_, HasSubstr("zero: step 1\n"));
    EXPECT_THAT(err_, HasSubstr("trainingjob.meshtrain.dev/good Succeeded"));
  }
  {
    const std::jthread kubelet = play("bad", 65);
    EXPECT_EQ(Verb({"submit", "-f", "-", "--wait"}, Manifest("bad", 1)), 65);
    EXPECT_THAT(err_, HasSubstr("trainingjob.meshtrain.dev/bad Failed: "));
  }
  EXPECT_EQ(Verb({"submit", "-f", "-", "--wait", "--timeout", "1"}, Manifest("slow", 1)),
            cluster::kExitIo);
  EXPECT_THAT(err_, HasSubstr("expected it to end within 1 s; it goes on in the cluster"));
  EXPECT_EQ(Verb({"suspend", "good"}), cluster::kExitBadConfig);
  EXPECT_THAT(err_, HasSubstr("expected a job that has not ended, got: Succeeded"));
}

// What `meshtrain convert` makes of every TFJob of the corpus is what the server takes.
TEST_F(VerbsTest, ConvertedJobsAreTaken) {
  int jobs = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(MT_SOURCE_DIR) + "/tests/testdata/tfjob")) {
    const std::string name = file.path().filename();
    if (!name.ends_with(".yaml") || name.ends_with(".want.yaml")) continue;
    SCOPED_TRACE(name);
    std::ostringstream out, err;
    const std::string path = file.path();
    const char* argv[] = {"meshtrain", "convert", "-f", path.c_str()};
    ASSERT_EQ(cli::RunCommand(4, argv, {.out = out, .err = err}), 0) << err.str();
    std::string text = out.str();
    text = std::regex_replace(text, std::regex("namespace: [a-z]+"), "namespace: " + ns_);
    const CommandResult taken = TryKubectl({"create", "--dry-run=server", "-f", "-"}, text);
    EXPECT_EQ(taken.exit_code, 0) << taken.out << text;
    ++jobs;
  }
  EXPECT_GE(jobs, 11);
}

TEST_F(VerbsTest, AServerThatIsNotThereIsAnErrorThatSaysSo) {
  std::ofstream(folder_.path() + "/config")
      << "current-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
         "contexts: [{name: c, context: {cluster: c}}]\n";
  std::ostringstream out, err;
  const std::string config = folder_.path() + "/config";
  const char* argv[] = {"meshtrain", "list", "--kubeconfig", config.c_str()};
  EXPECT_EQ(cli::RunCommand(4, argv, {.out = out, .err = err}), cluster::kExitIo);
  EXPECT_THAT(err.str(), ::testing::StartsWith("meshtrain list: "));
}

}  // namespace
}  // namespace meshtrain::testing

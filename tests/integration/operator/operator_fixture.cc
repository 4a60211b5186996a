#include "tests/integration/operator/operator_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/base/time_text.h"

extern char** environ;

namespace meshtrain::testing {

using nlohmann::json;

std::unique_ptr<ApiServer> OperatorTest::api_;
std::string OperatorTest::operator_kubeconfig_, OperatorTest::operator_token_;

OperatorProcess::OperatorProcess(const std::string& kubeconfig, std::vector<std::string> flags) {
  char log[] = "/tmp/meshtrain-operator-log.XXXXXX";
  const int fd = mkostemp(log, O_CLOEXEC);
  log_path_ = log;
  flags.insert(flags.begin(),
               {MT_OPERATOR, "--kubeconfig", kubeconfig, "--metrics-address", "127.0.0.1:0"});
  std::vector<char*> argv;
  for (std::string& flag : flags) argv.push_back(flag.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd, 1);
  posix_spawn_file_actions_adddup2(&actions, fd, 2);
  EXPECT_EQ(posix_spawn(&pid_, MT_OPERATOR, &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(fd);
}

OperatorProcess::~OperatorProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (::testing::Test::HasFailure()) {
    std::fprintf(stderr, "--- operator's log\n%s---\n", Log().c_str());
  }
  unlink(log_path_.c_str());
}

void OperatorProcess::Signal(int signal) const {
  MutexLock lock(mutex_);
  if (pid_ > 0) kill(pid_, signal);
}

int OperatorProcess::Wait(std::chrono::seconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  int status = 0;
  const auto ended = [&] {
    MutexLock lock(mutex_);
    if (waitpid(pid_, &status, WNOHANG) == 0) return false;
    pid_ = -1;
    return true;
  };
  while (!ended()) {
    if (std::chrono::steady_clock::now() > end) return -1;
    SystemClock().SleepFor(std::chrono::milliseconds(5), {});
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string OperatorProcess::Log() const {
  const auto text = ReadFile(log_path_);
  return text.ok() ? *text : "";
}

int OperatorProcess::metrics_port() const {
  const std::string log = Log();
  const size_t at = log.find(" port=");
  return at == std::string::npos ? 0 : std::atoi(log.c_str() + at + 6);
}

double OperatorProcess::Metric(const std::string& prefix) const {
  const CommandResult page = RunCommand(
      {"curl", "-fsS", "http://127.0.0.1:" + std::to_string(metrics_port()) + "/metrics"});
  for (const std::string& line : Split(page.out, '\n')) {
    if (line.starts_with(prefix)) return std::atof(line.substr(line.rfind(' ') + 1).c_str());
  }
  return -1;
}

void OperatorTest::StartApiServer() {
  std::string why;
  if (api_ || !ApiServer::Available(&why)) return;
  auto started = ApiServer::Start(/*controllers=*/true);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  api_ = *std::move(started);
}

void OperatorTest::AwaitCrd(const std::string& name) {
  CommandResult waited;
  // kubectl's own wait is an error for a CRD so new that it has no conditions yet.
  ASSERT_TRUE(Eventually([&] {
    waited = api_->Kubectl({"wait", "--for=condition=Established", "crd/" + name, "--timeout=30s"});
    return waited.exit_code == 0;
  })) << waited.out;
}

void OperatorTest::SetUpTestSuite() {
  StartApiServer();
  if (!api_) return;
  const std::string base = std::string(MT_SOURCE_DIR) + "/deploy/base";
  const CommandResult applied = api_->Kubectl({"apply", "--server-side", "-k", base});
  ASSERT_EQ(applied.exit_code, 0) << applied.out;
  ASSERT_NO_FATAL_FAILURE(AwaitCrd("trainingjobs.meshtrain.dev"));
  const CommandResult token =
      api_->Kubectl({"-n", "meshtrain-system", "create", "token", "meshtrain", "--duration=2h"});
  ASSERT_EQ(token.exit_code, 0) << token.out;
  operator_token_ = std::string(Trim(token.out));
  operator_kubeconfig_ = KubeconfigFor(api_->config().server);
}

std::string OperatorTest::KubeconfigFor(const std::string& server) {
  const std::string path = api_->kubeconfig() + ".operator." + server.substr(server.rfind(':') + 1);
  const std::string config = "current-context: c\nclusters: [{name: c, cluster: {server: '" +
                             server + "', certificate-authority: '" + api_->config().ca_file +
                             "'}}]\nusers: [{name: u, user: {token: '" + operator_token_ +
                             "'}}]\ncontexts: [{name: c, context: {cluster: c, user: u, namespace: "
                             "meshtrain-system}}]\n";
  EXPECT_TRUE(WriteFileAtomically(path, config).ok());
  return path;
}

void OperatorTest::TearDownTestSuite() { api_.reset(); }

void OperatorTest::SetUp() {
  std::string why;
  if (!ApiServer::Available(&why)) GTEST_SKIP() << why;
  ASSERT_TRUE(api_);
  std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  ns_ = "t-" + name.substr(0, 60);
  const CommandResult made = api().Kubectl({"create", "namespace", ns_});
  ASSERT_EQ(made.exit_code, 0) << made.out;
  ASSERT_TRUE(Eventually([&] {
    return TryKubectl({"get", "serviceaccount", "default"}).exit_code == 0;
  }));
}

void OperatorTest::TearDown() {
  StopOperators();
  if (api_) api().Kubectl({"delete", "namespace", ns_, "--wait=false"});
}

OperatorProcess& OperatorTest::StartOperator(bool wait_until_leading) {
  operators_.push_back(std::make_unique<OperatorProcess>(
      operator_kubeconfig_, std::vector<std::string>{"--leader-elect-namespace", "meshtrain-system",
                                                     "--leader-elect-name", "meshtrain"}));
  OperatorProcess& process = *operators_.back();
  if (wait_until_leading) {
    // A predecessor that was killed leaves a lease of 15 s.
    EXPECT_TRUE(Eventually([&] { return process.Log().find("watching") != std::string::npos; },
                           std::chrono::seconds(40)))
        << process.Log();
  }
  return process;
}

void OperatorTest::StopOperators() {
  for (auto& process : operators_) {
    if (process->pid() <= 0) continue;
    process->Signal(SIGCONT);
    process->Signal(SIGTERM);
    process->Wait(std::chrono::seconds(15));
  }
  operators_.clear();
}

CommandResult OperatorTest::TryKubectl(std::vector<std::string> args, const std::string& input) {
  args.insert(args.begin(), {"-n", ns_});
  return api().Kubectl(std::move(args), input);
}

std::string OperatorTest::Kubectl(std::vector<std::string> args, const std::string& input) {
  const CommandResult result = TryKubectl(args, input);
  EXPECT_EQ(result.exit_code, 0) << args[0] << ": " << result.out;
  return result.out;
}

void OperatorTest::ApplyJob(const std::string& name, int chiefs, int workers, const json& spec) {
  const json pod = {{"spec", {{"containers", {{{"name", "trainer"}, {"image", "i"}}}}}}};
  json job = {{"apiVersion", "meshtrain.dev/v1"},
              {"kind", "TrainingJob"},
              {"metadata", {{"name", name}, {"namespace", ns_}}},
              {"spec",
               {{"replicaSpecs",
                 {{"worker",
                   {{"replicas", workers}, {"restartPolicy", "ExitCode"}, {"template", pod}}}}}}}};
  if (chiefs > 0) {
    job["spec"]["replicaSpecs"]["chief"] = {
        {"replicas", chiefs}, {"restartPolicy", "ExitCode"}, {"template", pod}};
  }
  job["spec"].merge_patch(spec);
  Kubectl({"apply", "-f", "-"}, job.dump());
}

json OperatorTest::Get(const kube::Resource& resource, const std::string& name) {
  const auto text = api().client().Get(resource, ns_, name, {});
  return text.ok() ? json::parse(*text) : json();
}

std::vector<json> OperatorTest::Pods(const std::string& job) {
  std::vector<json> pods;
  const auto version = api().client().List(
      kube::Pods(), {.ns = ns_, .label_selector = "meshtrain.dev/job-name=" + job},
      [&](std::string_view item) { pods.push_back(json::parse(item)); }, [&] { pods.clear(); }, {});
  EXPECT_TRUE(version.ok()) << version.status().ToString();
  std::erase_if(pods,
                [](const json& pod) { return pod["metadata"].contains("deletionTimestamp"); });
  return pods;
}

namespace {
json FindCondition(const json& job, const std::string& type) {
  if (!job.is_object() || !job.contains("status")) return {};
  for (const json& condition : job["status"].value("conditions", json::array())) {
    if (condition["type"] == type) return condition;
  }
  return {};
}
}  // namespace

std::string OperatorTest::Condition(const std::string& job, const std::string& type) {
  const json condition = FindCondition(Get(control::TrainingJobs(), job), type);
  return condition.is_object() ? condition["status"].get<std::string>() : "";
}

std::string OperatorTest::Message(const std::string& job, const std::string& type) {
  const json condition = FindCondition(Get(control::TrainingJobs(), job), type);
  return condition.is_object() ? condition.value("message", "") : "";
}

bool OperatorTest::WaitForPods(const std::string& job, size_t count) {
  return Eventually([&] { return Pods(job).size() == count; });
}

bool OperatorTest::WaitForCondition(const std::string& job, const std::string& type) {
  return Eventually([&] { return Condition(job, type) == "True"; });
}

bool OperatorTest::TrySetRunning(const std::string& pod) {
  const json status = {
      {"phase", "Running"},
      {"startTime", FormatTime(SystemClock().Now())},
      {"conditions", {{{"type", "Ready"}, {"status", "True"}}}},
      {"containerStatuses",
       {{{"name", "trainer"},
         {"image", "i"},
         {"imageID", "i"},
         {"ready", true},
         {"restartCount", 0},
         {"state", {{"running", {{"startedAt", FormatTime(SystemClock().Now())}}}}}}}}};
  return api()
      .client()
      .Patch(kube::Pods(), ns_, pod, "status", kube::PatchType::kMerge,
             json{{"status", status}}.dump(), {})
      .ok();
}

bool OperatorTest::TrySetEnded(const std::string& pod, int exit_code) {
  const std::string now = FormatTime(SystemClock().Now());
  const json ended = {{"exitCode", exit_code},
                      {"reason", exit_code == 0 ? "Completed" : "Error"},
                      {"startedAt", now},
                      {"finishedAt", now}};
  const json status = {{"phase", exit_code == 0 ? "Succeeded" : "Failed"},
                       {"conditions", {{{"type", "Ready"}, {"status", "False"}}}},
                       {"containerStatuses",
                        {{{"name", "trainer"},
                          {"image", "i"},
                          {"imageID", "i"},
                          {"ready", false},
                          {"restartCount", 0},
                          {"state", {{"running", nullptr}, {"terminated", ended}}}}}}};
  return api()
      .client()
      .Patch(kube::Pods(), ns_, pod, "status", kube::PatchType::kMerge,
             json{{"status", status}}.dump(), {})
      .ok();
}

}  // namespace meshtrain::testing

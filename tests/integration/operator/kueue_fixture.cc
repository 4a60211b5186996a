#include "tests/integration/operator/kueue_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/file.h"

extern char** environ;

namespace meshtrain::testing {
namespace {

using nlohmann::json;

constexpr const char* kNamespace = "kueue-system";
constexpr const char* kService = "kueue-webhook-service";
constexpr const char* kSecret = "kueue-webhook-server-cert";

// Where it was built, as scripts/kubernetes/env.sh works it out.
const std::string& Prefix() {
  static const std::string prefix = [] {
    const CommandResult result =
        RunCommand({"bash", "-c", ". \"$1\" && printf %s \"$KUEUE_PREFIX\"", "_",
                    std::string(MT_SOURCE_DIR) + "/scripts/kubernetes/env.sh"});
    return result.exit_code == 0 ? result.out : std::string();
  }();
  return prefix;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

json ServiceAt(int port, const std::string& path) {
  return {{"namespace", kNamespace}, {"name", kService}, {"path", path}, {"port", port}};
}

// The webhooks of Kueue's own kinds. Those of the kinds that it queues itself would stand before
// every pod of the cluster.
json Webhooks(ApiServer& api, int port) {
  const CommandResult read = api.Kubectl({"create", "--dry-run=client", "-o", "json", "-f",
                                          Prefix() + "/manifests/webhook/manifests.yaml"});
  EXPECT_EQ(read.exit_code, 0) << read.out;
  json items = json::array();
  // kubectl writes one object after the other.
  size_t begin = 0;
  for (size_t at = read.out.find("\n}"); at != std::string::npos;
       at = read.out.find("\n}", begin)) {
    json one = json::parse(read.out.substr(begin, at + 2 - begin));
    begin = at + 2;
    json kept = json::array();
    for (json& webhook : one["webhooks"]) {
      if (webhook["rules"][0]["apiGroups"] != json::array({"kueue.x-k8s.io"})) continue;
      webhook["clientConfig"] = {
          {"service", ServiceAt(port, webhook["clientConfig"]["service"]["path"])}};
      kept.push_back(webhook);
    }
    one["webhooks"] = kept;
    one["metadata"] = {{"name", "kueue-" + one["metadata"]["name"].get<std::string>()}};
    items.push_back(one);
  }
  EXPECT_EQ(items.size(), 2u);
  return {{"apiVersion", "v1"}, {"kind", "List"}, {"items", items}};
}

}  // namespace

bool KueueProcess::Available(std::string* why) {
  if (std::filesystem::exists(Prefix() + "/complete")) return true;
  *why = "Kueue was not built: scripts/kubernetes/build-peers kueue";
  return false;
}

std::unique_ptr<KueueProcess> KueueProcess::Start(ApiServer& api) {
  auto process = std::unique_ptr<KueueProcess>(new KueueProcess);
  char folder[] = "/tmp/meshtrain-kueue.XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  process->folder_ = folder;
  const std::string certificates = process->folder_ + "/certificates";
  std::filesystem::create_directory(certificates);
  const int port = FreePort();

  const auto apply = [&](const json& object) {
    const CommandResult applied = api.Kubectl({"apply", "-f", "-"}, object.dump());
    EXPECT_EQ(applied.exit_code, 0) << applied.out;
  };
  const CommandResult declared =
      api.Kubectl({"apply", "--server-side", "-f", Prefix() + "/manifests/crd/bases"});
  EXPECT_EQ(declared.exit_code, 0) << declared.out;
  apply({{"apiVersion", "v1"}, {"kind", "Namespace"}, {"metadata", {{"name", kNamespace}}}});
  const json meta = {{"namespace", kNamespace}};
  json secret = {{"apiVersion", "v1"}, {"kind", "Secret"}, {"metadata", meta}};
  secret["metadata"]["name"] = kSecret;
  apply(secret);
  json service = {{"apiVersion", "v1"},
                  {"kind", "Service"},
                  {"metadata", meta},
                  {"spec", {{"type", "ExternalName"}, {"externalName", "localhost"}}}};
  service["metadata"]["name"] = kService;
  apply(service);
  const json conversion = {{"spec",
                            {{"conversion",
                              {{"strategy", "Webhook"},
                               {"webhook",
                                {{"clientConfig", {{"service", ServiceAt(port, "/convert")}}},
                                 {"conversionReviewVersions", json::array({"v1"})}}}}}}}};
  for (const char* kind :
       {"clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"}) {
    const CommandResult patched =
        api.Kubectl({"patch", "crd", std::string(kind) + ".kueue.x-k8s.io", "--type=merge", "-p",
                     conversion.dump()});
    EXPECT_EQ(patched.exit_code, 0) << patched.out;
  }
  apply(Webhooks(api, port));

  // JSON is YAML.
  const json configuration = {
      {"apiVersion", "config.kueue.x-k8s.io/v1beta2"},
      {"kind", "Configuration"},
      {"namespace", kNamespace},
      {"health", {{"healthProbeBindAddress", "0"}}},
      {"metrics", {{"bindAddress", "0"}}},
      {"webhook", {{"host", "127.0.0.1"}, {"port", port}, {"certDir", certificates}}},
      {"leaderElection", {{"leaderElect", false}}},
      {"waitForPodsReady", {{"timeout", "5m"}, {"blockAdmission", true}}},
      {"internalCertManagement",
       {{"enable", true}, {"webhookServiceName", kService}, {"webhookSecretName", kSecret}}},
      {"integrations",
       {{"frameworks", json::array({"batch/job"})},
        {"externalFrameworks", json::array({"TrainingJob.v1.meshtrain.dev"})}}},
      {"featureGates", {{"VisibilityOnDemand", false}}}};
  const std::string config = process->folder_ + "/config.yaml";
  EXPECT_TRUE(WriteFileAtomically(config, configuration.dump()).ok());

  const std::string program = Prefix() + "/bin/kueue", log = process->folder_ + "/log";
  const std::string kubeconfig = "--kubeconfig=" + api.kubeconfig(), from = "--config=" + config;
  // The child must not outlive a test that is killed.
  const pid_t parent = getpid();
  process->pid_ = fork();
  if (process->pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const int out = open(log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(out, 1);
    dup2(out, 2);
    execl(program.c_str(), program.c_str(), kubeconfig.c_str(), from.c_str(), nullptr);
    _exit(127);
  }

  // The kubelet's part: what it wrote into its Secret lies in its folder.
  const auto certified = [&] {
    const CommandResult read =
        api.Kubectl({"-n", kNamespace, "get", "secret", kSecret, "-o", "json"});
    const json object = json::parse(read.out, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("data")) return false;
    for (const auto& [name, value] : object["data"].items()) {
      const CommandResult plain = RunCommand({"base64", "-d"}, {}, value.get<std::string>());
      if (!WriteFileAtomically(certificates + "/" + name, plain.out).ok()) return false;
    }
    return object["data"].contains("tls.crt");
  };
  const json flavor = {{"apiVersion", "kueue.x-k8s.io/v1beta2"},
                       {"kind", "ResourceFlavor"},
                       {"metadata", {{"name", "probe"}}}};
  bool ready = false;
  for (int i = 0; i < 300 && !ready; ++i) {
    ready = certified() && api.Kubectl({"apply", "-f", "-"}, flavor.dump()).exit_code == 0;
    if (!ready) SystemClock().SleepFor(std::chrono::milliseconds(200), {});
  }
  EXPECT_TRUE(ready) << "Kueue did not answer";
  return process;
}

KueueProcess::~KueueProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (::testing::Test::HasFailure()) {
    const auto log = ReadFile(folder_ + "/log");
    std::fprintf(stderr, "--- Kueue's log\n%s---\n", log.ok() ? log->c_str() : "none");
  }
  std::filesystem::remove_all(folder_);
}

}  // namespace meshtrain::testing

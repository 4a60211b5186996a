#include "operator/local/launch.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "operator/certificates/certificates.h"
#include "operator/local/pod.h"
#include "operator/reconcile/children.h"
#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::local {
namespace {

using Json = nlohmann::json;
using cluster::Role;

constexpr char kLoopback[] = "127.0.0.1";

std::string Address(const std::string& host, int port) { return host + ":" + std::to_string(port); }
std::string Text(std::string_view text) { return std::string(text); }

// What MESHTRAIN_CHECKPOINT says, which a template may set.
std::string PathOf(const Json& checkpoint) {
  const bool there = checkpoint.contains("path") && checkpoint["path"].is_string();
  return there ? checkpoint["path"].get<std::string>() : std::string();
}

std::string RandomHex32() {
  unsigned char bytes[32];
  size_t have = 0;
  while (have < sizeof bytes) {
    const ssize_t n = ::getrandom(bytes + have, sizeof bytes - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char b : bytes) {
    out += kHex[b >> 4];
    out += kHex[b & 15];
  }
  return out;
}

// Sets the variable where the operator's own value stands, not where the user gave another.
void Replace(Container* container, std::string_view name, const std::string& from,
             const std::string& to) {
  for (auto& [variable, value] : container->environment) {
    if (variable == name && value == from) value = to;
  }
}

}  // namespace

int CoresFor(int cores, int processes, int place) {
  if (processes < 1) return std::max(1, cores);
  return std::max(1, cores / processes + (place < cores % processes ? 1 : 0));
}

Result<std::unique_ptr<Launcher>> Launcher::Create(const api::TrainingJob& job,
                                                   LaunchOptions options) {
  auto launcher = std::unique_ptr<Launcher>(new Launcher(job, std::move(options)));
  const cluster::ClusterSpec all = reconcile::JobCluster(job, {});
  for (const auto& [role, hosts] : all.hosts) {
    for (const auto& [index, host] : hosts) {
      Ports& ports = launcher->ports_[{role, index}];
      MT_ASSIGN_OR_RETURN(ports.training, launcher->reservation_.Take());
      MT_ASSIGN_OR_RETURN(ports.http, launcher->reservation_.Take());
      launcher->hosts_[host] = Address(kLoopback, ports.training);
    }
  }
  const char* temporary = std::getenv("TMPDIR");
  MT_ASSIGN_OR_RETURN(
      launcher->private_folder_,
      PrivateFolder::Create(temporary != nullptr && *temporary != '\0' ? temporary : "/tmp"));
  return launcher;
}

std::string Launcher::OutputFolder(TaskId task) const {
  return task == api::Leader(job_.spec) ? options_.output
                                        : options_.output + "/" + cluster::ToString(task);
}

std::optional<std::string> Launcher::MetricsAddress(TaskId task) const {
  const int port = ports_.at(task).http;
  if (task != api::Leader(job_.spec) || options_.metrics_address.empty()) {
    return Address(kLoopback, port);
  }
  if (options_.metrics_address == "none") return std::nullopt;
  if (options_.metrics_address.ends_with(":0")) {
    const std::string host =
        options_.metrics_address.substr(0, options_.metrics_address.size() - 2);
    return Address(host.empty() ? kLoopback : host, port);
  }
  return options_.metrics_address;
}

void Launcher::AddWorkerArguments(TaskId task, const std::string& directory,
                                  std::vector<std::string>* arguments) const {
  std::string output = OutputFolder(task);
  if (!directory.empty()) output = std::filesystem::absolute(output).string();
  arguments->insert(arguments->end(), {"--output", output, "--metrics-address",
                                       MetricsAddress(task).value_or("none")});
  if (options_.isolated) arguments->emplace_back("--isolated");
  int threads = options_.threads;
  const int chiefs = api::Replicas(job_.spec, Role::kChief);
  const int meshed = chiefs + api::Replicas(job_.spec, Role::kWorker);
  const bool computes = task.role == Role::kChief || task.role == Role::kWorker;
  // Each cluster's pod may use its node's memory or its own limit; here they are on one machine.
  if (options_.memory > 0 && meshed > 1 && computes) {
    arguments->insert(arguments->end(), {"--memory", std::to_string(options_.memory / meshed)});
  }
  if (threads == 0 && api::TotalReplicas(job_.spec) > 1) {
    // Those that hold devices of the mesh share the cores; a ps and an evaluator are beside it.
    if (task.role == Role::kChief) threads = CoresFor(options_.cores, meshed, 0);
    if (task.role == Role::kWorker) threads = CoresFor(options_.cores, meshed, chiefs + task.index);
    if (task.role == Role::kPs || task.role == Role::kEvaluator) threads = 1;
  }
  if (threads > 0) arguments->insert(arguments->end(), {"--threads", std::to_string(threads)});
}

void Launcher::AddManifestArguments(const Container& container,
                                    std::vector<std::string>* arguments) const {
  std::string file = options_.manifest_file;
  if (!container.working_directory.empty()) file = std::filesystem::absolute(file).string();
  arguments->insert(arguments->end(), {"--file", std::move(file)});
  // In one word with its flag: a user's file may begin with a dash.
  if (!options_.manifest_name.empty()) {
    arguments->push_back("--manifest-name=" + options_.manifest_name);
  }
  for (const auto& [variable, value] : container.environment) {
    if (variable != cluster::kEnvCheckpoint) continue;
    const Json checkpoint = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    const std::string path = PathOf(checkpoint);
    const bool as_written = job_.spec.checkpoint && job_.spec.checkpoint->path == path;
    if (!path.empty() && !as_written)
      arguments->insert(arguments->end(), {"--checkpoint-path", path});
  }
}

bool Launcher::ReadsManifest(Container* container) const {
  if (options_.manifest_file.empty()) return false;
  return std::erase_if(container->environment, [this](const auto& variable) {
           return variable.first == cluster::kEnvProgram && variable.second == job_.spec.program;
         }) > 0;
}

// `given`: the variable's value, or nothing. A claim is a folder; and processes that share no
// folder of their own need one for their checkpoints.
std::string Launcher::LocalCheckpoint(const std::string& given) const {
  Json checkpoint = Json::parse(given.empty() ? "{}" : given, nullptr, /*allow_exceptions=*/false);
  if (!checkpoint.is_object()) return given;
  // A folder of the output's claim: here the output is a folder of its own.
  const bool written = job_.spec.checkpoint && !job_.spec.checkpoint->path.empty();
  const bool in_claim = !written && job_.spec.output && checkpoint.contains("path") &&
                        checkpoint["path"] == reconcile::CheckpointPath(job_);
  if (in_claim) checkpoint.erase("path");
  if (job_.spec.checkpoint && !job_.spec.checkpoint->volume_claim_template.empty()) {
    checkpoint["path"] = ClaimFolder();
  } else if (api::TotalReplicas(job_.spec) > 1 && PathOf(checkpoint).empty()) {
    checkpoint["path"] = options_.output + "/checkpoints";
  } else if (!in_claim) {
    return given;
  }
  return checkpoint.dump();
}

std::string Launcher::ClaimFolder() const {
  return options_.output + "/claims/" + job_.metadata.name + "-checkpoint";
}

Result<Launch> Launcher::Prepare(const reconcile::CreatePod& pod) const {
  const std::string where =
      "spec.replicaSpecs." + Text(cluster::RoleName(pod.task.role)) + ".template.spec.containers";
  auto read = ReadPod(reconcile::PodBody(job_, {}, pod));
  if (!read.ok()) return read.status().At(where);
  Container container = std::move(*read);
  // The operator's, so that paths of the manifest begin where its claims are: here they begin where
  // the user stands.
  if (container.working_directory == cluster::kWorkFolder &&
      job_.spec.replica_specs.at(pod.task.role).pod_template.working_directory.empty()) {
    container.working_directory.clear();
  }
  if (job_.spec.output) {
    Replace(&container, cluster::kEnvOutput, reconcile::OutputFolder(job_, pod.task),
            std::filesystem::absolute(OutputFolder(pod.task)).string());
  }
  const std::string named = where + "[" + container.name + "]";

  // The user's own TF_CONFIG stays as it is.
  if (!job_.spec.replica_specs.at(pod.task.role).pod_template.has_tf_config) {
    for (auto& [variable, value] : container.environment) {
      if (variable == cluster::kEnvTfConfig) value = WithHosts(value, hosts_);
    }
  }
  Replace(&container, cluster::kEnvTokenFile,
          Text(cluster::kTokenMountPath) + "/" + Text(cluster::kTokenFileName),
          private_folder_->path() + "/" + Text(cluster::kTokenFileName));
  for (const auto& [variable, file] :
       {std::pair(cluster::kEnvTlsCa, cluster::kTlsCaFileName),
        std::pair(cluster::kEnvTlsCertificate, cluster::kTlsCertificateFileName),
        std::pair(cluster::kEnvTlsKey, cluster::kTlsKeyFileName)}) {
    Replace(&container, variable, Text(cluster::kTlsMountPath) + "/" + Text(file),
            private_folder_->path() + "/" + Text(file));
  }
  Replace(&container, cluster::kEnvClusterFile,
          Text(cluster::kClusterMountPath) + "/" + Text(cluster::kClusterFileName),
          private_folder_->path() + "/" + Text(cluster::kClusterFileName));
  const bool declared = !job_.spec.program.empty();
  bool has_checkpoint = false;
  for (auto& [variable, value] : container.environment) {
    if (variable != cluster::kEnvCheckpoint) continue;
    value = LocalCheckpoint(value);
    has_checkpoint = true;
  }
  if (declared && !has_checkpoint) {
    if (const std::string checkpoint = LocalCheckpoint(""); !checkpoint.empty()) {
      container.environment.emplace_back(cluster::kEnvCheckpoint, checkpoint);
    }
  }

  const bool our_worker = declared && container.command.empty();
  const bool reads_manifest = our_worker && ReadsManifest(&container);

  Launch launch{.restart_policy = container.restart_policy, .grace = container.grace};
  launch.termination_log = private_folder_->path() + "/" + cluster::ToString(pod.task) + ".log";
  const std::optional<std::string> metrics = MetricsAddress(pod.task);
  if (metrics) launch.progress_addresses.push_back(*metrics);
  if (container.http_port > 0 && !container.command.empty()) {
    launch.progress_addresses.push_back(Address(kLoopback, container.http_port));
  }

  // $(NAME) stands for the container's own variables only, as in a cluster.
  const std::map<std::string, std::string> own = Expand(container.environment);
  std::map<std::string, std::string> variables(options_.environment.begin(),
                                               options_.environment.end());
  variables["HOSTNAME"] = pod.name;
  variables[Text(cluster::kEnvTerminationLog)] = launch.termination_log;
  if (metrics) variables[Text(kEnvMetricsAddress)] = *metrics;
  for (const auto& [name, value] : own) variables[name] = value;
  for (const auto& [name, value] : variables) {
    launch.command.environment.push_back(name + "=" + value);
  }

  std::vector<std::string>& arguments = launch.command.arguments;
  for (const std::string& word : container.command) arguments.push_back(Expand(word, own));
  if (our_worker) arguments.push_back(options_.worker);
  if (arguments.empty()) {
    return FailedPrecondition(
        named +
        ".command: expected a command to run here, since an image's own entry point is not known "
        "without the image, got: none");
  }
  for (const std::string& word : container.args) arguments.push_back(Expand(word, own));
  if (our_worker) AddWorkerArguments(pod.task, container.working_directory, &arguments);
  if (reads_manifest) AddManifestArguments(container, &arguments);
  launch.command.directory = container.working_directory;
  launch.command.inherits_output = api::TotalReplicas(job_.spec) == 1;
  return launch;
}

Status Launcher::Check(std::vector<std::string>* notes) const {
  std::string wrong;
  for (const auto& [role, replica] : job_.spec.replica_specs) {
    if (replica.replicas < 1) continue;
    const TaskId task{role, 0};
    const reconcile::CreatePod pod{.name = cluster::PodName(job_.metadata.name, task),
                                   .task = task};
    if (const auto launch = Prepare(pod); !launch.ok()) {
      wrong += (wrong.empty() ? "" : "\n") + launch.status().message();
      continue;
    }
    const auto container = ReadPod(reconcile::PodBody(job_, {}, pod));
    if (!container.ok() || container->left_out.empty()) continue;
    notes->push_back("spec.replicaSpecs." + Text(cluster::RoleName(role)) +
                     ".template: a local process goes without " + Join(container->left_out, ", "));
  }
  return wrong.empty() ? OkStatus() : FailedPrecondition(wrong);
}

Status Launcher::Make(const reconcile::CreateSecret& secret) {
  const std::string folder = private_folder_->path() + "/";
  const std::string last =
      secret.hosts.empty() ? secret.key : std::string(cluster::kTlsKeyFileName);
  const std::string path = folder + last;
  if (::access(path.c_str(), F_OK) == 0) return OkStatus();
  if (!secret.hosts.empty()) {
    // Hosts of the cluster are ports of this machine.
    MT_ASSIGN_OR_RETURN(const auto made, certificates::MakeJobCertificates(
                                             job_.metadata.name, {kLoopback}, SystemClock().Now()));
    MT_RETURN_IF_ERROR(WriteFileAtomically(folder + Text(cluster::kTlsCaFileName), made.ca));
    MT_RETURN_IF_ERROR(
        WriteFileAtomically(folder + Text(cluster::kTlsCertificateFileName), made.certificate));
    return WriteFileAtomically(path, made.key);
  }
  // The folder is nobody else's.
  return WriteFileAtomically(path, RandomHex32());
}

Status Launcher::Make(const reconcile::CreateConfigMap& map) {
  const Json body = Json::parse(map.body, nullptr, /*allow_exceptions=*/false);
  const std::string file = Text(cluster::kClusterFileName);
  const std::string text =
      body.is_object() ? body.value(Json::json_pointer("/data/" + file), "") : "";
  if (text.empty()) return Internal(map.name + ": expected data." + file + ", got: none");
  return WriteFileAtomically(private_folder_->path() + "/" + file, WithHosts(text, hosts_));
}

Status Launcher::Make(const reconcile::CreateClaim&) { return MakeDirectories(ClaimFolder()); }

}  // namespace meshtrain::local

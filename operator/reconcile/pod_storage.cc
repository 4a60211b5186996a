// Where the data of a job's pods lies, and what outlives them.
#include <nlohmann/json.hpp>

#include "operator/reconcile/children.h"
#include "operator/reconcile/pod_parts.h"

namespace meshtrain::reconcile {
namespace {

using Json = nlohmann::json;

std::string Joined(std::string_view folder, std::string_view path) {
  return std::string(folder) + "/" + std::string(path);
}

bool Says(const Json& item, const char* key, std::string_view text) {
  const auto found = item.is_object() ? item.find(key) : item.end();
  return item.is_object() && found != item.end() && *found == text;
}

}  // namespace

std::string OutputFolder(const api::TrainingJob& job, cluster::TaskId task) {
  if (!job.spec.output) return {};
  const std::string& given = job.spec.output->folder;
  std::string folder = Joined(Joined(cluster::kWorkFolder, cluster::kOutputMount),
                              given.empty() ? job.metadata.name : given);
  if (task != api::Leader(job.spec)) folder = Joined(folder, cluster::ToString(task));
  return folder;
}

std::string CheckpointPath(const api::TrainingJob& job) {
  if (job.spec.checkpoint && !job.spec.checkpoint->path.empty()) return job.spec.checkpoint->path;
  // Where the leader alone saves, its output folder is its own choice, which also says when a
  // finished run is replaced.
  const bool shared = api::Replicas(job.spec, api::Role::kPs) > 0 ||
                      api::Replicas(job.spec, api::Role::kEvaluator) > 0;
  if (!job.spec.output || !shared) return {};
  return Joined(OutputFolder(job, api::Leader(job.spec)), "checkpoints");
}

namespace internal {

std::string InContainer(const api::PodTemplate& given, const std::string& path) {
  if (path.starts_with('/')) return path;
  const std::string& folder = given.working_directory;
  if (folder.empty() || folder == "/") {
    return folder.empty() ? Joined(cluster::kWorkFolder, path) : "/" + path;
  }
  return Joined(folder, path);
}

void Mount(JsonRef spec, JsonRef container, const std::string& volume, std::string_view source,
           std::string_view path, bool read_only, std::string_view sub_path) {
  Json& mounts = (*static_cast<Json*>(container.json))["volumeMounts"];
  if (!mounts.is_array()) mounts = Json::array();
  for (const Json& other : mounts) {
    if (Says(other, "name", volume) || Says(other, "mountPath", path)) return;
  }
  Json& volumes = (*static_cast<Json*>(spec.json))["volumes"];
  if (!volumes.is_array()) volumes = Json::array();
  bool there = false;
  for (const Json& other : volumes) there = there || Says(other, "name", volume);
  if (!there) {
    Json made = Json::parse(source);
    made["name"] = volume;
    volumes.push_back(std::move(made));
  }
  Json mount = {{"name", volume}, {"mountPath", path}};
  if (read_only) mount["readOnly"] = true;
  if (!sub_path.empty()) mount["subPath"] = sub_path;
  mounts.push_back(std::move(mount));
}

void AddStorage(const api::TrainingJob& job, cluster::TaskId task, bool ours, JsonRef spec,
                JsonRef container) {
  const api::PodTemplate& given = job.spec.replica_specs.at(task.role).pod_template;
  const auto claim = [](const std::string& name) {
    return Json{{"persistentVolumeClaim", {{"claimName", name}}}}.dump();
  };
  bool relative = ours;
  for (size_t i = 0; i < job.spec.claims.size(); ++i) {
    const api::Claim& c = job.spec.claims[i];
    relative = relative || !c.path.starts_with('/');
    Mount(spec, container, "meshtrain-claim-" + std::to_string(i), claim(c.name),
          InContainer(given, c.path), c.read_only, c.sub_path);
  }
  Json& in = *static_cast<Json*>(container.json);
  if (relative && !in.contains("workingDir")) in["workingDir"] = cluster::kWorkFolder;
  if (job.spec.output) {
    Mount(spec, container, "meshtrain-output", claim(job.spec.output->claim),
          Joined(cluster::kWorkFolder, cluster::kOutputMount), /*read_only=*/false);
  }
  if (!ours) return;
  // The image's own file system is read-only (AddSecurity).
  if (given.working_directory.empty()) {
    Mount(spec, container, "meshtrain-work", R"({"emptyDir":{}})", cluster::kWorkFolder,
          /*read_only=*/false);
  }
  Mount(spec, container, "meshtrain-tmp", R"({"emptyDir":{}})", "/tmp", /*read_only=*/false);
}

}  // namespace internal
}  // namespace meshtrain::reconcile

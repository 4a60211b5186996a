// pods_of JOB.yaml: the pods that the operator would create for a TrainingJob, as JSON: name, role,
// index, TF_CONFIG.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/reconcile/children.h"
#include "runtime/base/file.h"

int main(int argc, char** argv) {
  using namespace meshtrain;  // NOLINT: a test's tool
  if (argc != 2) return 64;
  const auto text = ReadFile(argv[1]);
  if (!text.ok()) return 66;
  const auto json = api::YamlToJson(*text);
  auto job = json.ok() ? api::FromJson(*json) : Result<api::TrainingJob>(json.status());
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().message().c_str());
    return 78;
  }
  job->metadata.uid = "uid";
  if (job->metadata.namespace_name.empty()) job->metadata.namespace_name = "default";
  nlohmann::json pods = nlohmann::json::array();
  for (const auto& [role, replica] : job->spec.replica_specs) {
    for (int32_t index = 0; index < replica.replicas; ++index) {
      const cluster::TaskId task{role, index};
      const std::string name = cluster::PodName(job->metadata.name, task);
      const auto body =
          nlohmann::json::parse(reconcile::PodBody(*job, {}, {.name = name, .task = task}));
      nlohmann::json pod = {{"name", name},
                            {"role", cluster::RoleName(role)},
                            {"index", index},
                            {"tf_config", nullptr}};
      for (const auto& variable : body.at("spec").at("containers").at(0).at("env")) {
        if (variable.at("name") == "TF_CONFIG") pod["tf_config"] = variable.at("value");
      }
      pods.push_back(std::move(pod));
    }
  }
  std::printf("%s\n", pods.dump().c_str());
  return 0;
}

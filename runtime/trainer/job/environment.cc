#include "runtime/trainer/job/environment.h"

#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.h"
#include "runtime/base/text.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::trainer {
namespace {

using Json = nlohmann::ordered_json;

Result<Json> ParseVariable(std::string_view name, const std::string& text) {
  MT_RETURN_IF_ERROR(CheckJsonDepth(text).At(name));
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    return InvalidArgument(std::string(name) + ": expected a JSON object, got: " + Excerpt(text));
  }
  return json;
}

}  // namespace

int64_t JobEnvironment::mesh_processes() const {
  if (!tf_config) return 1;
  return tf_config->cluster.count(cluster::Role::kChief) +
         tf_config->cluster.count(cluster::Role::kWorker);
}

std::optional<int> JobEnvironment::process() const {
  if (!tf_config) return 0;
  int place = 0;
  for (const cluster::Role role : {cluster::Role::kChief, cluster::Role::kWorker}) {
    const auto hosts = tf_config->cluster.hosts.find(role);
    if (hosts == tf_config->cluster.hosts.end()) continue;
    for (const auto& [index, host] : hosts->second) {
      if (tf_config->task == cluster::TaskId{role, index}) return place;
      ++place;
    }
  }
  return std::nullopt;
}

Result<JobEnvironment> ReadEnvironment(const Environment& environment) {
  JobEnvironment out;
  MT_ASSIGN_OR_RETURN(out.tf_config, membership::ClusterOf(environment));
  out.job = environment(cluster::kEnvJob).value_or("");
  if (const auto text = environment(cluster::kEnvAttempt)) {
    const auto attempt = ParseInt(*text);
    if (!attempt || *attempt < 0) {
      return InvalidArgument(std::string(cluster::kEnvAttempt) +
                             ": expected a number from 0, got: " + Excerpt(*text));
    }
    out.attempt = static_cast<int32_t>(*attempt);
  }
  MT_ASSIGN_OR_RETURN(const auto peer_return, membership::PeerReturnOf(environment));
  out.peer_return = peer_return.value_or(out.peer_return);
  out.strategy = environment(cluster::kEnvStrategy).value_or("");
  out.termination_log = environment(cluster::kEnvTerminationLog).value_or("");

  const auto program = environment(cluster::kEnvProgram);
  if (!program || program->empty()) return out;
  MT_ASSIGN_OR_RETURN(Json program_json, ParseVariable(cluster::kEnvProgram, *program));
  Json spec = {{"program", std::move(program_json)}};
  if (const auto checkpoint = environment(cluster::kEnvCheckpoint);
      checkpoint && !checkpoint->empty()) {
    MT_ASSIGN_OR_RETURN(spec["checkpoint"], ParseVariable(cluster::kEnvCheckpoint, *checkpoint));
  }
  if (!out.strategy.empty()) spec["strategy"] = out.strategy;
  const size_t slash = out.job.find('/');
  Json metadata = {{"name", slash == std::string::npos ? out.job : out.job.substr(slash + 1)}};
  if (slash != std::string::npos) metadata["namespace"] = out.job.substr(0, slash);
  out.manifest = Json{{"apiVersion", cluster::kApiVersion},
                      {"kind", cluster::kKind},
                      {"metadata", std::move(metadata)},
                      {"spec", std::move(spec)}}
                     .dump();
  return out;
}

}  // namespace meshtrain::trainer

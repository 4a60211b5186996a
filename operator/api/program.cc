#include "operator/api/program.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/manifest/manifest.h"

namespace meshtrain::api {

std::vector<FieldError> ValidateProgram(const TrainingJob& job) {
  std::vector<FieldError> errors;
  const Spec& spec = job.spec;
  if (spec.program.empty()) return errors;
  const int64_t processes = Replicas(spec, Role::kChief) + Replicas(spec, Role::kWorker);
  for (manifest::Problem& problem : manifest::Mistakes({.program = spec.program,
                                    .strategy = spec.strategy,
                                    .processes = std::max<int64_t>(1, processes)})) {
    errors.push_back({std::move(problem.path), std::move(problem.what)});
  }
  if (spec.elastic && spec.strategy != kStrategyParameterServer) {
    errors.push_back({"spec.elastic",
                      "must be absent with a program, but under ParameterServer: its workers are "
                      "its mesh, which cannot grow"});
  }
  return errors;
}

const mesh::TpuSlice* SliceOf(const TrainingJob& job) {
  // Most jobs, without parsing.
  if (job.spec.program.find("\"slice\"") == std::string::npos) return nullptr;
  const auto program = nlohmann::json::parse(job.spec.program, nullptr, false);
  const auto devices = program.is_object() ? program.find("devices") : program.end();
  if (devices == program.end() || !devices->is_object()) return nullptr;
  const auto slice = devices->find("slice");
  if (slice == devices->end() || !slice->is_string()) return nullptr;
  return mesh::FindTpuSlice(slice->get_ref<const std::string&>());
}

}  // namespace meshtrain::api

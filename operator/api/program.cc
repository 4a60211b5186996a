#include "operator/api/program.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

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

namespace {

// The program where it holds the word, in quotes; null: it does not. Most jobs are not parsed.
nlohmann::json ProgramWith(const TrainingJob& job, std::string_view word) {
  if (job.spec.program.find(word) == std::string::npos) return {};
  return nlohmann::json::parse(job.spec.program, nullptr, false);
}

// null: no such field.
const nlohmann::json* Member(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto field = object.find(name);
  return field == object.end() ? nullptr : &*field;
}

}  // namespace

const mesh::TpuSlice* SliceOf(const TrainingJob& job) {
  const nlohmann::json program = ProgramWith(job, R"("slice")");
  const nlohmann::json* devices = Member(program, "devices");
  const nlohmann::json* slice = devices == nullptr ? nullptr : Member(*devices, "slice");
  if (slice == nullptr || !slice->is_string()) return nullptr;
  return mesh::FindTpuSlice(slice->get_ref<const std::string&>());
}

int64_t GpusOf(const TrainingJob& job) {
  const nlohmann::json program = ProgramWith(job, R"("cuda")");
  const nlohmann::json* devices = Member(program, "devices");
  const nlohmann::json* kind = devices == nullptr ? nullptr : Member(*devices, "kind");
  if (kind == nullptr || *kind != "cuda") return 0;
  const nlohmann::json* count = Member(*devices, "count");
  if (count != nullptr && count->is_number_integer()) return count->get<int64_t>();
  int64_t places = 1;
  if (const nlohmann::json* mesh = Member(program, "mesh"); mesh != nullptr && mesh->is_object()) {
    for (const nlohmann::json& size : *mesh) {
      if (size.is_number_integer()) places *= std::clamp<int64_t>(size.get<int64_t>(), 1, 1 << 16);
      if (places > 1 << 16) return 0;  // no host has them; the worker says so
    }
  }
  return places;
}

}  // namespace meshtrain::api

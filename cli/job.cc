#include "cli/job.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/manifest.h"
#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const manifest::Node& node) {
  switch (node.kind) {
    case manifest::Node::Kind::kNull:
      return nullptr;
    case manifest::Node::Kind::kScalar: {
      if (node.quoted) return node.scalar;
      if (const auto flag = node.AsBool()) return *flag;
      if (const auto whole = node.AsInt()) return *whole;
      if (const auto number = node.AsDouble()) return *number;
      return node.scalar;
    }
    case manifest::Node::Kind::kList: {
      Json out = Json::array();
      for (const manifest::Node& item : node.list) out.push_back(ToJson(item));
      return out;
    }
    case manifest::Node::Kind::kMap: {
      Json out = Json::object();
      for (const manifest::Node::Member& member : node.members)
        out[member.key] = ToJson(member.value);
      return out;
    }
  }
  return nullptr;
}

std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Where "spec.failurePolicy.rules[1].action" stands; where its nearest parent does, when it is not
// there.
manifest::Place PlaceOf(const manifest::Node& root, const std::string& path) {
  const manifest::Node* node = &root;
  manifest::Place place = root.place;
  for (const std::string& step : Split(path, '.')) {
    const size_t bracket = step.find('[');
    const std::string key = step.substr(0, bracket);
    const manifest::Node* next = nullptr;
    for (const manifest::Node::Member& member : node->members) {
      if (member.key != key) continue;
      next = &member.value;
      place = member.place;
    }
    if (next == nullptr) return place;
    node = next;
    if (bracket == std::string::npos) continue;
    const auto index = ParseInt(step.substr(bracket + 1, step.size() - bracket - 2));
    if (!index || *index < 0 || *index >= static_cast<int64_t>(node->list.size())) return place;
    node = &node->list[static_cast<size_t>(*index)];
    place = node->place;
  }
  return place;
}

// "deploy/MNIST MLP.yaml" -> "mnist-mlp": a name that Kubernetes would take, with room for those of
// its pods.
std::string NameAfter(const std::string& file) {
  std::string name;
  for (const char c : std::filesystem::path(file).stem().string()) {
    const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const bool letter = lower >= 'a' && lower <= 'z';
    const bool digit = lower >= '0' && lower <= '9';
    if (name.empty() && !letter) continue;
    if (letter || digit) {
      name += lower;
    } else if (name.back() != '-') {
      name += '-';
    }
  }
  name = name.substr(0, 40);
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "job" : name;
}

std::string NewUid() {
  std::random_device random;
  char text[40];
  std::snprintf(text, sizeof text, "local-%08x%08x", random(), random());
  return text;
}

// The job that a program alone stands for: one worker.
Json JobAround(const manifest::Parts& parts, const std::string& file) {
  Json spec = {{"replicaSpecs", {{"worker", {{"replicas", 1}}}}}};
  if (parts.strategy != nullptr) spec["strategy"] = ToJson(*parts.strategy);
  if (parts.checkpoint != nullptr) spec["checkpoint"] = ToJson(*parts.checkpoint);
  if (parts.program) spec["program"] = ToJson(*parts.program);
  return {{"apiVersion", cluster::kApiVersion},
          {"kind", cluster::kKind},
          {"metadata", {{"name", NameAfter(file)}}},
          {"spec", std::move(spec)}};
}

// What the operator would say of the job, where the program's reader has not said it.
void AddProblems(const api::TrainingJob& job, const manifest::Parts& parts,
                 manifest::Problems* problems) {
  for (const api::FieldError& error : api::Validate(job)) {
    std::string path = error.path;
    // A program alone has no spec around it.
    if (parts.job == nullptr && path.starts_with("spec.")) path.erase(0, 5);
    const std::vector<manifest::Problem> told = problems->Sorted();
    const bool known = error.path.starts_with("spec.program") ||
                       std::any_of(told.begin(), told.end(), [&](const manifest::Problem& p) {
                         return p.path == path || p.field == path;
                       });
    if (known) continue;
    const manifest::Node& root = parts.job != nullptr ? *parts.job : *parts.holder;
    problems->Add(PlaceOf(root, path), path, error.message);
  }
}

Result<JobFile> Read(const std::string& text, const std::string& file) {
  manifest::Problems problems(file);
  // Mistakes of the text itself are told by the reader below, once.
  MT_ASSIGN_OR_RETURN(const std::vector<manifest::Node> documents,
                      manifest::ParseDocuments(text, file, [](manifest::Place, std::string) {}));
  manifest::Problems unused(file);
  const auto parts = manifest::FindParts(documents, unused);
  JobFile out{.text = text, .job = {}, .program = {}, .object = {}};
  // Several jobs, a text that is none, a mistake in a program: the program's reader names them all.
  if (!parts || parts->program) {
    MT_ASSIGN_OR_RETURN(out.program, recipe::ReadManifest(text, {}, problems));
    if (!out.program) return problems.ToStatus();
  }
  const Json object = parts->job != nullptr ? ToJson(*parts->job) : JobAround(*parts, file);
  auto read = api::FromJson(Text(object));
  if (!read.ok()) return read.status().At(file);
  out.object = Text(object);
  api::TrainingJob& job = out.job = std::move(*read);
  if (out.program) job.spec.program = Text(object["spec"]["program"]);
  if (job.metadata.namespace_name.empty()) job.metadata.namespace_name = "default";
  job.metadata.uid = NewUid();
  job.metadata.resource_version = "1";
  job.metadata.generation = 1;
  job.metadata.created = SystemClock().Now();
  AddProblems(job, *parts, &problems);
  MT_RETURN_IF_ERROR(problems.ToStatus());
  return out;
}

}  // namespace

Result<JobFile> ReadJob(const std::string& file) {
  MT_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(file, kLargestManifest).From(Origin::kManifest));
  return Read(text, file).From(Origin::kManifest);
}

Result<JobFile> ReadJob(const std::string& file, const Console& console) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadManifestText(file, console));
  return Read(text, file).From(Origin::kManifest);
}

std::string JsonText(const manifest::Node& node) { return Text(ToJson(node)); }

bool ReadsDataHere(const JobFile& job) {
  for (const auto& [role, replica] : job.job.spec.replica_specs) {
    if (!replica.pod_template.json.empty()) return false;
  }
  return true;
}

}  // namespace meshtrain::cli

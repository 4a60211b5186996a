#include "cli/job.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <type_traits>
#include <variant>

#include "cli/manifest.h"
#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"
#include "runtime/manifest/kubectl.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::ordered_json;

// Takes what is wrong with a value: its place, its path, and what it is.
using Complain =
    std::function<void(manifest::Place place, const std::string& path, std::string what)>;

Json ScalarOfTemplate(const manifest::Node& node, const std::string& path,
                      const Complain& complain) {
  const auto read = manifest::AsKubectl(node);
  if (!read.ok()) {
    complain(node.place, path, read.status().message());
    return node.scalar;
  }
  return std::visit(
      [&](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
          // 1.0 and 1e3 are whole numbers to JSON's readers in Go.
          if (const auto whole = node.AsInt()) return *whole;
        }
        return value;
      },
      *read);
}

Json Scalar(const manifest::Node& node, const std::string& path, const Complain& complain) {
  if (node.quoted) return node.scalar;
  if (const auto flag = node.AsBool()) return *flag;
  if (const auto whole = node.AsInt()) {
    const auto read = manifest::AsKubectl(node);
    const int64_t* other = read.ok() ? std::get_if<int64_t>(&*read) : nullptr;
    if (other != nullptr && *other != *whole) {
      complain(node.place, path,
               "expected a number without a 0 before it, since kubectl reads " +
                   std::to_string(*other) + ", got: " + node.scalar);
    }
    return *whole;
  }
  if (const auto number = node.AsDouble()) return *number;
  return node.scalar;
}

// Pod templates and claims as kubectl reads them, all else as the reader of programs does; where
// the two would make different numbers of it, it is complained of.
Json ToJson(const manifest::Node& node, const std::string& path, bool in_template,
            const Complain& complain) {
  switch (node.kind) {
    case manifest::Node::Kind::kNull:
      return nullptr;
    case manifest::Node::Kind::kScalar:
      return in_template ? ScalarOfTemplate(node, path, complain) : Scalar(node, path, complain);
    case manifest::Node::Kind::kList: {
      Json out = Json::array();
      for (const manifest::Node& item : node.list) {
        out.push_back(
            ToJson(item, path + "[" + std::to_string(out.size()) + "]", in_template, complain));
      }
      return out;
    }
    case manifest::Node::Kind::kMap: {
      Json out = Json::object();
      for (const manifest::Node::Member& member : node.members) {
        const std::string below = path.empty() ? member.key : path + "." + member.key;
        const bool opaque = (member.key == "template" && path.starts_with("spec.replicaSpecs.")) ||
                            below == "spec.checkpoint.volumeClaimTemplate";
        out[member.key] = ToJson(member.value, below, in_template || opaque, complain);
      }
      return out;
    }
  }
  return nullptr;
}

Json ToJson(const manifest::Node& node) {
  return ToJson(node, "", /*in_template=*/false,
                [](manifest::Place, const std::string&, const std::string&) {});
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
  const auto complain = [&](manifest::Place place, const std::string& path, std::string what) {
    problems.Add(place, path, std::move(what));
  };
  const Json object = parts->job != nullptr
                          ? ToJson(*parts->job, "", /*in_template=*/false, complain)
                          : JobAround(*parts, file);
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

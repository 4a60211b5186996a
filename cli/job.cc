#include "cli/job.h"

#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "operator/api/json.h"
#include "operator/api/rules.h"
#include "runtime/base/clock.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

namespace meshtrain::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestManifest = int64_t{4} << 20;

Json ToJson(const spec::Node& node) {
  switch (node.kind) {
    case spec::Node::Kind::kNull:
      return nullptr;
    case spec::Node::Kind::kScalar: {
      if (node.quoted) return node.scalar;
      if (const auto flag = node.AsBool()) return *flag;
      if (const auto whole = node.AsInt()) return *whole;
      if (const auto number = node.AsDouble()) return *number;
      return node.scalar;
    }
    case spec::Node::Kind::kList: {
      Json out = Json::array();
      for (const spec::Node& item : node.list) out.push_back(ToJson(item));
      return out;
    }
    case spec::Node::Kind::kMap: {
      Json out = Json::object();
      for (const spec::Node::Member& member : node.members) out[member.key] = ToJson(member.value);
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
spec::Place PlaceOf(const spec::Node& root, const std::string& path) {
  const spec::Node* node = &root;
  spec::Place place = root.place;
  for (const std::string& step : Split(path, '.')) {
    const size_t bracket = step.find('[');
    const std::string key = step.substr(0, bracket);
    const spec::Node* next = nullptr;
    for (const spec::Node::Member& member : node->members) {
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

Result<Job> Read(const std::string& file) {
  MT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kLargestManifest));
  MT_ASSIGN_OR_RETURN(const std::vector<spec::Node> documents, spec::ParseDocuments(text, file));
  const spec::Node* root = nullptr;
  for (const spec::Node& document : documents) {
    const spec::Node* kind = document.Find("kind");
    if (kind != nullptr && kind->scalar == cluster::kKind) root = &document;
  }
  const spec::Node* given = root != nullptr ? root->Find("spec") : nullptr;
  Job out{.text = text, .job = {}, .program = {}};
  // Several jobs, a text that is none, a mistake in a program: the program's reader names them all.
  if (root == nullptr || given == nullptr || !given->IsMap() || given->Find("program") != nullptr) {
    MT_ASSIGN_OR_RETURN(out.program, spec::ParseManifest(text, file));
  }
  Json object;
  if (root != nullptr) {
    object = ToJson(*root);
  } else {
    const spec::Node& only = documents.front();
    const spec::Node* inner = only.members.size() == 1 ? only.Find("program") : nullptr;
    object = {{"apiVersion", cluster::kApiVersion},
              {"kind", cluster::kKind},
              {"metadata", {{"name", NameAfter(file)}}},
              {"spec",
               {{"replicaSpecs", {{"worker", {{"replicas", 1}}}}},
                {"program", ToJson(inner != nullptr ? *inner : only)}}}};
  }
  auto read = api::FromJson(Text(object));
  if (!read.ok()) return read.status().At(file);
  api::TrainingJob& job = out.job = std::move(*read);
  if (out.program) job.spec.program = Text(object["spec"]["program"]);
  if (job.metadata.namespace_name.empty()) job.metadata.namespace_name = "default";
  job.metadata.uid = NewUid();
  job.metadata.resource_version = "1";
  job.metadata.generation = 1;
  job.metadata.created = SystemClock().Now();

  std::erase_if(job.problems, [&](const api::FieldError& problem) {
    return problem.path == "spec.checkpoint.path" && job.spec.checkpoint &&
           job.spec.checkpoint->path.empty();
  });
  std::string wrong;
  for (const api::FieldError& error : api::Validate(job)) {
    const spec::Place place = root != nullptr ? PlaceOf(*root, error.path) : spec::Place{};
    wrong += (wrong.empty() ? "" : "\n") + spec::At(file, place, error.path) + error.message;
  }
  if (!wrong.empty()) return InvalidArgument(wrong);
  return out;
}

}  // namespace

Result<Job> ReadJob(const std::string& file) { return Read(file).From(Origin::kManifest); }

bool ReadsDataHere(const Job& job) {
  for (const auto& [role, replica] : job.job.spec.replica_specs) {
    if (!replica.pod_template.json.empty()) return false;
  }
  return true;
}

}  // namespace meshtrain::cli

#include "operator/api/crd.h"

#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "operator/api/rules.h"
#include "operator/api/schema.h"
#include "runtime/cluster/contract.h"

namespace meshtrain::api {
namespace {

using Json = nlohmann::ordered_json;  // the order in which people read a CRD

std::string Path(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + "." + std::string(name);
}

void AddRules(Json* schema, const std::string& path) {
  for (const Rule& rule : Rules()) {
    if (rule.at != path || rule.cel.empty()) continue;
    std::string message(rule.message);
    if (!rule.field.empty()) message = std::string(rule.field) + ": " + message;
    (*schema)["x-kubernetes-validations"].push_back({{"rule", rule.cel}, {"message", message}});
  }
}

Json OpenApi(const Field& field, const std::string& path) {
  Json out = {{"description", field.description}};
  const char* size_name = "maxLength";
  switch (field.type) {
    case FieldType::kObject: {
      out["type"] = "object";
      if (field.open) out["x-kubernetes-preserve-unknown-fields"] = true;
      for (const Field& member : field.fields) {
        if (member.required) out["required"].push_back(member.name);
      }
      for (const Field& member : field.fields) {
        out["properties"][std::string(member.name)] = OpenApi(member, Path(path, member.name));
      }
      break;
    }
    case FieldType::kMap:
      out["type"] = "object";
      size_name = "maxProperties";
      out["additionalProperties"] = OpenApi(field.fields.front(), path + ".*");
      break;
    case FieldType::kArray:
      out["type"] = "array";
      size_name = "maxItems";
      out["items"] = OpenApi(field.fields.front(), path + "[]");
      break;
    case FieldType::kString:
      out["type"] = "string";
      break;
    case FieldType::kInt32:
    case FieldType::kInt64:
      out["type"] = "integer";
      out["format"] = field.type == FieldType::kInt32 ? "int32" : "int64";
      break;
    case FieldType::kNumber:
      out["type"] = "number";
      break;
    case FieldType::kBoolean:
      out["type"] = "boolean";
      break;
    case FieldType::kTime:
      out["type"] = "string";
      out["format"] = "date-time";
      break;
    case FieldType::kQuantity:
      out["x-kubernetes-int-or-string"] = true;
      break;
    case FieldType::kAny:
      out["x-kubernetes-preserve-unknown-fields"] = true;
      break;
  }
  if (field.max_size) out[size_name] = *field.max_size;
  if (field.min_size > 0) out["minLength"] = field.min_size;
  if (field.minimum) out["minimum"] = *field.minimum;
  if (field.maximum) out["maximum"] = *field.maximum;
  if (!field.values.empty()) out["enum"] = field.values;
  if (!field.default_json.empty()) out["default"] = Json::parse(field.default_json);
  AddRules(&out, path);
  return out;
}

Json Column(const char* name, const char* type, const char* path, const char* description,
            int priority = 0) {
  Json out = {{"name", name}, {"type", type}, {"jsonPath", path}, {"description", description}};
  if (priority != 0) out["priority"] = priority;
  return out;
}

Json Crd() {
  Json root = {{"description",
                "A TrainingJob trains one neural network with a group of processes: chief, "
                "workers, parameter servers and an "
                "evaluator, each told about the others through TF_CONFIG."},
               {"type", "object"},
               {"required", {"spec"}},
               {"properties",
                {{"apiVersion", {{"type", "string"}, {"description", "meshtrain.dev/v1"}}},
                 {"kind", {{"type", "string"}, {"description", "TrainingJob"}}},
                 {"metadata", {{"type", "object"}}},  // Kubernetes allows no more here
                 {"spec", OpenApi(SpecField(), "spec")},
                 {"status", OpenApi(StatusField(), "status")}}}};
  AddRules(&root, "");
  Json columns = Json::array({
      Column("PHASE", "string", ".status.phase", "The most telling condition."),
      Column("READY", "string", ".status.ready", "Pods running or done, of those wanted."),
      Column("STEP", "integer", ".status.progress.step", "Steps done."),
      Column("PROGRESS", "string", ".status.progress.percent", "The share of all steps."),
      Column("LOSS", "number", ".status.progress.loss", "The last loss."),
      Column("ACCURACY", "number", ".status.progress.accuracy", "The last accuracy."),
      Column("RESTARTS", "integer", ".status.restarts", "Restarts of all roles."),
      Column("AGE", "date", ".metadata.creationTimestamp", "Time since creation."),
      Column("STRATEGY", "string", ".spec.strategy", "How training is distributed.", 1),
      Column("EXAMPLES/S", "number", ".status.progress.examplesPerSecond", "Examples per second.",
             1),
      Column("WAITING", "string", ".status.conditions[?(@.type==\"Waiting\")].message",
             "What the job waits for.", 1),
  });
  Json version = {{"name", "v1"},
                  {"served", true},
                  {"storage", true},
                  {"additionalPrinterColumns", std::move(columns)},
                  {"subresources",
                   {{"status", Json::object()},
                    {"scale",
                     {{"specReplicasPath", ".spec.replicaSpecs.worker.replicas"},
                      {"statusReplicasPath", ".status.replicaStatuses.worker.replicas"},
                      {"labelSelectorPath", ".status.labelSelector"}}}}},
                  {"schema", {{"openAPIV3Schema", std::move(root)}}}};
  return {{"apiVersion", "apiextensions.k8s.io/v1"},
          {"kind", "CustomResourceDefinition"},
          {"metadata",
           {{"name", std::string(cluster::kPlural) + "." + std::string(cluster::kGroup)},
            {"labels", {{"app.kubernetes.io/name", "meshtrain"}}}}},
          {"spec",
           {{"group", cluster::kGroup},
            {"scope", "Namespaced"},
            {"names",
             {{"kind", cluster::kKind},
              {"listKind", "TrainingJobList"},
              {"plural", cluster::kPlural},
              {"singular", "trainingjob"},
              {"shortNames", {"tj"}},
              {"categories", {"all"}}}},
            {"versions", Json::array({std::move(version)})}}}};
}

// Adds the paths of what `ours` declares and `theirs` does not.
void AddMissing(const Json& ours, const Json& theirs, const std::string& path,
                std::vector<std::string>* missing) {
  if (theirs.value("x-kubernetes-preserve-unknown-fields", false)) return;
  const auto inner = [&](const char* name, const std::string& below) {
    if (!ours.contains(name) || !ours[name].is_object()) return;
    if (theirs.contains(name) && theirs[name].is_object()) {
      AddMissing(ours[name], theirs[name], below, missing);
    } else {
      missing->push_back(below);
    }
  };
  inner("items", path + "[]");
  inner("additionalProperties", path + ".*");
  if (!ours.contains("properties")) return;
  const Json none = Json::object();
  const Json& known = theirs.contains("properties") ? theirs["properties"] : none;
  for (const auto& [name, property] : ours["properties"].items()) {
    if (known.is_object() && known.contains(name) && known[name].is_object()) {
      AddMissing(property, known[name], Path(path, name), missing);
    } else {
      missing->push_back(Path(path, name));
    }
  }
}

// Null where the CRD has no such version, or is none.
const Json* SchemaOf(const Json& crd, const std::string& version) {
  const Json::json_pointer versions("/spec/versions"), schema("/schema/openAPIV3Schema");
  if (!crd.is_object() || !crd.contains(versions)) return nullptr;
  for (const Json& one : crd[versions]) {
    if (one.is_object() && one.contains("name") && one["name"] == version && one.contains(schema)) {
      return &one[schema];
    }
  }
  return nullptr;
}

void EmitYaml(const Json& value, YAML::Emitter* out) {
  if (value.is_object()) {
    if (value.empty()) *out << YAML::Flow;
    *out << YAML::BeginMap;
    for (const auto& [name, inner] : value.items()) {
      *out << YAML::Key << name << YAML::Value;
      EmitYaml(inner, out);
    }
    *out << YAML::EndMap;
  } else if (value.is_array()) {
    *out << YAML::BeginSeq;
    for (const auto& inner : value) EmitYaml(inner, out);
    *out << YAML::EndSeq;
  } else if (value.is_string()) {
    // JSON's escapes are YAML's in double quotes; plain words stay plain.
    const auto& text = value.get_ref<const std::string&>();
    // Short words may mean something to a YAML 1.1 reader (yes, on, null, True): quoted.
    const bool plain =
        text.size() > 5 &&
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/") ==
            std::string::npos;
    if (plain) {
      *out << text;
    } else {
      *out << YAML::DoubleQuoted << text;
    }
  } else if (value.is_boolean()) {
    *out << value.get<bool>();
  } else {
    *out << value.dump();
  }
}

}  // namespace

std::string CrdJson() { return Crd().dump(2) + "\n"; }

Result<std::vector<std::string>> MissingInCrd(std::string_view text) {
  const Json ours = Crd(), theirs = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::string version = ours["spec"]["versions"][0]["name"];
  const Json* const schema = SchemaOf(theirs, version);
  if (schema == nullptr || !schema->is_object()) {
    return InvalidArgument("expected a CustomResourceDefinition with a schema of " + version +
                           ", got: none");
  }
  std::vector<std::string> missing;
  AddMissing(*SchemaOf(ours, version), *schema, "", &missing);
  return missing;
}

std::string CrdYaml() {
  YAML::Emitter out;
  out.SetIndent(2);
  EmitYaml(Crd(), &out);
  return std::string(out.c_str()) + "\n";
}

}  // namespace meshtrain::api

#include "tests/integration/operator/monitors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "runtime/manifest/node.h"

namespace meshtrain::testing {
namespace {

using nlohmann::json;

json ToJson(const manifest::Node& node) {
  if (node.IsNull()) return nullptr;
  if (node.IsMap()) {
    json map = json::object();
    for (const auto& member : node.members) map[member.key] = ToJson(member.value);
    return map;
  }
  if (node.IsList()) {
    json list = json::array();
    for (const auto& item : node.list) list.push_back(ToJson(item));
    return list;
  }
  if (const auto truth = node.AsBool()) return *truth;
  if (const auto number = node.AsInt()) return *number;
  return node.scalar;
}

std::vector<json> Objects(const std::string& rendered, const std::set<std::string>& kinds) {
  const auto documents = manifest::ParseDocuments(rendered, "chart");
  EXPECT_TRUE(documents.ok()) << documents.status().ToString();
  std::vector<json> out;
  if (!documents.ok()) return out;
  for (const auto& document : *documents) {
    json object = ToJson(document);
    if (object.is_object() && kinds.contains(object.value("kind", ""))) {
      out.push_back(std::move(object));
    }
  }
  return out;
}

// A label's name as discovery has it.
std::string Sanitized(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

json Keep(const std::string& label, const std::string& value) {
  return {{"action", "keep"}, {"source_labels", {label}}, {"regex", value}};
}

json Copy(const std::string& label, const std::string& target) {
  return {{"source_labels", {label}}, {"target_label", target}};
}

// As the Prometheus operator writes it, in Prometheus' own spelling.
json Relabelling(const json& given) {
  json out;
  for (const auto& [field, value] : given.items()) {
    const std::string name = field == "sourceLabels"  ? "source_labels"
                             : field == "targetLabel" ? "target_label"
                                                      : field;
    EXPECT_TRUE(name != field || field == "action" || field == "regex") << field;
    out[name] = value;
  }
  return out;
}

json ScrapeConfig(const json& monitor) {
  const bool pods = monitor["kind"] == "PodMonitor";
  const json& spec = monitor["spec"];
  const std::string name = monitor["metadata"]["name"], ns = monitor["metadata"]["namespace"];
  const std::string meta = "__meta_kubernetes_";
  json rules = json::array();
  for (const auto& [label, value] : spec["selector"]["matchLabels"].items()) {
    rules.push_back(Keep(meta + (pods ? "pod" : "service") + "_label_" + Sanitized(label), value));
  }
  const json where = spec.value("namespaceSelector", json({{"matchNames", json::array({ns})}}));
  if (!where.value("any", false)) {
    std::string names;
    for (const std::string one : where["matchNames"]) names += (names.empty() ? "" : "|") + one;
    rules.push_back(Keep(meta + "namespace", names));
  }
  const json& endpoints = spec[pods ? "podMetricsEndpoints" : "endpoints"];
  EXPECT_EQ(endpoints.size(), 1u) << name;
  const json& endpoint = endpoints[0];
  const std::string port = endpoint["port"];
  rules.push_back(Keep(meta + (pods ? "pod_container_port_name" : "endpoint_port_name"), port));
  rules.push_back(Copy(meta + "namespace", "namespace"));
  rules.push_back(Copy(meta + "pod_name", "pod"));
  rules.push_back(Copy(meta + "pod_container_name", "container"));
  if (pods) {
    rules.push_back({{"target_label", "job"}, {"replacement", ns + "/" + name}});
  } else {
    rules.push_back(Copy(meta + "service_name", "service"));
    rules.push_back(Copy(meta + "service_name", "job"));
  }
  rules.push_back({{"target_label", "endpoint"}, {"replacement", port}});
  json config = {{"job_name", (pods ? "podMonitor/" : "serviceMonitor/") + ns + "/" + name + "/0"}};
  for (const auto& [field, value] : endpoint.items()) {
    if (field == "relabelings") {
      for (const json& one : value) rules.push_back(Relabelling(one));
    } else if (field == "path") {
      config["metrics_path"] = value;
    } else if (field == "honorLabels") {
      config["honor_labels"] = value;
    } else {
      // A test's interval is its own.
      EXPECT_TRUE(field == "port" || field == "interval") << field;
    }
  }
  for (const auto& [field, value] : spec.items()) {
    if (field == "sampleLimit") {
      config["sample_limit"] = value;
    } else {
      EXPECT_TRUE(field == "selector" || field == "namespaceSelector" || field == "endpoints" ||
                  field == "podMetricsEndpoints")
          << field;
    }
  }
  config["relabel_configs"] = rules;
  return config;
}

}  // namespace

json ScrapeConfigs(const std::string& rendered) {
  json out = json::array();
  for (const json& monitor : Objects(rendered, {"PodMonitor", "ServiceMonitor"})) {
    out.push_back(ScrapeConfig(monitor));
  }
  return out;
}

json Rendered(const std::string& rendered, const std::string& kind) {
  const auto found = Objects(rendered, {kind});
  return found.empty() ? json() : found.front();
}

json PodPort(const json& pod, const std::string& port) {
  json labels = {{"__meta_kubernetes_namespace", pod["metadata"]["namespace"]},
                 {"__meta_kubernetes_pod_name", pod["metadata"]["name"]},
                 {"__meta_kubernetes_pod_container_name", pod["spec"]["containers"][0]["name"]},
                 {"__meta_kubernetes_pod_container_port_name", port}};
  for (const auto& [label, value] : pod["metadata"]["labels"].items()) {
    labels["__meta_kubernetes_pod_label_" + Sanitized(label)] = value;
  }
  return labels;
}

json ServicePort(const json& service, const std::string& port) {
  json labels = {{"__meta_kubernetes_namespace", service["metadata"]["namespace"]},
                 {"__meta_kubernetes_service_name", service["metadata"]["name"]},
                 {"__meta_kubernetes_endpoint_port_name", port}};
  for (const auto& [label, value] : service["metadata"]["labels"].items()) {
    labels["__meta_kubernetes_service_label_" + Sanitized(label)] = value;
  }
  return labels;
}

}  // namespace meshtrain::testing

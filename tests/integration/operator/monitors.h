// How Prometheus scrapes what the chart's monitors name: the part of the Prometheus operator that
// turns a PodMonitor or a ServiceMonitor into a scrape configuration
// (github.com/prometheus-operator/prometheus-operator, pkg/prometheus/promcfg.go), for the fields
// that the chart uses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace meshtrain::testing {

// The scrape configurations of all monitors in `rendered`, a chart's YAML, without targets: these
// are to have the labels that discovery gives, `__meta_kubernetes_...`. A field that is not
// understood fails the test.
nlohmann::json ScrapeConfigs(const std::string& rendered);

// Those labels of a pod's port, and of a Service's.
nlohmann::json PodPort(const nlohmann::json& pod, const std::string& port);
nlohmann::json ServicePort(const nlohmann::json& service, const std::string& port);

// The first object of a kind in a chart's YAML; null where there is none.
nlohmann::json Rendered(const std::string& rendered, const std::string& kind);

}  // namespace meshtrain::testing

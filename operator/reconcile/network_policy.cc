// Who may reach a job's pods, where the operator's settings say that it is to be said.
#include <nlohmann/json.hpp>

#include "operator/reconcile/children.h"
#include "operator/reconcile/owner.h"

namespace meshtrain::reconcile {

using Json = nlohmann::json;

namespace {

// To the server a field that is null is one that is absent.
bool Has(const Json& peer, const char* field) {
  const auto found = peer.find(field);
  return found != peer.end() && !found->is_null();
}

}  // namespace

Status CheckHttpPeers(const std::string& peers) {
  const Json list = Json::parse(peers, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return InvalidArgument("expected a JSON list of objects, got: " + peers);
  for (const Json& peer : list) {
    if (Has(peer, "namespaceSelector") || Has(peer, "ipBlock")) continue;
    // An empty peer, or one of another kind, would be everybody or nobody, as the server reads it.
    const std::string expected =
        Has(peer, "podSelector")
            ? "expected a namespaceSelector beside the podSelector, which alone would mean pods of "
              "each job's own namespace"
            : "expected peers with a namespaceSelector or an ipBlock";
    return InvalidArgument(expected +
                           ", got: " + peer.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return OkStatus();
}

CreateNetworkPolicy JobNetworkPolicy(const api::TrainingJob& job, const Settings& settings) {
  const std::string name = job.metadata.name + "-network-" + cluster::ShortHash(job.metadata.uid);
  const Json own = {{"podSelector", {{"matchLabels", SelectorLabels(job)}}}};
  Json ingress = Json::array({{{"from", Json::array({own})}}});
  const Json peers =
      Json::parse(settings.http_peers.value_or("[]"), nullptr, /*allow_exceptions=*/false);
  // A rule without peers would let everybody in.
  if (peers.is_array() && !peers.empty()) {
    ingress.push_back(
        {{"from", peers},
         {"ports", Json::array({{{"protocol", "TCP"}, {"port", cluster::kHttpPortName}}})}});
  }
  const Json body = {{"apiVersion", "networking.k8s.io/v1"},
                     {"kind", "NetworkPolicy"},
                     {"metadata",
                      {{"name", name},
                       {"namespace", job.metadata.namespace_name},
                       {"labels", SelectorLabels(job)},
                       {"ownerReferences", Json::array({Json::parse(OwnerReference(job))})}}},
                     {"spec",
                      {{"podSelector", {{"matchLabels", SelectorLabels(job)}}},
                       {"policyTypes", Json::array({"Ingress"})},
                       {"ingress", ingress}}}};
  return {.name = name, .body = body.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace meshtrain::reconcile

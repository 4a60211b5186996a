// What Pod Security `restricted` asks of a pod
// (kubernetes.io/docs/concepts/security/pod-security-standards), and what keeps a process that was
// taken over from doing harm beyond its own job: no token of the API server, no file system to
// change.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "operator/reconcile/pod_parts.h"

namespace meshtrain::reconcile::internal {
namespace {

using Json = nlohmann::json;

Json& Object(Json* parent, const char* name) {
  Json& member = (*parent)[name];
  if (!member.is_object()) member = Json::object();
  return member;
}

void Default(Json* object, const char* name, Json value) {
  if (!object->contains(name)) (*object)[name] = std::move(value);
}

bool Is(const Json& object, const char* name, const Json& value) {
  const auto found = object.find(name);
  return found != object.end() && *found == value;
}

bool Adds(const Json& capabilities, const char* wanted) {
  const auto added = capabilities.find("add");
  return added != capabilities.end() && added->is_array() &&
         std::find(added->begin(), added->end(), wanted) != added->end();
}

}  // namespace

void AddSecurity(std::optional<int64_t> fs_group, JsonRef spec_ref, JsonRef container_ref) {
  Json& spec = *static_cast<Json*>(spec_ref.json);
  Json& in_pod = Object(&spec, "securityContext");
  Json& in_container = Object(static_cast<Json*>(container_ref.json), "securityContext");
  // Whoever asks for root gets root: beside it the kubelet would refuse to start the container.
  const bool root = Is(in_pod, "runAsUser", 0) || Is(in_container, "runAsUser", 0);
  if (!root && !in_container.contains("runAsNonRoot")) Default(&in_pod, "runAsNonRoot", true);
  Default(&in_pod, "seccompProfile", {{"type", "RuntimeDefault"}});
  if (fs_group) {
    if (!in_pod.contains("fsGroup")) {
      in_pod["fsGroup"] = *fs_group;
      // Else each start of a pod walks through all files of its volumes.
      Default(&in_pod, "fsGroupChangePolicy", "OnRootMismatch");
    }
  }
  Json& capabilities = Object(&in_container, "capabilities");
  Default(&capabilities, "drop", Json::array({"ALL"}));
  // The API server refuses the two together.
  if (!Is(in_container, "privileged", true) && !Adds(capabilities, "SYS_ADMIN") &&
      !Adds(capabilities, "CAP_SYS_ADMIN")) {
    Default(&in_container, "allowPrivilegeEscalation", false);
  }
  Default(&in_container, "readOnlyRootFilesystem", true);
  // A template with an account of its own wants the token.
  if (!spec.contains("serviceAccountName") && !spec.contains("serviceAccount")) {
    Default(&spec, "automountServiceAccountToken", false);
  }
}

int TokenMode(JsonRef spec_ref) {
  const Json& spec = *static_cast<const Json*>(spec_ref.json);
  const auto context = spec.find("securityContext");
  const bool group = context != spec.end() && context->is_object() && context->contains("fsGroup");
  return group ? 0440 : 0444;
}

}  // namespace meshtrain::reconcile::internal

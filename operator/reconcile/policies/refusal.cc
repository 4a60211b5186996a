// What the API server refused: said in the words of the job's own manifest, and not asked for again
// before its time.
#include "operator/reconcile/policy.h"

namespace meshtrain::reconcile {
namespace {

constexpr size_t kLongestRefusal = 1500;

// The role of the pod that `what` names ("pods \"mnist-worker-2\"").
std::optional<Role> RoleOf(const View& view, const std::string& what) {
  for (const auto& [role, replica] : view.job.spec.replica_specs) {
    const std::string start =
        "\"" + view.job.metadata.name + "-" + std::string(cluster::RoleName(role)) + "-";
    if (what.starts_with("pod") && what.find(start) != std::string::npos) return role;
  }
  return std::nullopt;
}

// A pod's "spec.containers[0].image" is the job's
// "spec.replicaSpecs.worker.template.spec.containers[0].image".
std::string InTheManifest(const std::string& message, Role role) {
  const std::string path =
      "spec.replicaSpecs." + std::string(cluster::RoleName(role)) + ".template.";
  std::string out;
  for (size_t at = 0; at < message.size();) {
    const bool starts = at == 0 || message[at - 1] == ' ' || message[at - 1] == '[' ||
                        message[at - 1] == '"' || message[at - 1] == '`';
    const std::string_view rest = std::string_view(message).substr(at);
    if (starts && rest.starts_with("spec.") && !rest.starts_with("spec.replicaSpecs")) out += path;
    out += message[at++];
  }
  return out;
}

Reason ReasonOf(const RefusedWrite& refused) {
  if (refused.reason == "AlreadyExists") return Reason::kNameTaken;
  if (refused.reason == "ExceededQuota" ||
      refused.message.find("exceeded quota") != std::string::npos) {
    return Reason::kQuotaExceeded;
  }
  if (refused.reason == "InternalError") return Reason::kServerError;
  return refused.reason == "Forbidden" ? Reason::kForbidden : Reason::kRefused;
}

}  // namespace

void TellRefusal(const View& view, Draft* draft) {
  const auto& refused = view.seen.refused;
  if (!refused) return;
  std::string message = refused->message;
  if (const auto role = RoleOf(view, refused->what)) message = InTheManifest(message, *role);
  // The server's words often name it already.
  const size_t quote = refused->what.find('"');
  const bool named =
      quote != std::string::npos && message.find(refused->what.substr(quote)) != std::string::npos;
  if (!named) message = refused->what + ": " + message;
  draft->Wait(ReasonOf(*refused), Tidy(message, kLongestRefusal));
}

bool MayAsk(const View& view, Draft* draft) {
  const auto& refused = view.seen.refused;
  if (!refused || !refused->retry_at || view.now >= *refused->retry_at) return true;
  draft->WakeAt(*refused->retry_at);
  return false;
}

}  // namespace meshtrain::reconcile

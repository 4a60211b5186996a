#include "operator/control/refusal.h"

#include <string_view>
#include <type_traits>
#include <variant>

namespace meshtrain::control {
namespace {

// The word the API uses for a refusal.
const char* ReasonOf(StatusCode code) {
  switch (code) {
    case StatusCode::kPermissionDenied:
      return "Forbidden";
    case StatusCode::kResourceExhausted:
      return "ExceededQuota";
    case StatusCode::kInvalidArgument:
      return "Invalid";
    case StatusCode::kAlreadyExists:
      return "AlreadyExists";
    case StatusCode::kUnknown:
      return "InternalError";
    default:
      return nullptr;
  }
}

// What the server itself said of a refusal, without whence it came: "POST
// /api/v1/namespaces/ml/pods: HTTP 403: pods ..." is in the log.
std::string ServersWords(const std::string& message) {
  constexpr std::string_view kMark = ": HTTP ";
  const size_t mark = message.find(kMark);
  const size_t words = mark == std::string::npos ? mark : message.find(": ", mark + kMark.size());
  return words == std::string::npos ? message : message.substr(words + 2);
}

}  // namespace

bool WasAnswered(const reconcile::Write& write, const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kNotFound:
    case StatusCode::kAborted:
    case StatusCode::kUnimplemented:
      return true;
    case StatusCode::kUnknown:
      return RefusalOf(write, status).has_value();
    default:
      return ReasonOf(status.code()) != nullptr;
  }
}

std::string NameOf(const reconcile::Write& write) {
  return std::visit(
      [](const auto& what) -> std::string {
        if constexpr (requires { what.name; }) return what.name;
        return {};
      },
      write);
}

std::string OneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return text.substr(0, 1024);
}

std::optional<reconcile::RefusedWrite> RefusalOf(const reconcile::Write& write,
                                                 const Status& status) {
  const char* reason = ReasonOf(status.code());
  if (reason == nullptr) return std::nullopt;
  const std::string plural = std::visit(
      [&](const auto& what) -> std::string {
        using W = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<W, reconcile::CreateService>) return "services";
        if constexpr (std::is_same_v<W, reconcile::CreateConfigMap>) return "configmaps";
        if constexpr (std::is_same_v<W, reconcile::CreateSecret>) return "secrets";
        if constexpr (std::is_same_v<W, reconcile::CreateClaim>) return "persistentvolumeclaims";
        if constexpr (std::is_same_v<W, reconcile::CreateNetworkPolicy>) return "networkpolicies";
        if constexpr (std::is_same_v<W, reconcile::CreatePod>) return "pods";
        if constexpr (std::is_same_v<W, reconcile::CreatePodGroup> ||
                      std::is_same_v<W, reconcile::PatchPodGroup>) {
          return "podgroups";
        }
        if constexpr (std::is_same_v<W, reconcile::CreateWorkload> ||
                      std::is_same_v<W, reconcile::PatchWorkload>) {
          return "workloads";
        }
        return "";
      },
      write);
  if (plural.empty()) return std::nullopt;
  return reconcile::RefusedWrite{.what = plural + " \"" + NameOf(write) + "\"",
                                 .reason = reason,
                                 .message = OneLine(ServersWords(status.message()))};
}

}  // namespace meshtrain::control

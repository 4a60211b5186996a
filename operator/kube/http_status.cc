#include "operator/kube/http_status.h"

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/text.h"

namespace meshtrain::kube {
namespace {

using nlohmann::json;

constexpr size_t kMaxErrorMessage = 4 << 10;  // of a body, as far as it is told

Status OfAnswer(int http_status, std::string_view body, std::string_view what) {
  std::string message, reason;
  bool own = false;  // the API server's words, not those of a proxy before it
  body = body.substr(0, kMaxErrorBody);
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && parsed.contains("message") && parsed["message"].is_string()) {
    message = parsed["message"].get<std::string>();
    own = parsed.contains("kind") && parsed["kind"] == "Status";
    if (parsed.contains("reason") && parsed["reason"].is_string()) {
      reason = parsed["reason"].get<std::string>();
    }
  } else {
    message = Excerpt(Trim(body), 500);
  }
  const bool quota = message.find("exceeded quota") != std::string::npos;
  if (message.size() > kMaxErrorMessage) message = Excerpt(message, kMaxErrorMessage);
  const std::string text =
      std::string(what) + ": HTTP " + std::to_string(http_status) + ": " + message;
  switch (http_status) {
    case 401:
      return Status(StatusCode::kUnauthenticated, text);
    case 403:
      // A quota refuses with the same code as a missing permission, but goes away by itself.
      if (quota) return ResourceExhausted(text);
      return PermissionDenied(text);
    case 404:
      return NotFound(text);
    case 405:
      return Unimplemented(text);
    case 409:
      return reason == "AlreadyExists" ? AlreadyExists(text) : Aborted(text);
    case 410:
      return OutOfRange(text);
    case 504:
      return DeadlineExceeded(text);
    default:
      break;
  }
  const bool away = http_status == 429 || http_status == 502 || http_status == 503;
  if (http_status >= 500 && own && !away) return Status(StatusCode::kUnknown, text);
  if (http_status >= 500 || away) return Unavailable(text);
  return InvalidArgument(text);
}

}  // namespace

Status StatusFromHttp(int http_status, std::string_view body, std::string_view what) {
  return OfAnswer(http_status, body, what).From(Origin::kApiServer);
}

}  // namespace meshtrain::kube

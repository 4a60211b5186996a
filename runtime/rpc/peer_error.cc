#include "runtime/rpc/peer_error.h"

#include <utility>

namespace meshtrain::rpc {

Status FromPeer(const Status& error) {
  if (error.ok()) return error;
  switch (error.origin().value_or(Origin::kOurs)) {
    case Origin::kManifest:
    case Origin::kInput:
    case Origin::kOutput:
    case Origin::kNumbers:
      return error;
    case Origin::kOurs:
    case Origin::kPeers:
    case Origin::kStop:
    case Origin::kDevice:  // theirs
    case Origin::kApiServer:
      break;
  }
  return Status(error.code(), error.message()).From(Origin::kPeers);
}

Status FromPeer(int code, std::string message, std::string_view origin, StatusCode unknown) {
  const bool known = code > 0 && code <= static_cast<int>(StatusCode::kUnauthenticated);
  Status error(known ? static_cast<StatusCode>(code) : unknown, std::move(message));
  if (const auto named = ParseOrigin(origin)) error = error.From(*named);
  return FromPeer(error);
}

std::string_view OriginOnWire(const Status& error) {
  return error.origin() ? OriginName(*error.origin()) : std::string_view();
}

}  // namespace meshtrain::rpc

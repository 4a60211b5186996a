#include "runtime/saving/failure.h"

#include "runtime/base/text.h"
#include "runtime/rpc/peer_error.h"

namespace meshtrain::saving {
namespace {

constexpr std::string_view kNoOrigin = "-";

// Cuts the first word and the space behind it off; none where no space is left.
std::optional<std::string_view> TakeWord(std::string_view& text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space + 1);
  return word;
}

}  // namespace

Status OfSaving(const Status& status) {
  if (status.code() == StatusCode::kCancelled) {
    return Unavailable(status.message()).From(Origin::kPeers);
  }
  return status.From(Origin::kOutput);
}

std::string TellFailure(const Status& status) {
  if (status.ok()) return "";
  const std::string_view origin = rpc::OriginOnWire(status);
  return std::to_string(static_cast<int>(status.code())) + " " +
         std::string(origin.empty() ? kNoOrigin : origin) + " " + status.message();
}

Status ToldFailure(const std::string& who, std::string_view text) {
  if (text.empty()) return OkStatus();
  std::string_view message = text;
  const auto code_text = TakeWord(message);
  const auto origin = code_text ? TakeWord(message) : std::nullopt;
  const auto code = code_text ? ParseInt(*code_text) : std::nullopt;
  const bool known = origin && code && *code > static_cast<int>(StatusCode::kOk) &&
                     *code <= static_cast<int>(StatusCode::kUnauthenticated);
  // Of another version of this program, perhaps: all of it is the message.
  if (!known) {
    return rpc::FromPeer(static_cast<int>(StatusCode::kUnknown), who + ": " + std::string(text),
                         /*origin=*/"");
  }
  return rpc::FromPeer(static_cast<int>(*code), who + ": " + std::string(message), *origin);
}

}  // namespace meshtrain::saving

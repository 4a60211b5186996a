#include "runtime/saving/file_error.h"

#include "runtime/base/text.h"
#include "runtime/membership/team.h"

namespace meshtrain::saving {

Status OfFiles(const Status& status) {
  if (!membership::Team::IsLoss(status)) return status;
  return {StatusCode::kUnknown, status.message()};
}

Status OfSaving(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return Unavailable(status.message());
  return OfFiles(status);
}

std::string TellFailure(const Status& status) {
  if (status.ok()) return "";
  return std::to_string(static_cast<int>(status.code())) + " " + status.message();
}

Status ToldFailure(const std::string& who, std::string_view text) {
  if (text.empty()) return OkStatus();
  const size_t space = text.find(' ');
  const auto code = ParseInt(text.substr(0, space));
  const bool known = space != std::string_view::npos && code &&
                     *code > static_cast<int>(StatusCode::kOk) &&
                     *code <= static_cast<int>(StatusCode::kUnauthenticated);
  // Of another version of this program, perhaps: all of it is the message.
  if (!known) return {StatusCode::kUnknown, who + ": " + std::string(text)};
  return {static_cast<StatusCode>(*code), who + ": " + std::string(text.substr(space + 1))};
}

}  // namespace meshtrain::saving
